"""Fast and slow paths: the notes of protocols about messages, how often, and whether such messages took longer."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def measure_paths(notes: DataFrame, done: DataFrame, spans: DataFrame) -> DataFrame:
    """Per run and name of a note."""
    counted = notes.groupBy("run", "name").agg(
        F.count("*").alias("notes"), F.countDistinct("process").alias("processes")
    )
    marked = notes.where(F.col("message").isNotNull()).select("run", "name", "message").distinct()
    steady = done.where("steady").select("run", "message", "latency_ns")
    with_it = (
        marked.join(steady, ["run", "message"])
        .groupBy("run", "name")
        .agg(F.count("*").alias("slow"), F.sum("latency_ns").alias("slow_ns"))
    )
    marked_count = marked.groupBy("run", "name").agg(F.count("*").alias("messages"))
    overall = steady.groupBy("run").agg(F.count("*").alias("all"), F.sum("latency_ns").alias("all_ns"))
    joined = (
        counted.join(marked_count, ["run", "name"], "left")
        .join(with_it, ["run", "name"], "left")
        .join(F.broadcast(overall), "run", "left")
        .join(F.broadcast(spans.select("run", "multicasts")), "run", "left")
        .fillna(0, ["messages", "slow", "slow_ns"])
    )
    rest = F.col("all") - F.col("slow")
    return joined.select(
        "run",
        "name",
        "notes",
        "processes",
        "messages",
        (F.col("messages") / F.col("multicasts")).alias("messages_share"),
        F.when(F.col("slow") > 0, F.col("slow_ns") / F.col("slow")).alias("latency_ns_mean_with"),
        F.when(rest > 0, (F.col("all_ns") - F.col("slow_ns")) / rest).alias("latency_ns_mean_without"),
    )
