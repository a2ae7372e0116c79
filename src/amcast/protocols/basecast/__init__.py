"""basecast."""
