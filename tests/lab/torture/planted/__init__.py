"""Nodes with planted bugs, which a torture must find."""
