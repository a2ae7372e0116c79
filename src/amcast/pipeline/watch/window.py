"""The columns that a watch needs of each new batch of rows."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def select_deliveries(deliveries: DataFrame) -> DataFrame:
    """Deliveries with the columns for order and latency."""
    return deliveries.select(
        F.col("process"),
        F.col("group"),
        F.col("position"),
        F.col("message"),
        F.col("at_ns"),
        F.col("multicast_ns"),
        F.col("destinations"),
    )


def select_multicasts(multicasts: DataFrame) -> DataFrame:
    """Multicasts with the columns for latency."""
    return multicasts.select(F.col("message"), F.col("at_ns"))
