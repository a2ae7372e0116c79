"""Tests of the judges of histories."""
