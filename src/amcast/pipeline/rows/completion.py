"""Adds the optional columns to deliveries whose writer omitted them."""

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812


def complete_deliveries(deliveries: DataFrame, multicasts: DataFrame) -> DataFrame:
    """Each delivery with its message's destinations and time of multicast, from the multicasts, and whether what the
    delivery states contradicts them.

    If a client retried, the first multicast counts. A message that was never multicast gets no destinations; the check
    then finds it.
    """
    known = multicasts.groupBy("message").agg(
        F.min("at_ns").alias("known_ns"), F.min_by("destinations", "at_ns").alias("known_groups")
    )
    joined = deliveries.join(known, "message", "left")
    other_groups = F.col("destinations").isNotNull() & (_to_set("destinations") != _to_set("known_groups"))
    other_time = F.col("multicast_ns").isNotNull() & (F.col("multicast_ns") != F.col("known_ns"))
    return joined.select(
        F.col("process"),
        F.col("position"),
        F.col("message"),
        F.col("at_ns"),
        F.coalesce(F.col("known_ns"), F.lit(0).cast("long")).alias("multicast_ns"),
        F.coalesce(F.col("known_groups"), F.array().cast("array<int>")).alias("destinations"),
        (F.col("known_ns").isNotNull() & (other_groups | other_time)).alias("contradicts"),
    )


def _to_set(column: str) -> Column:
    return F.array_sort(F.array_distinct(F.col(column)))


def sort_deliveries(deliveries: DataFrame, files: int) -> DataFrame:
    """The same rows, sorted by process and position over a number of partitions that do not overlap."""
    return deliveries.repartitionByRange(files, "process", "position").sortWithinPartitions(
        "process", "position", "at_ns", "message"
    )
