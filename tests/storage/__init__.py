"""Tests of durable storage over simulated files."""
