"""Units of time. Every duration and time whose name ends in `_ns` counts nanoseconds."""

from typing import Final

MILLISECOND: Final = 1_000_000
"""Nanoseconds in one millisecond."""
