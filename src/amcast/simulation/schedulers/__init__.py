"""Schedulers choose what happens next in a world: by time, at random, exhaustively, or by a script."""
