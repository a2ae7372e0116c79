"""Tests of services without a network."""
