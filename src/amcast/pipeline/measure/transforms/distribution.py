"""Distributions: histograms that add up, and percentiles with confidence intervals from them.

Exact: the histogram has every value that occurred. Sketch: values share a bucket of half a percent relative error
(logarithmic buckets), so that a histogram has a few thousand rows however long the trace. Both merge by adding counts,
and everything below is the same for both.

Confidence intervals of 95 %: of percentiles by the binomial ranks around them, which assumes independent values; of
means by the means of batches, which does not.
"""

from collections.abc import Sequence
from math import log

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F  # noqa: N812

from amcast.pipeline.measure.transforms.student_t import T95

PERCENTILES = (50, 90, 95, 99)
ERROR = 0.005
"""The relative error of a sketched value."""
Z95 = 1.96
STEPS = 200
TAIL = (0.999, 0.9999)
"""A CDF has a point at every step from 0 to 1, and at these."""


def build_histogram(rows: DataFrame, keys: Sequence[str], value: str, exact: bool) -> DataFrame:
    """keys, batch, value, count, total (the sum of the true values)."""
    shown = F.col(value).cast("double") if exact else sketch_value(F.col(value))
    bucketed = rows.select(*keys, "batch", shown.alias("value"), F.col(value).cast("double").alias("true_value"))
    counted = bucketed.groupBy(*keys, "batch", "value").agg(
        F.count("*").alias("count"), F.sum("true_value").alias("total")
    )
    return counted.select(*keys, "batch", "value", "count", "total")


def sketch_value(value: Column) -> Column:
    """The middle of a value's bucket: within ERROR of it."""
    step = log((1 + ERROR) / (1 - ERROR))
    bucket = F.ceil(F.log(F.greatest(value.cast("double"), F.lit(1.0))) / step)
    return F.when(value < 1, F.lit(0.0)).otherwise(F.exp((bucket - 0.5) * step))


def summarize_distribution(counts: DataFrame, keys: Sequence[str], unit: str, exact: bool) -> DataFrame:
    """One row per key: count, mean, percentiles and extremes, with intervals; columns `unit`_p99 and so on."""
    keys = list(keys)
    values = counts.groupBy(*keys, "value").agg(F.sum("count").alias("count"))
    ranked = _rank_values(values, keys)
    columns = [F.max("n").alias("count"), F.min("value").alias(f"{unit}_min")]
    for share in PERCENTILES:
        p = share / 100
        spread = Z95 * F.sqrt(F.col("n") * p * (1 - p))
        at = F.greatest(F.ceil(F.col("n") * p), F.lit(1))
        low = F.greatest(F.floor(F.col("n") * p - spread), F.lit(1))
        high = F.least(F.ceil(F.col("n") * p + spread) + 1, F.col("n"))
        for name, rank in ((f"p{share}", at), (f"p{share}_low", low), (f"p{share}_high", high)):
            columns.append(F.min(F.when(F.col("upto") >= rank, F.col("value"))).alias(f"{unit}_{name}"))
    columns.append(F.max("value").alias(f"{unit}_max"))
    found = ranked.groupBy(*keys).agg(*columns)
    named = [column for column in found.columns if column not in (*keys, "count")]
    mean = _summarize_means(counts, keys, unit)
    return found.join(mean, keys).select(
        *keys,
        "count",
        f"{unit}_mean",
        f"{unit}_mean_low",
        f"{unit}_mean_high",
        *named,
        F.lit("exact" if exact else "sketch").alias("method"),
    )


def build_cdf(counts: DataFrame, keys: Sequence[str], unit: str) -> DataFrame:
    """keys, share, `unit`: the smallest value that at least this share of all values does not exceed."""
    keys = list(keys)
    ranked = _rank_values(counts.groupBy(*keys, "value").agg(F.sum("count").alias("count")), keys)
    # A share belongs to the row that its rank falls into; in whole numbers, because 0.07 * 100 is more than 7.
    below, upto, n = F.col("upto") - F.col("count"), F.col("upto"), F.col("n")
    first = F.when(below == 0, F.lit(0)).otherwise(F.floor(below * STEPS / n) + 1)
    steps = F.when(first <= F.floor(upto * STEPS / n), F.sequence(first, F.floor(upto * STEPS / n)))
    tail = [F.when((rank <= upto) & (rank > below), F.lit(share)) for share in TAIL for rank in [F.ceil(n * share)]]
    found = ranked.select(*keys, "value", steps.alias("steps"), F.array(*tail).alias("tail"))
    drawn = F.transform(F.coalesce("steps", F.array().cast("array<bigint>")), lambda step: step / STEPS)
    spread = found.select(*keys, "value", F.explode(F.concat(drawn, F.array_compact("tail"))).alias("share"))
    return spread.select(*keys, "share", F.col("value").alias(unit))


def _rank_values(values: DataFrame, keys: list[str]) -> DataFrame:
    """How many values are at most this one, and how many there are."""
    key = Window.partitionBy(*keys)
    upto = key.orderBy("value").rowsBetween(Window.unboundedPreceding, Window.currentRow)
    return values.select(
        *keys,
        "value",
        "count",
        F.sum("count").over(upto).alias("upto"),
        F.sum("count").over(key).alias("n"),
    )


def _summarize_means(counts: DataFrame, keys: list[str], unit: str) -> DataFrame:
    """The mean, and an interval from the means of batches; no interval from fewer than two batches."""
    batches = counts.groupBy(*keys, "batch").agg(F.sum("total").alias("total"), F.sum("count").alias("count"))
    batches = batches.withColumn("mean", F.col("total") / F.col("count"))
    found = batches.groupBy(*keys).agg(
        F.sum("total").alias("total"),
        F.sum("count").alias("all"),
        F.stddev_samp("mean").alias("sd"),
        F.count("*").alias("batches"),
    )
    half = look_up_t95(F.col("batches") - 1) * F.col("sd") / F.sqrt("batches")
    mean = F.col("total") / F.col("all")
    return found.select(
        *keys,
        mean.alias(f"{unit}_mean"),
        (mean - half).alias(f"{unit}_mean_low"),
        (mean + half).alias(f"{unit}_mean_high"),
    )


def look_up_t95(freedom: Column) -> Column:
    """Student's t; null without a degree of freedom."""
    table = F.array(*[F.lit(value) for value in T95])
    return F.when(freedom >= 1, F.element_at(table, F.least(freedom, F.lit(len(T95))).cast("int")))
