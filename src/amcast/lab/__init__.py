"""The laboratory: combines protocols, simulator, checker and live cluster into the experiments behind the commands.

`runs.py` is the module to read first: it builds and executes the run of a plan and judges it.
"""
