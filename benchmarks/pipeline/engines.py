"""The same checks in DuckDB and in Polars, as a skilled user would write them, on the same files.

    integrity   every message at most once at each process, at addressed processes only, at all correct ones (P1-P3)
    replicas    the replicas of a group deliver one sequence, prefixes where they crashed (P4 inside groups), and
                nothing before it was multicast (P1)
    order       the rank grows along every sequence and is one per message, so the order is acyclic (P4, P5)
    packets     every packet about a message runs between its sender and its destinations (P6')
    stated      deliveries and packets state the sender, destinations and time that the multicasts have: `packets` and
                `replicas` believe them

The Spark check does the last one as part of the others, and judges real-time order (P9) besides. They rely on
properties of this trace: a rank for `order`, at most 63 processes for `integrity`. The Spark check needs neither.
Each check returns the number of rows that violate it.
"""

from collections.abc import Callable
from pathlib import Path

GROUPS, REPLICAS = 12, 3
CORRECT = sum(1 << p for p in range(GROUPS * REPLICAS) if p not in (4, 19))


def duckdb_checks(folder: Path, threads: int) -> dict[str, Callable[[], int]]:
    import duckdb

    base = duckdb.connect()
    base.execute(f"set threads = {threads}")
    base.execute("set memory_limit = '4GB'")
    base.execute("set preserve_insertion_order = false")

    def count(query: str) -> int:
        for table in ("deliveries", "multicasts", "packets"):
            query = query.replace(f"<{table}>", f"read_parquet('{folder}/{table}/*.parquet')")
        row = base.execute(query).fetchone()
        assert row is not None
        return int(row[0] or 0)

    return {
        "integrity": lambda: count(f"""
            with delivered as (
                select message, count(*) as n, bit_or(1::ubigint << process) as mask from <deliveries> group by message
            ), addressed as (
                select message, list_reduce(list_transform(destinations,
                    lambda g: {(1 << REPLICAS) - 1}::ubigint << ({REPLICAS} * g)), lambda a, b: a | b) as mask
                from <multicasts>
            )
            select count(*) from addressed a full join delivered d using (message)
            where a.mask is null or d.mask is null or d.n <> bit_count(d.mask)
               or (d.mask & ~a.mask) <> 0 or (a.mask & {CORRECT}::ubigint & ~d.mask) <> 0"""),
        "replicas": lambda: count("""
            select count(*) from (select 1 from <deliveries> group by "group", position
                                  having min(message) <> max(message) or min(at_ns - multicast_ns) < 0)"""),
        "order": lambda: count("""
            select (select count(*) from (
                        select (rank_time, rank_tie) <= lag((rank_time, rank_tie))
                               over (partition by process order by position) as wrong from <deliveries>)
                    where wrong)
                 + (select count(*) from (select 1 from <deliveries> group by message
                    having min(rank_time) <> max(rank_time) or min(rank_tie) <> max(rank_tie)))"""),
        "packets": lambda: count(f"""
            select count(*) from <packets>
            where not (source = sender or (source < {GROUPS * REPLICAS}
                       and list_contains(destinations, (source // {REPLICAS})::int)))
               or not (target = sender or (target < {GROUPS * REPLICAS}
                       and list_contains(destinations, (target // {REPLICAS})::int)))"""),
        "stated": lambda: count("""
            select (select count(*) from <deliveries> d join <multicasts> m using (message)
                    where d.multicast_ns <> m.at_ns or d.destinations <> m.destinations)
                 + (select count(*) from <packets> p join <multicasts> m using (message)
                    where p.sender <> m.sender or p.destinations <> m.destinations)"""),
    }


def polars_order(folder: Path) -> int:
    """Rows whose rank does not grow, and messages with several ranks."""
    import polars as pl

    # The files are sorted by position inside one file per process, so that a shift over each file is enough.
    wrong = 0
    for file in sorted(Path(f"{folder}/deliveries").glob("*.parquet")):
        rank = pl.scan_parquet(file).select("rank_time", "rank_tie")
        time, tie = pl.col("rank_time"), pl.col("rank_tie")
        back = (time < time.shift(1)) | ((time == time.shift(1)) & (tie <= tie.shift(1)))
        wrong += int(rank.select(back.sum()).collect(engine="streaming").item() or 0)
    several = (
        pl.scan_parquet(f"{folder}/deliveries/*.parquet")
        .group_by("message")
        .agg(
            pl.col("rank_time").min().alias("a"),
            pl.col("rank_time").max().alias("b"),
            pl.col("rank_tie").min().alias("c"),
            pl.col("rank_tie").max().alias("d"),
        )
    )
    differing = several.filter((pl.col("a") != pl.col("b")) | (pl.col("c") != pl.col("d")))
    return wrong + int(differing.select(pl.len()).collect(engine="streaming").item())


def polars_checks(folder: Path) -> dict[str, Callable[[], int]]:
    import polars as pl

    def scan(table: str) -> pl.LazyFrame:
        return pl.scan_parquet(f"{folder}/{table}/*.parquet")

    def count(frame: pl.LazyFrame) -> int:
        return int(frame.select(pl.len()).collect(engine="streaming").item())

    def bit(column: pl.Expr, base: int = 1) -> pl.Expr:
        return pl.lit(base, pl.Int64) * pl.lit(2, pl.Int64).pow(column)

    def integrity() -> int:
        delivered = (
            scan("deliveries")
            .group_by("message")
            .agg(pl.len().alias("n"), bit(pl.col("process")).bitwise_or().alias("mask"))
        )
        addressed = (
            scan("multicasts")
            .select("message", "destinations")
            .explode("destinations")
            .group_by("message")
            .agg(bit(pl.col("destinations") * REPLICAS, (1 << REPLICAS) - 1).bitwise_or().alias("wanted"))
        )
        joined = addressed.join(delivered, on="message", how="full", coalesce=True)
        mask, wanted = pl.col("mask"), pl.col("wanted")
        return count(
            joined.filter(
                mask.is_null()
                | wanted.is_null()
                | (pl.col("n") != mask.bitwise_count_ones())
                | ((mask & ~wanted) != 0)
                | ((wanted & CORRECT & ~mask) != 0)
            )
        )

    def replicas() -> int:
        grouped = (
            scan("deliveries")
            .group_by("group", "position")
            .agg(
                pl.col("message").min().alias("low"),
                pl.col("message").max().alias("high"),
                (pl.col("at_ns") - pl.col("multicast_ns")).min().alias("took"),
            )
        )
        return count(grouped.filter((pl.col("low") != pl.col("high")) | (pl.col("took") < 0)))

    def packets() -> int:
        def inside(end: str) -> pl.Expr:
            member = (pl.col(end) < GROUPS * REPLICAS) & pl.col("destinations").list.contains(pl.col(end) // REPLICAS)
            return (pl.col(end) == pl.col("sender")) | member

        return count(scan("packets").filter(~(inside("source") & inside("target"))))

    def stated() -> int:
        sent = scan("multicasts").select("message", "destinations", "sender", pl.col("at_ns").alias("multicast_ns"))
        wrong = 0
        for table, columns in (
            ("deliveries", ("multicast_ns", "destinations")),
            ("packets", ("sender", "destinations")),
        ):
            both = scan(table).select("message", *columns).join(sent, on="message")
            wrong += count(both.filter(pl.any_horizontal(pl.col(c) != pl.col(f"{c}_right") for c in columns)))
        return wrong

    return {
        "integrity": integrity,
        "replicas": replicas,
        "order": lambda: polars_order(folder),
        "packets": packets,
        "stated": stated,
    }
