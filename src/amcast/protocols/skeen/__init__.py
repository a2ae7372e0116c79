"""Skeen."""
