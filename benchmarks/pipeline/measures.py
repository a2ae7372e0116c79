"""`amcast measure` against DuckDB and Polars: the same tables of the same files, one after the other on one machine.

    python benchmarks/pipeline/measures.py --deliveries 1000000 10000000 --folder runs/bench

Each engine runs in a process of its own and measures the run twice; the second time is reported, so that the start of a
session, compilers and loaded kernels do not count. cpu is the processor time of the whole process tree, peak its memory
(proportional set size). On a machine that does other work too, compare cpu, not wall.

DuckDB and Polars make the steady part, latency by number of destinations, rank, response and group, routes, throughput,
packets, bodies, overhead, audit, work and fairness: counts, means and percentiles. They make no confidence intervals,
no CDF, and nothing about notes, convoys and recovery, which amcast makes too.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from run import Peak, cpu_seconds

ENGINES = ("amcast", "duckdb", "polars")
Work = Callable[[], float]
"""Makes all tables; returns the number of responses, in which the engines must agree."""

LATENCY = """count(*) as n, avg(latency) as mean, min(latency) as low, max(latency) as high,
             quantile_disc(latency, [0.5, 0.9, 0.95, 0.99]) as q"""
DUCKDB = {
    "sent": """select message, sender, destinations, len(destinations) as size, at_ns as sent_ns, bytes, low_ns,
               high_ns, at_ns between low_ns and high_ns as steady from <multicasts>, (select
               quantile_disc(at_ns, 0.1) as low_ns, quantile_disc(at_ns, 0.9) as high_ns from <multicasts>)""",
    "facts": """select d.message, d.process, d."group", d.at_ns, s.sent_ns, s.size, s.steady, s.sender, p.region,
                d.at_ns - s.sent_ns as latency, list_position(list_sort(s.destinations), d."group") as rank
                from <deliveries> d join sent s using (message) join <processes> p on p.process = d.process
                where list_contains(s.destinations, d."group")""",
    "answers": """select message, "group", min(at_ns) as at_ns, any_value(sent_ns) as sent_ns, any_value(size) as size,
                  any_value(rank) as rank, any_value(steady) as steady, any_value(sender) as sender,
                  min(at_ns) - any_value(sent_ns) as latency from facts group by message, "group" """,
    "turns": """select *, row_number() over (partition by message order by at_ns, "group") as turn from answers""",
    "done": """select message, max(at_ns) as at_ns, max(latency) as latency, any_value(sender) as sender,
               any_value(steady) as steady from answers group by message having count(*) = any_value(size)""",
    "by_size": f"select size, {LATENCY} from turns where steady group by size",
    "by_rank": f"select rank, {LATENCY} from turns where steady group by rank",
    "by_turn": f"select turn, {LATENCY} from turns where steady group by turn",
    "by_group": f'select "group", {LATENCY} from turns where steady group by "group"',
    "routes": f"""select p.region, t."group", {LATENCY} from turns t join <processes> p on p.process = t.sender
                  where steady group by p.region, t."group" """,
    "senders": f"""select p.region, {LATENCY} from done t join <processes> p on p.process = t.sender where steady
                   group by p.region""",
    "receivers": f"select region, {LATENCY} from facts where steady group by region",
    "throughput": """select 'd' as what, at_ns // 20000000 as slice, count(*) from facts group by all union all
                     select 'm', sent_ns // 20000000, count(*) from sent group by all union all
                     select 'c', at_ns // 20000000, count(*) from done group by all""",
    "ends": """select k.message, e.process, e.target, p."group", s.destinations,
               coalesce(list_contains(s.destinations, p."group"), false) or e.process = s.sender as concerned,
               e.target and k.bytes >= s.bytes and k.received_ns is not null as payload
               from <packets> k join sent s using (message),
               lateral (select k.source as process, false as target union all select k.target, true) e
               left join <processes> p on p.process = e.process""",
    "audit": """select process, count(*) as worked, count(*) filter (not concerned) as others,
                count(distinct message) filter (not concerned) as messages from ends group by process""",
    "work": """select "group", other, count(*), count(*) filter (not concerned) from (select "group", concerned,
               unnest(destinations) as other from ends where "group" is not null) group by "group", other""",
    "overhead": """select "group", count(*) from (
                       select "group", message from ends where payload and "group" is not null
                       union select "group", message from answers) group by "group" """,
    "packets": """select source, count(*), sum(bytes), count(*) filter (received_ns is null),
                  count(*) filter (sent_ns between l and h) from <packets>,
                  (select any_value(low_ns) as l, any_value(high_ns) as h from sent) group by source""",
    "received": "select target, count(*), sum(bytes) from <packets> where received_ns is not null group by target",
    "bodies": "select body, count(*), sum(bytes) from <packets> group by body",
}
SHARED = ("sent", "facts", "answers", "turns", "done")
"""Kept as tables, because several others need them; `ends` is a view, which three of them read."""


def measure_with_duckdb(folder: Path) -> Iterator[Work]:
    import duckdb

    def work() -> float:
        base = duckdb.connect()
        base.execute(f"set threads = {os.cpu_count()}")
        base.execute("set memory_limit = '4GB'")
        base.execute("set preserve_insertion_order = false")
        for name, query in DUCKDB.items():
            for table in ("deliveries", "multicasts", "packets", "processes"):
                query = query.replace(f"<{table}>", f"read_parquet('{folder}/{table}/*.parquet')")
            kind = "table" if name in SHARED else "view"
            if name in SHARED or name == "ends":
                base.execute(f"create {kind} {name} as {query}")
            else:
                base.execute(query).fetchall()
        row = base.execute("select count(*) from turns where steady").fetchone()
        assert row is not None
        return float(row[0])

    yield work


def measure_with_polars(folder: Path) -> Iterator[Work]:
    import polars as pl

    c, flow = pl.col, "streaming"

    def scan(table: str) -> pl.LazyFrame:
        return pl.scan_parquet(f"{folder}/{table}/*.parquet")

    def summarize(frame: pl.DataFrame, *keys: str) -> pl.DataFrame:
        latency = c("latency")
        shares = [latency.quantile(q, "equiprobable").alias(f"p{q}") for q in (0.5, 0.9, 0.95, 0.99)]
        spans = [latency.mean().alias("mean"), latency.min().alias("low"), latency.max().alias("high")]
        return frame.lazy().group_by(*keys).agg(pl.len(), *spans, *shares).collect(engine=flow)

    def work() -> float:
        at = scan("multicasts").select("at_ns").collect()["at_ns"]
        low, high = at.quantile(0.1, "equiprobable"), at.quantile(0.9, "equiprobable")
        regions = scan("processes").select("process", "region", member="group").collect()
        sent = scan("multicasts").select(
            "message", "sender", "destinations", payload="bytes", sent_ns="at_ns", size=c("destinations").list.len(),
            steady=c("at_ns").is_between(low, high),
        ).collect()  # fmt: skip
        facts = (
            scan("deliveries")
            .select("message", "process", "group", "at_ns")
            .join(sent.lazy().select("message", "destinations", "sent_ns", "steady"), on="message")
            .filter(c("destinations").list.contains(c("group")))
            .select("message", "process", "group", "at_ns", "steady", latency=c("at_ns") - c("sent_ns"))
            .collect(engine=flow)
        )
        first = facts.lazy().group_by("message", "group").agg(c("at_ns").min(), c("latency").min())
        answers = first.join(sent.lazy().select("message", "size", "sender", "steady"), on="message").collect(
            engine=flow
        )
        # Both orders inside a message by one sort each, which is cheaper than a window.
        answers = answers.sort("message", "group")
        answers = answers.with_columns(rank=pl.int_range(pl.len()).over("message") + 1)
        answers = answers.sort("message", "at_ns", "group").with_columns(
            turn=pl.int_range(pl.len()).over("message") + 1
        )
        steady = answers.filter("steady")
        for key in ("size", "rank", "turn", "group"):
            summarize(steady, key)
        summarize(steady.join(regions, left_on="sender", right_on="process"), "region", "group")
        stated = [c(name).first() for name in ("size", "sender", "steady")]
        whole = answers.lazy().group_by("message").agg(c("at_ns").max(), c("latency").max(), *stated, n=pl.len())
        done = whole.filter(c("n") == c("size")).collect(engine=flow)
        summarize(done.filter("steady").join(regions, left_on="sender", right_on="process"), "region")
        summarize(facts.filter("steady").join(regions, on="process"), "region")
        for frame, column in ((facts, "at_ns"), (sent, "sent_ns"), (done, "at_ns")):
            frame.group_by(c(column) // 20_000_000).len()
        measure_packets(sent, answers, regions, low, high)
        return float(len(steady))

    def measure_packets(
        sent: pl.DataFrame, answers: pl.DataFrame, regions: pl.DataFrame, low: float | None, high: float | None
    ) -> None:
        about = scan("packets").select("message", "source", "target", "bytes", "received_ns").join(
            sent.lazy().select("message", "sender", "destinations", "payload"), on="message"
        )  # fmt: skip
        ends = []
        for end in ("source", "target"):
            frame = about.join(regions.lazy().select("process", "member"), left_on=end, right_on="process", how="left")
            inside = c("destinations").list.contains(c("member")).fill_null(False)
            carries = pl.lit(end == "target") & (c("bytes") >= c("payload")) & c("received_ns").is_not_null()
            ends.append(
                frame.select(
                    "message",
                    "member",
                    "destinations",
                    process=c(end),
                    concerned=inside | (c(end) == c("sender")),
                    carries=carries,
                )
            )
        both = pl.concat(ends)
        strange = c("message").filter(~c("concerned"))
        both.group_by("process").agg(pl.len(), (~c("concerned")).sum(), n=strange.n_unique()).collect(engine=flow)
        known = both.filter(c("member").is_not_null())
        known.select("member", "destinations", "concerned").explode("destinations").group_by(
            "member", "destinations"
        ).agg(pl.len(), (~c("concerned")).sum()).collect(engine=flow)
        got = known.filter("carries").select("member", "message")
        had = answers.lazy().select(member="group", message="message")
        pl.concat([got, had]).unique().group_by("member").len().collect(engine=flow)
        packets = scan("packets")
        inside_span = c("sent_ns").is_between(low, high)
        packets.group_by("source").agg(
            pl.len(), c("bytes").sum(), lost=c("received_ns").is_null().sum(), steady=inside_span.sum()
        ).collect(engine=flow)
        packets.filter(c("received_ns").is_not_null()).group_by("target").agg(pl.len(), c("bytes").sum()).collect(
            engine=flow
        )
        packets.group_by("body").agg(pl.len(), c("bytes").sum()).collect(engine=flow)

    yield work


def measure_with_amcast(folder: Path) -> Iterator[Work]:
    import pyarrow.parquet as pq

    from amcast.pipeline.measure.job import measure
    from amcast.pipeline.spark.session import open_session

    with open_session() as spark, tempfile.TemporaryDirectory() as out:

        def work() -> float:
            measure(spark, str(folder), Path(out) / "measures")
            rows = pq.read_table(Path(out) / "measures" / "latency.parquet").to_pylist()
            return float(next(row["count"] for row in rows if row["by"] == "all"))

        yield work


def measure_here(engine: str, folder: Path) -> None:
    makers = {"amcast": measure_with_amcast, "duckdb": measure_with_duckdb, "polars": measure_with_polars}
    begun = time.monotonic()
    for work in makers[engine](folder):
        start = time.monotonic() - begun
        work()
        wall, cpu = time.monotonic(), cpu_seconds(os.getpid())
        with Peak() as peak:
            responses = work()
        line = {"wall": time.monotonic() - wall, "cpu": cpu_seconds(os.getpid()) - cpu, "mib": peak.mib, "start": start}
        print(json.dumps({**line, "responses": responses}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deliveries", type=int, nargs="+", default=[1_000_000, 10_000_000])
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--engines", choices=ENGINES, nargs="+", default=list(ENGINES))
    parser.add_argument("--here", choices=ENGINES, help="measure this engine in this process")
    options = parser.parse_args()
    if options.here:
        measure_here(options.here, options.folder)
        return
    import generate

    print("| deliveries | engine | wall s | CPU s | peak, GiB |", "|---:|---|---:|---:|---:|", sep="\n", flush=True)
    for deliveries in options.deliveries:
        folder = options.folder / f"{deliveries}"
        if not (folder / "run.json").exists():
            generate.generate(folder, deliveries)
        responses = set()
        for engine in options.engines:
            command = [sys.executable, str(Path(__file__)), "--here", engine, "--folder", str(folder)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            line = json.loads(done.stdout.splitlines()[-1])
            responses.add(line["responses"])
            numbers = f"{line['wall']:.1f} | {line['cpu']:.1f} | {line['mib'] / 1024:.1f}"
            print(f"| {deliveries:,} | {engine} | {numbers} |", flush=True)
        assert len(responses) == 1, f"the engines count other responses: {responses}"


if __name__ == "__main__":
    main()
