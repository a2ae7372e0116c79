"""Responses: when each destination group first delivered a message, and when the last of them did."""

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def find_responses(delivered: DataFrame) -> DataFrame:
    """Per message and destination group, the first replica's delivery: the response that a client of that group waits
    for.
    """
    keys = ["run", "message", "group"]
    first = delivered.groupBy(*keys).agg(
        F.min("at_ns").alias("at_ns"),
        F.first("sent_ns").alias("sent_ns"),
        F.first("destinations").alias("destinations"),
        F.first("rank").alias("rank"),
        F.first("sender_region").alias("sender_region"),
        F.first("steady").alias("steady"),
        F.first("batch").alias("batch"),
    )
    arrival = Window.partitionBy("run", "message").orderBy("at_ns", "group")
    return first.select(
        "run",
        "message",
        "group",
        "destinations",
        "rank",
        F.row_number().over(arrival).alias("response"),
        "sender_region",
        "sent_ns",
        "at_ns",
        (F.col("at_ns") - F.col("sent_ns")).alias("latency_ns"),
        "steady",
        "batch",
    )


def find_completions(answers: DataFrame) -> DataFrame:
    """Per message whose destination groups all delivered it: how long until the last of them did."""
    per_message = answers.groupBy("run", "message").agg(
        F.count("*").alias("answered"),
        F.first("destinations").alias("destinations"),
        F.first("sender_region").alias("sender_region"),
        F.max("at_ns").alias("at_ns"),
        F.max("latency_ns").alias("latency_ns"),
        F.first("steady").alias("steady"),
        F.first("batch").alias("batch"),
    )
    whole = per_message.where(F.col("answered") == F.col("destinations"))
    return whole.select("run", "message", "destinations", "sender_region", "at_ns", "latency_ns", "steady", "batch")
