"""Inputs of a simulated run: plan, environment, network, faults, load and random streams."""
