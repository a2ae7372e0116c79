"""Identities, permissions and TLS, and the filter for requests of clients."""
