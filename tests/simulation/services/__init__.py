"""Tests of services in the simulator."""
