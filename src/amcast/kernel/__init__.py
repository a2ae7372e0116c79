"""The vocabulary that every other room speaks: ids, messages, events, effects, processes, topologies, specs.

Nothing here does I/O, reads a clock or draws a random number; a test checks it.
"""
