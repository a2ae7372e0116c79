"""Invariants of a simulated world: what processes say is held against what they said before and what is durable."""
