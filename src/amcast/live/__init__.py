"""The live system: sockets, files and coroutines around the same process objects that the simulator runs.

`host/host.py` is the module to read first: it steps one process and executes its effects. `wire/` carries bodies
between hosts, `storage/` makes records durable, and `server/` builds a whole node from these.
"""
