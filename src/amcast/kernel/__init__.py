"""The vocabulary of amcast: ids, messages, events, effects, processes, topologies and protocol specifications.

Every other package imports this one. Nothing here does I/O, reads a clock or draws a random number; a test checks it.
"""
