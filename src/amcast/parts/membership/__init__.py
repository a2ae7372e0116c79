"""Reconfiguration: groups whose members change while traffic flows."""
