"""Waiting in the order: deliveries that had their final place and waited for an older message; and the convoy effect.

Convoy effect as in paper 001 (sections 5 and 7.2): local messages that wait for global ones. Processes note it
themselves (`convoy`, nanoseconds, once per delivery); the share is relative to the latency of all local messages.
"""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def measure_convoy(delivered: DataFrame, notes: DataFrame) -> DataFrame:
    """Per run and group, in the steady part: how many deliveries waited, how long, and what share of the latency."""
    keys = ["run", "process", "message"]
    behind = notes.where("name = 'convoy' and value > 0").select(*keys, F.col("value").alias("behind_ns"))
    wait = F.when(F.col("committed_ns").isNotNull(), F.greatest(F.col("at_ns") - F.col("committed_ns"), F.lit(0)))
    facts = delivered.where("steady").withColumn("local", F.col("destinations") == 1)
    rows = facts.join(behind, keys, "left").select(
        "run", "group", "latency_ns", wait.alias("wait_ns"), "local", "behind_ns"
    )
    waited = F.when(F.col("wait_ns") > 0, F.col("wait_ns"))
    found = rows.groupBy("run", "group").agg(
        F.count("*").alias("deliveries"),
        F.count(waited).alias("waited"),
        F.avg(waited).alias("wait_ns_mean"),
        F.expr("percentile_approx(if(wait_ns > 0, wait_ns, null), 0.99)").alias("wait_ns_p99"),
        F.max(waited).alias("wait_ns_max"),
        F.sum(F.coalesce("wait_ns", F.lit(0))).alias("wait_ns"),
        F.sum("latency_ns").alias("latency_ns"),
        F.count(F.when(F.col("local"), 1)).alias("local"),
        F.count("behind_ns").alias("local_waited"),
        F.sum(F.coalesce("behind_ns", F.lit(0.0))).alias("behind_ns"),
        F.sum(F.when(F.col("local"), F.col("latency_ns"))).alias("local_ns"),
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
        "local",
        "local_waited",
        F.when(F.col("local_ns") > 0, F.col("behind_ns") / F.col("local_ns")).alias("convoy_share_of_latency"),
    )
