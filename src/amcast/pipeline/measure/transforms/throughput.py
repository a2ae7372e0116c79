"""Throughput over time: messages multicast, delivered and completed in each slice of a run."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

SLICES = 50
PER_SLICE = 10
"""A slice has at least about this many messages: with fewer, the numbers depend mostly on the slicing."""


def measure_throughput(multicasts: DataFrame, delivered: DataFrame, done: DataFrame, spans: DataFrame) -> DataFrame:
    """Per run and slice of time, with the edges, which are marked as not steady."""
    facts = (
        multicasts.select("run", "at_ns", F.lit("multicast").alias("what"))
        .unionByName(delivered.select("run", "at_ns", F.lit("delivery").alias("what")))
        .unionByName(done.select("run", "at_ns", F.lit("completion").alias("what")))
    )
    ends = delivered.groupBy("run").agg(F.max("at_ns").alias("end_ns"))
    slices = F.least(F.ceil(F.col("multicasts") / PER_SLICE), F.lit(SLICES))
    length = F.greatest("end_ns", "last_ns") + 1 - F.col("first_ns")
    bounds = spans.join(ends, "run", "left").select(
        "run", "first_ns", "low_ns", "high_ns", F.greatest(F.ceil(length / slices), F.lit(1)).alias("width_ns")
    )
    placed = facts.join(F.broadcast(bounds), "run").withColumn(
        "slice", F.floor((F.col("at_ns") - F.col("first_ns")) / F.col("width_ns"))
    )
    counted = placed.groupBy("run", "slice", "first_ns", "low_ns", "high_ns", "width_ns").agg(
        *[F.count(F.when(F.col("what") == what, 1)).alias(what) for what in ("multicast", "delivery", "completion")]
    )
    begin = F.col("first_ns") + F.col("slice") * F.col("width_ns")
    return counted.select(
        "run",
        F.col("slice").cast("int").alias("slice"),
        begin.alias("from_ns"),
        (begin + F.col("width_ns")).alias("to_ns"),
        (F.col("multicast") * 1e9 / F.col("width_ns")).alias("multicasts_per_s"),
        (F.col("delivery") * 1e9 / F.col("width_ns")).alias("deliveries_per_s"),
        (F.col("completion") * 1e9 / F.col("width_ns")).alias("completions_per_s"),
        ((begin >= F.col("low_ns")) & (begin + F.col("width_ns") <= F.col("high_ns"))).alias("steady"),
    )
