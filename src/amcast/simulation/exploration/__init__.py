"""What an exhaustive search is made of: numbered states, steps taken once, symmetry, commutation."""
