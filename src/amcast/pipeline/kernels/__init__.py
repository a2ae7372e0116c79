"""The work inside a Spark task: pure functions on Arrow and NumPy arrays, which know nothing of Spark."""
