"""The convoy effect: deliveries that had their place in the order, and waited for something older."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def convoy(delivered: DataFrame) -> DataFrame:
    """Per run and group, in the steady part: how many deliveries waited, how long, and what share of the latency."""
    wait = F.when(F.col("committed_ns").isNotNull(), F.greatest(F.col("at_ns") - F.col("committed_ns"), F.lit(0)))
    rows = delivered.where("steady").select("run", "group", "latency_ns", wait.alias("wait_ns"))
    waited = F.when(F.col("wait_ns") > 0, F.col("wait_ns"))
    found = rows.groupBy("run", "group").agg(
        F.count("*").alias("deliveries"),
        F.count(waited).alias("waited"),
        F.avg(waited).alias("wait_ns_mean"),
        F.expr("percentile_approx(if(wait_ns > 0, wait_ns, null), 0.99)").alias("wait_ns_p99"),
        F.max(waited).alias("wait_ns_max"),
        F.sum(F.coalesce("wait_ns", F.lit(0))).alias("wait_ns"),
        F.sum("latency_ns").alias("latency_ns"),
    )
    return found.select(
        "run",
        "group",
        "deliveries",
        "waited",
        (F.col("waited") / F.col("deliveries")).alias("waited_share"),
        "wait_ns_mean",
        "wait_ns_p99",
        "wait_ns_max",
        F.when(F.col("latency_ns") > 0, F.col("wait_ns") / F.col("latency_ns")).alias("wait_share_of_latency"),
    )
