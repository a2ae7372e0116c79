"""Tests of what users import in their tests."""
