"""The work inside a Spark task: functions on Arrow and NumPy arrays, without Spark."""
