"""Recovery: how long every group was silent after each fault, and when it delivered new messages again.

Faults are notes called `fault-...` (the simulator writes one when a fault happens) and processes that stayed down.
"""

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812


def find_faults(notes: DataFrame, processes: DataFrame) -> DataFrame:
    """Per run: the kind, process and time of each fault."""
    noted = notes.where(F.col("name").startswith("fault-")).select(
        "run", F.col("at_ns").alias("fault_ns"), F.expr("substring(name, 7)").alias("fault"), "process"
    )
    down = processes.where(F.col("crashed_at_ns").isNotNull()).select(
        "run", F.col("crashed_at_ns").alias("fault_ns"), F.lit("crash").alias("fault"), "process"
    )
    return noted.unionByName(down).distinct().select("run", "fault_ns", "fault", "process")


def measure_recovery(answers: DataFrame, struck: DataFrame, processes: DataFrame) -> DataFrame:
    """Per fault and group. Times are counted from the fault; null: there was no such delivery."""
    groups = processes.where(F.col("group").isNotNull()).select("run", "group").distinct()
    events = struck.join(groups, "run").select("run", "group", "fault_ns", "fault", "process")
    keys = ["run", "group", "fault_ns", "fault", "process"]
    soonest = _find_next_deliveries(
        answers.select("run", "group", F.col("at_ns").alias("time_ns"), "at_ns"), events, "next_ns"
    )
    newest = _find_next_deliveries(
        answers.select("run", "group", F.col("sent_ns").alias("time_ns"), "at_ns"), events, "new_ns"
    )
    joined = soonest.join(newest, keys).join(_find_silences(answers, events), ["run", "group", "fault_ns"], "left")
    return joined.select(
        "run",
        "fault_ns",
        "fault",
        "process",
        "group",
        (F.col("next_ns") - F.col("fault_ns")).alias("next_delivery_after_ns"),
        (F.col("new_ns") - F.col("fault_ns")).alias("new_message_after_ns"),
        "longest_silence_ns",
    )


def _find_next_deliveries(times: DataFrame, events: DataFrame, name: str) -> DataFrame:
    """Per fault and group: the earliest delivery among those whose time is not before the fault."""
    plain = times.select("run", "group", "time_ns", "at_ns", *_null_fault_columns())
    both = plain.unionByName(
        events.select(
            "run",
            "group",
            F.col("fault_ns").alias("time_ns"),
            F.lit(None).cast("long").alias("at_ns"),
            "fault",
            "process",
        )
    )
    # Backwards, so that the window grows: a shrinking one would be summed again for every row.
    backwards = Window.partitionBy("run", "group").orderBy(F.col("time_ns").desc())
    later = backwards.rangeBetween(Window.unboundedPreceding, Window.currentRow)
    seen = both.withColumn(name, F.min("at_ns").over(later)).where(F.col("fault").isNotNull())
    return seen.select("run", "group", F.col("time_ns").alias("fault_ns"), "fault", "process", name)


def _find_silences(answers: DataFrame, events: DataFrame) -> DataFrame:
    """Per fault and group: the longest time between two deliveries that ended after it and before the next fault."""
    order = Window.partitionBy("run", "group").orderBy("at_ns", "message")
    gaps = answers.select("run", "group", "at_ns", (F.col("at_ns") - F.lag("at_ns").over(order)).alias("gap_ns"))
    marks = events.select("run", "group", "fault_ns").distinct()
    both = gaps.select("run", "group", "at_ns", "gap_ns", F.lit(None).cast("long").alias("fault_ns")).unionByName(
        marks.select(
            "run", "group", F.col("fault_ns").alias("at_ns"), F.lit(None).cast("long").alias("gap_ns"), "fault_ns"
        )
    )
    before = (
        Window.partitionBy("run", "group")
        .orderBy("at_ns", F.col("gap_ns").isNotNull())
        .rowsBetween(Window.unboundedPreceding, Window.currentRow)
    )
    marked = both.withColumn("since", F.last("fault_ns", ignorenulls=True).over(before))
    found = marked.where(F.col("since").isNotNull() & F.col("gap_ns").isNotNull())
    return found.groupBy("run", "group", F.col("since").alias("fault_ns")).agg(
        F.max("gap_ns").alias("longest_silence_ns")
    )


def _null_fault_columns() -> list[Column]:
    return [F.lit(None).cast("string").alias("fault"), F.lit(None).cast("int").alias("process")]
