"""Adds the optional columns to deliveries whose writer omitted them."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def complete_deliveries(deliveries: DataFrame, multicasts: DataFrame) -> DataFrame:
    """Each delivery with its message's destinations and time of multicast, from the multicasts.

    If a client retried, the first multicast counts. A message that was never multicast gets no destinations; the check
    then finds it.
    """
    known = multicasts.groupBy("run", "message").agg(
        F.min("at_ns").alias("multicast_ns"), F.min_by("destinations", "at_ns").alias("destinations")
    )
    stated = deliveries.drop("multicast_ns", "destinations").join(known, ["run", "message"], "left")
    return stated.select(
        F.col("run"),
        F.col("process"),
        F.col("position"),
        F.col("message"),
        F.col("at_ns"),
        F.coalesce(F.col("multicast_ns"), F.lit(0).cast("long")).alias("multicast_ns"),
        F.coalesce(F.col("destinations"), F.array().cast("array<int>")).alias("destinations"),
    )


def sort_deliveries(deliveries: DataFrame, files: int) -> DataFrame:
    """The same rows, sorted by process and position over a number of partitions that do not overlap."""
    return (
        deliveries.repartitionByRange(files, "process", "position")
        .sortWithinPartitions("process", "position", "at_ns", "message")
        .select("run", "process", "position", "message", "at_ns", "multicast_ns", "destinations")
    )
