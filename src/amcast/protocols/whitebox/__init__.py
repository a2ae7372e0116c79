"""whitebox."""
