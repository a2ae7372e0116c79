"""Sweeps: the cells of a plan's grid, their runs in isolated child processes, and their tables."""
