"""The laboratory: combines protocols, simulator, checker and live cluster into the experiments behind the commands.

Simulator and live system import neither protocols nor checks; commands, sweeps and tests combine them here, in one way.
`runs.py` is the module to read first: it builds and executes the run of a plan and judges it.
"""
