"""The simulator. A world (`world/`) executes actions and chooses nothing; a scheduler (`schedulers/`) chooses the next
action; plans, networks, faults and workloads are its `inputs/`.

`simulate.py` runs a plan in virtual time and is the module to read first. Protocols and checks are passed in; nothing
here imports them.
"""
