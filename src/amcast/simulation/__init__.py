"""The simulator: a world is physics without choice, an scheduler is choice without physics.

Protocols and checks are handed in; nothing here imports them.
"""
