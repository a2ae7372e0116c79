"""Latency per destination: over all, by the number of destinations, by rank, by order of response, by group."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812

from amcast.pipeline.measure.transforms import distribution as D  # noqa: N812

KEYS = ("run", "by", "place")


def build_latency_views(answers: DataFrame, exact: bool) -> DataFrame:
    """Histograms of the steady responses, one per run and view: the finest one is counted once and then added up."""
    fine = ("run", "destinations", "rank", "response", "group")
    counts = D.build_histogram(answers.where("steady"), fine, "latency_ns", exact)
    seen = F.array(
        *[
            F.struct(F.lit(by).alias("by"), place.cast("int").alias("place"))
            for by, place in (
                ("all", F.lit(0)),
                ("destinations", F.col("destinations")),
                ("rank", F.col("rank")),
                ("response", F.col("response")),
                ("group", F.col("group")),
            )
        ]
    )
    spread = counts.select("run", F.explode(seen).alias("view"), "batch", "value", "count", "total")
    added = spread.groupBy("run", "view.by", "view.place", "batch", "value").agg(
        F.sum("count").alias("count"), F.sum("total").alias("total")
    )
    return added.select(*KEYS, "batch", "value", "count", "total")


def measure_latency(counts: DataFrame, exact: bool) -> DataFrame:
    """One row per run and view."""
    return D.summarize_distribution(counts, KEYS, "latency_ns", exact)


def build_latency_cdf(counts: DataFrame) -> DataFrame:
    """The curves of all, by rank and by response."""
    return D.build_cdf(counts.where(F.col("by").isin("all", "rank", "response")), KEYS, "latency_ns")


def measure_routes(answers: DataFrame, exact: bool) -> DataFrame:
    """Per run, region of the sender and destination group: the latency between them."""
    keys = ("run", "sender_region", "group")
    return D.summarize_distribution(
        D.build_histogram(answers.where("steady"), keys, "latency_ns", exact), keys, "latency_ns", exact
    )
