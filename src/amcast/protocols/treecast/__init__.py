"""TreeCast."""
