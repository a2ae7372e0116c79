"""Fairness: the latency of each region, as a sender (until every destination delivered) and as a destination."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from amcast.pipeline.measure.transforms import distribution as D  # noqa: N812

KEYS = ("run", "side", "region")


def measure_fairness(delivered: DataFrame, done: DataFrame, exact: bool) -> DataFrame:
    """Per run, side and region: the distribution of its latencies, and the mean's ratio to the best region's."""
    sides = (
        done.where("steady")
        .select("run", F.lit("sender").alias("side"), F.col("sender_region").alias("region"), "latency_ns", "batch")
        .unionByName(
            delivered.where("steady").select("run", F.lit("destination").alias("side"), "region", "latency_ns", "batch")
        )
    )
    found = D.summarize_distribution(D.build_histogram(sides, KEYS, "latency_ns", exact), KEYS, "latency_ns", exact)
    means = F.collect_list("latency_ns_mean")
    best = found.groupBy("run", "side").agg(
        F.min("latency_ns_mean").alias("best"),
        (F.sum("latency_ns_mean") ** 2 / (F.size(means) * F.sum(F.col("latency_ns_mean") ** 2))).alias("jain_index"),
    )
    return found.join(F.broadcast(best), ["run", "side"]).select(
        *found.columns,
        F.when(F.col("best") > 0, F.col("latency_ns_mean") / F.col("best")).alias("ratio_to_best"),
        "jain_index",
    )
