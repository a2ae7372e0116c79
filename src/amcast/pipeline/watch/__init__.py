"""Watches a run that is still going on."""
