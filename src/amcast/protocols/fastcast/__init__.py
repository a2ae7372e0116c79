"""fastcast."""
