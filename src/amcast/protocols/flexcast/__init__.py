"""flexcast."""
