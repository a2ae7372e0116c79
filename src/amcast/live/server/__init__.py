"""Nodes: the replica around a host, its application, status, metrics and HTTP server."""
