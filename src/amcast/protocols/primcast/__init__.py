"""primcast."""
