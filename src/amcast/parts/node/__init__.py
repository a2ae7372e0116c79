"""Nodes: a protocol's process together with leader oracle, gateway and replies to senders. Read `node.py` first."""
