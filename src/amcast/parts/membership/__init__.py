"""Reconfiguration: groups whose members change while traffic flows. `reconfigurable.py` wraps any protocol's process."""
