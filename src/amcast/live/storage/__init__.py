"""Durable storage of a node: its log, its client ids and its small files."""
