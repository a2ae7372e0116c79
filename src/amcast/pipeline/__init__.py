"""The PySpark pipeline: from traces to verdicts and tables, on one machine or on a cluster. It knows only trace
columns.

    spark      a Java for Spark, the Spark session, progress, calls in tasks
    kernels    NumPy and numba on Arrow arrays, without Spark
    rows       the tables of a trace: files, schemas, delivery sequences, compaction
    check      P1 to P9 over traces of any size
    measure    tables of latency, throughput, packets and more
    sweep      many runs of a plan
    watch      a run that is still going on

Imports go upwards only: spark and kernels, then rows, then the others.
"""
