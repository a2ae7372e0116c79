"""Durable storage over a small file interface: the log, the folder's identity, client ids and small atomic files."""
