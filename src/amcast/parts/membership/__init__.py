"""Reconfiguration: groups whose members change while traffic flows. Read `reconfigurable.py` first."""
