"""Commands of the live cluster."""
