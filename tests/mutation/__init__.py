"""Mutation testing: small faults are planted into protocols, parts and checkers, and the search must find them.

`python -m tests.mutation` plants a fixed sample of mutants one after the other, runs `amcast fuzz` (for checkers: their
tests) with each, and reports which were found, by what and within how many seeds. The sample is drawn by a fixed seed
from all mutants that `operators.py` can make, so that nobody chooses the faults that happen to be found.
"""
