"""The trace of a run: recorded events, their columns and their files. The contract between running and analysing."""
