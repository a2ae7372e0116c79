"""The protocols of atomic multicast, one folder for each: `process.py` is the protocol, `messages.py` its bodies and
records.

`catalogue.py` lists them by name. A protocol is a deterministic state machine without sockets, clocks or random
numbers. Read `skeen/process.py` first: it is the smallest, and most others build on its idea.
"""
