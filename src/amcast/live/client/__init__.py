"""Clients: multicast with receipts, asynchronous and blocking."""
