"""Clients: one that retries, and one that sends each message once."""
