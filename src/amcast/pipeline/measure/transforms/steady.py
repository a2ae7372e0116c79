"""The steady part of a run, and its deliveries joined with their messages.

A run warms up and drains; both ends are dropped before anything is averaged: the first and the last tenth of its
messages, in order of their multicast. (By number and not by time, because a burst takes almost no time.)
"""

from collections.abc import Sequence

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F  # noqa: N812

BATCHES = 20
"""The steady part is cut into this many batches: their means are nearly independent, single latencies are not."""


def deduplicate_processes(processes: DataFrame) -> DataFrame:
    """One row per process: a process that was stopped cleanly and started again has a row of every incarnation."""
    per_process = processes.groupBy("run", "process").agg(
        F.max("group").alias("group"), F.max("region").alias("region"), F.max("crashed_at_ns").alias("crashed_at_ns")
    )
    return per_process.select("run", "process", "group", "region", "crashed_at_ns")


def find_steady_windows(multicasts: DataFrame, edge: float) -> DataFrame:
    """Per run: when its steady part begins and ends, and how many messages were multicast."""
    per_run = multicasts.groupBy("run").agg(
        F.min("at_ns").alias("first_ns"),
        F.max("at_ns").alias("last_ns"),
        F.count("*").alias("multicasts"),
        _find_quantile("at_ns", edge).alias("low_ns"),
        _find_quantile("at_ns", 1 - edge).alias("high_ns"),
    )
    return per_run.select("run", "first_ns", "last_ns", "multicasts", "low_ns", "high_ns")


def _find_quantile(column: str, share: float) -> Column:
    """The value below which this share of all values lies."""
    if share in (0.0, 1.0):
        return F.max(column) if share else F.min(column)
    return F.percentile_approx(column, share, 100_000)


def summarize_spans(spans: DataFrame, facts: DataFrame, done: DataFrame, edge: float) -> DataFrame:
    """Per run: its steady part, total counts, and the rate of completions without the first and last ones."""
    all_of = facts.groupBy("run").agg(F.count("*").alias("deliveries"))
    ends = done.groupBy("run").agg(
        _find_quantile("at_ns", edge).alias("begun"), _find_quantile("at_ns", 1 - edge).alias("ended")
    )
    inside = (F.col("at_ns") > F.col("begun")) & (F.col("at_ns") <= F.col("ended"))
    completed = (
        done.join(F.broadcast(ends), "run")
        .groupBy("run", "begun", "ended")
        .agg(F.count("*").alias("completed"), F.count(F.when(inside, 1)).alias("steady"))
    )
    joined = spans.join(all_of, "run", "left").join(completed, "run", "left")
    joined = joined.fillna(0, ["deliveries", "completed", "steady"])
    seconds = (F.col("ended") - F.col("begun")) / 1e9
    return joined.select(
        "run",
        "first_ns",
        "last_ns",
        "low_ns",
        "high_ns",
        "multicasts",
        "deliveries",
        "completed",
        F.when(seconds > 0, F.col("steady") / seconds).alias("throughput_per_s"),
    )


def join_deliveries(
    deliveries: DataFrame,
    multicasts: DataFrame,
    processes: DataFrame,
    spans: DataFrame,
    order: Sequence[int] | None = None,
) -> DataFrame:
    """Every delivery of a message that was multicast to its group, with its latency and the regions of both ends."""
    sent = multicasts.select(
        "run",
        "message",
        "sender",
        F.col("destinations").alias("groups"),
        F.col("at_ns").alias("sent_ns"),
    )
    places = processes.select("run", "process", "region")
    senders = places.select("run", F.col("process").alias("sender"), F.col("region").alias("sender_region"))
    bounds = spans.select("run", "low_ns", "high_ns")
    facts = deliveries.select("run", "process", "group", "message", "at_ns", "committed_ns")
    known = facts.join(sent, ["run", "message"]).where(F.array_contains("groups", F.col("group")))
    known = known.join(F.broadcast(bounds), "run").join(F.broadcast(places), ["run", "process"], "left")
    known = known.join(F.broadcast(senders), ["run", "sender"], "left")
    width = (F.col("high_ns") - F.col("low_ns") + 1) / BATCHES
    return known.select(
        "run",
        "message",
        "sender",
        F.coalesce("sender_region", F.lit("")).alias("sender_region"),
        "process",
        "group",
        F.coalesce("region", F.lit("")).alias("region"),
        F.size("groups").alias("destinations"),
        _rank(order).alias("rank"),
        "sent_ns",
        "at_ns",
        "committed_ns",
        (F.col("at_ns") - F.col("sent_ns")).alias("latency_ns"),
        F.col("sent_ns").between(F.col("low_ns"), F.col("high_ns")).alias("steady"),
        F.floor((F.col("sent_ns") - F.col("low_ns")) / width).cast("int").alias("batch"),
    )


def _rank(order: Sequence[int] | None) -> Column:
    """The place of a group among its message's destinations: by number, or by an overlay's order; from 1."""
    if order is None:
        return F.array_position(F.array_sort("groups"), F.col("group")).cast("int")
    overlay = F.array(*[F.lit(group) for group in order])
    mine = F.array_position(overlay, F.col("group"))
    before = F.filter("groups", lambda other: F.array_position(overlay, other) < mine)
    return (F.size(before) + 1).cast("int")
