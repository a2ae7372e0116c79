"""White-Box."""
