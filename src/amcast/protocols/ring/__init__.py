"""The ring."""
