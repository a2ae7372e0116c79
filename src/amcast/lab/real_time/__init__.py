"""Runs that break real-time order (P9) by unequal delays alone: the search for them, and those that are kept."""
