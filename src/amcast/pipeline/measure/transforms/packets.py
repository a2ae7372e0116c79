"""Packets: how many each process sent and received, of which bodies, and how many were about messages of others."""

from pyspark.sql import DataFrame
from pyspark.sql import functions as F  # noqa: N812


def count_packets_per_process(packets: DataFrame, processes: DataFrame, spans: DataFrame) -> DataFrame:
    """Per process: packets and bytes, per second of the steady part and per multicast of the whole run."""
    bounds = spans.select("run", "low_ns", "high_ns", "multicasts")
    inside = packets.join(F.broadcast(bounds), "run").select(
        "run",
        "source",
        "target",
        "bytes",
        "received_ns",
        F.col("sent_ns").between(F.col("low_ns"), F.col("high_ns")).alias("steady"),
    )
    sent = inside.groupBy("run", F.col("source").alias("process")).agg(
        F.count("*").alias("sent"),
        F.sum("bytes").alias("bytes_sent"),
        F.count(F.when(F.col("received_ns").isNull(), 1)).alias("lost"),
        F.count(F.when(F.col("steady"), 1)).alias("steady_sent"),
        F.sum(F.when(F.col("steady"), F.col("bytes")).otherwise(0)).alias("steady_bytes"),
    )
    received = (
        inside.where(F.col("received_ns").isNotNull())
        .groupBy("run", F.col("target").alias("process"))
        .agg(F.count("*").alias("received"), F.sum("bytes").alias("bytes_received"))
    )
    seconds = (F.col("high_ns") - F.col("low_ns")) / 1e9
    known = processes.select("run", "process", "group", "region").join(F.broadcast(bounds), "run")
    joined = known.join(sent, ["run", "process"], "left").join(received, ["run", "process"], "left")
    joined = joined.fillna(
        0, ["sent", "received", "lost", "bytes_sent", "bytes_received", "steady_sent", "steady_bytes"]
    )
    return joined.select(
        "run",
        "process",
        "group",
        "region",
        "sent",
        "received",
        "lost",
        "bytes_sent",
        "bytes_received",
        (F.col("sent") / F.col("multicasts")).alias("sent_per_multicast"),
        (F.col("bytes_sent") / F.col("multicasts")).alias("bytes_sent_per_multicast"),
        F.when(seconds > 0, F.col("steady_sent") / seconds).alias("sent_per_s"),
        F.when(seconds > 0, F.col("steady_bytes") / seconds).alias("bytes_sent_per_s"),
    )


def count_packets_per_body(packets: DataFrame, spans: DataFrame) -> DataFrame:
    """Per kind of body: how many, how large, how many per multicast."""
    found = packets.groupBy("run", "body").agg(F.count("*").alias("packets"), F.sum("bytes").alias("bytes"))
    return found.join(F.broadcast(spans.select("run", "multicasts")), "run").select(
        "run",
        "body",
        "packets",
        "bytes",
        (F.col("packets") / F.col("multicasts")).alias("packets_per_multicast"),
        (F.col("bytes") / F.col("multicasts")).alias("bytes_per_multicast"),
        (F.col("bytes") / F.col("packets")).alias("bytes_per_packet"),
    )


def find_packet_ends(packets: DataFrame, multicasts: DataFrame, processes: DataFrame) -> DataFrame:
    """Per packet, message that it is about, and end: the end's group, and whether the message concerns it."""
    about = packets.select(
        "run",
        "source",
        "target",
        "received_ns",
        "bytes",
        F.explode(F.coalesce("messages", F.when(F.col("message").isNotNull(), F.array("message")))).alias("message"),
        F.coalesce(F.size("messages"), F.lit(1)).alias("several"),
    )
    sent = multicasts.select("run", "message", "sender", "destinations", F.col("bytes").alias("payload"))
    ends = F.array(
        F.struct(F.col("source").alias("process"), F.lit("source").alias("end")),
        F.struct(F.col("target").alias("process"), F.lit("target").alias("end")),
    )
    known = about.join(sent, ["run", "message"]).withColumn("one", F.explode(ends))
    groups = processes.select("run", F.col("process").alias("who"), "group")
    known = known.select("*", F.col("one.process").alias("process"), F.col("one.end").alias("end")).join(
        F.broadcast(groups.select("run", F.col("who").alias("process"), "group")), ["run", "process"], "left"
    )
    mine = F.coalesce(F.array_contains("destinations", F.col("group")), F.lit(False))
    carries = (F.col("several") == 1) & (F.col("bytes") >= F.col("payload")) & F.col("received_ns").isNotNull()
    return known.select(
        "run",
        "message",
        "process",
        "group",
        "end",
        "destinations",
        (mine | (F.col("process") == F.col("sender"))).alias("concerned"),
        (carries & (F.col("end") == "target")).alias("got_payload"),
    )


def audit_processes(ends: DataFrame, processes: DataFrame) -> DataFrame:
    """Per process: ends of packets about messages, and those about messages that do not concern it."""
    found = ends.groupBy("run", "process").agg(
        F.count("*").alias("worked"),
        F.count(F.when(~F.col("concerned"), 1)).alias("worked_for_others"),
        F.countDistinct(F.when(~F.col("concerned"), F.col("message"))).alias("messages_of_others"),
    )
    known = processes.select("run", "process", "group", "region").join(found, ["run", "process"], "left")
    known = known.fillna(0, ["worked", "worked_for_others", "messages_of_others"])
    return known.select(
        "run",
        "process",
        "group",
        "region",
        "worked",
        "worked_for_others",
        F.when(F.col("worked") > 0, F.col("worked_for_others") / F.col("worked")).alias("share_for_others"),
        "messages_of_others",
    )


def measure_work(ends: DataFrame) -> DataFrame:
    """The audit as a matrix: packets that a group's processes handled about messages for another group."""
    spread = ends.where(F.col("group").isNotNull()).select(
        "run", "group", F.explode("destinations").alias("for_group"), "concerned"
    )
    found = spread.groupBy("run", "group", "for_group").agg(
        F.count("*").alias("worked"), F.count(F.when(~F.col("concerned"), 1)).alias("worked_as_stranger")
    )
    return found.select("run", "group", "for_group", "worked", "worked_as_stranger")


def measure_overhead(ends: DataFrame, delivered: DataFrame) -> DataFrame:
    """Payload overhead per group: the share of messages whose payload it received without being a destination."""
    got = ends.where(F.col("got_payload") & F.col("group").isNotNull()).select("run", "group", "message")
    had = delivered.select("run", "group", "message")
    received = got.unionByName(had).distinct().groupBy("run", "group").agg(F.count("*").alias("received"))
    own = had.distinct().groupBy("run", "group").agg(F.count("*").alias("delivered"))
    joined = received.join(own, ["run", "group"], "left").fillna(0, ["delivered"])
    return joined.select(
        "run", "group", "received", "delivered", (1 - F.col("delivered") / F.col("received")).alias("overhead")
    )
