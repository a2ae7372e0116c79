"""A campaign: seeds of many protocols and fault classes run in Spark tasks, every result one row.

    DIR/campaign.json                                      says that the folder is a campaign's
    DIR/runs/source=DIGEST/protocol=NAME/*.parquet         one row per seed
    DIR/journal/*.jsonl                                    results that are not in the table yet

A task runs a block of seeds and appends each result to its journal at once. A campaign that is started again skips the
seeds that have a final result for the same sources. Blocks go through Spark in waves, and the journal of a wave is
merged into the table when it ends. DIR must be a folder that all workers see.
"""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.dataset as pads
import pyarrow.parquet as pq
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.pipeline.spark.progress import show_progress
from amcast.pipeline.spark.tasks import freeze_garbage
from amcast.pipeline.sweep.journal import JournalCounter, read_journal
from amcast.pipeline.sweep.worker import ChildWorker, WorkOutcome

RunSeed = Callable[[tuple[str, str, int]], dict[str, Any]]
"""(protocol, fault class, seed) -> row: passed in, because the pipeline knows no protocol."""

FINAL: Final = ("holds", "violated", "stuck", "error")
"""The same seed would end the same way again. The other statuses may be caused by a machine and are tried again."""
BLOCK: Final = 20
"""Seeds per task: some seconds of work."""
WAVE: Final = 512
"""Tasks per job of Spark; then the journal is merged."""

_LONG, _TEXT = pa.int64(), pa.string()
RUNS: Final = pa.schema(
    [
        ("source", _TEXT),
        ("protocol", _TEXT),
        ("faults", _TEXT),
        ("seed", _LONG),
        ("commit", _TEXT),
        ("status", _TEXT),
        ("story", _TEXT),
        ("steps", _LONG),
        ("messages", _LONG),
        ("real_log", pa.bool_()),
        ("fired", pa.map_(_TEXT, _LONG)),
        ("reached", pa.map_(_TEXT, _LONG)),
        ("cpu_s", pa.float64()),
    ]
)
_PARTITIONS: Final = pads.partitioning(pa.schema([("source", _TEXT), ("protocol", _TEXT)]), flavor="hive")


@dataclass(frozen=True)
class CampaignSettings:
    """How a campaign is run, and what its rows say of the sources."""

    out: Path
    source: str
    commit: str
    timeout_s: float = 120.0
    """How long one seed may take."""
    until: float | None = None
    """Tasks that begin after this time of the clock run nothing."""


@dataclass(frozen=True)
class SeedBlock:
    """The seeds of one task."""

    protocol: str
    faults: str
    seeds: tuple[int, ...]


def prepare_folder(out: Path) -> None:
    """Makes the folder a campaign's folder; refuses one that holds something else."""
    if out.exists() and not out.is_dir():
        raise UsageError(f"--out {out}: a file; expected a folder")
    marker = out / "campaign.json"
    if out.is_dir() and any(out.iterdir()) and not marker.is_file():
        raise UsageError(
            f"--out {out}: not empty and no campaign; expected a new folder, or the folder of a campaign to continue"
        )
    try:
        (out / "journal").mkdir(parents=True, exist_ok=True)
        marker.write_text(json.dumps({"schema": 1}) + "\n")
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None


def find_pending(
    settings: CampaignSettings, classes: Sequence[tuple[str, str]], seeds: Sequence[int]
) -> list[SeedBlock]:
    """The blocks of seeds that have no final result yet. All classes advance together, so that a campaign that is
    interrupted has run about the same seeds of each."""
    known: dict[tuple[str, str], set[int]] = {one: set() for one in classes}
    for row in iterate_runs(settings.out, settings.source, ("faults", "seed", "status")):
        if row["status"] in FINAL and (row["protocol"], row["faults"]) in known:
            known[row["protocol"], row["faults"]].add(row["seed"])
    blocks = []
    for start in range(0, len(seeds), BLOCK):
        for protocol, faults in classes:
            left = tuple(seed for seed in seeds[start : start + BLOCK] if seed not in known[protocol, faults])
            if left:
                blocks.append(SeedBlock(protocol, faults, left))
    return blocks


def run_blocks(spark: SparkSession, blocks: Sequence[SeedBlock], run_seed: RunSeed, settings: CampaignSettings) -> None:
    """Runs blocks in Spark tasks, in waves. The results are in the table when this returns, and in table and journal
    as far as it got otherwise."""
    total = sum(len(block.seeds) for block in blocks)
    done = 0
    for start in range(0, len(blocks), WAVE):
        if settings.until is not None and time.time() >= settings.until:
            return
        wave = list(blocks[start : start + WAVE])
        count = _make_counter(settings.out, done, total)
        with show_progress(spark, "campaign", count=count, unit="seeds"):
            frame = spark.range(0, len(wave), 1, len(wave)).mapInArrow(make_task(wave, run_seed, settings), "runs long")
            done += sum(row.runs for row in frame.collect())
        merge_journal(settings.out)


def _make_counter(out: Path, before: int, total: int) -> Callable[[], tuple[int, int]]:
    written = JournalCounter(out / "journal")
    return lambda: (before + written(), total)


def make_task(
    blocks: Sequence[SeedBlock], run_seed: RunSeed, settings: CampaignSettings
) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    """The function of a Spark task: it runs one block."""

    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_garbage()
        for batch in batches:
            counts = [_run_in_worker(blocks[number], run_seed, settings) for number in batch.column(0).to_pylist()]
            yield pa.RecordBatch.from_pydict({"runs": pa.array(counts, pa.int64())})

    return work


_child = ChildWorker()
"""One per Python worker of Spark; it outlives the task, as the worker does."""


def _run_in_worker(block: SeedBlock, run_seed: RunSeed, settings: CampaignSettings) -> int:
    """Runs a block in the child of this Python worker. Spark pickles a task with the objects that it names, and a
    function of a module by its name: a task that named the child would bring one of its own, and leave it behind."""
    return run_block(block, run_seed, settings, _child)


def run_block(block: SeedBlock, run_seed: RunSeed, settings: CampaignSettings, child: ChildWorker) -> int:
    """Runs the seeds of a block in a child process and appends each row to a journal at once; returns how many ran. A
    block that begins too late runs nothing, and one that is too slow ends early."""
    name = blake2b(f"{settings.source} {block}".encode(), digest_size=10).hexdigest()
    ran = 0
    with (settings.out / "journal" / f"{name}.jsonl").open("ab") as journal:
        for seed in block.seeds:
            if settings.until is not None and time.time() >= settings.until:
                break
            (outcome,) = child.run_items(run_seed, [(block.protocol, block.faults, seed)], settings.timeout_s)
            journal.write(b"\n" * (ran == 0 and journal.tell() > 0))  # ends what a killed task left incomplete
            journal.write(json.dumps(build_row(block, seed, outcome, settings), ensure_ascii=False).encode() + b"\n")
            journal.flush()
            ran += 1
    return ran


def build_row(block: SeedBlock, seed: int, outcome: WorkOutcome, settings: CampaignSettings) -> dict[str, Any]:
    """One line of the journal."""
    result = outcome.value if outcome.status == "done" else {"status": outcome.status, "story": outcome.message}
    own = {"source": settings.source, "commit": settings.commit, "protocol": block.protocol, "faults": block.faults}
    return {**own, "seed": seed, **result}


# From the journal to the table


def merge_journal(out: Path) -> None:
    """Merges the journal into the table. It can be repeated after an interruption: equal rows make equal files."""
    files = sorted((out / "journal").glob("*.jsonl"))
    parts: dict[tuple[str, str], dict[tuple[str, int], dict[str, Any]]] = {}
    for file in files:
        for row in read_journal(file):
            rows = parts.setdefault((row["source"], row["protocol"]), {})
            known = rows.get((row["faults"], row["seed"]))
            if known is None or known["status"] not in FINAL:
                rows[row["faults"], row["seed"]] = row
    for (source, protocol), rows in sorted(parts.items()):
        folder = out / "runs" / f"source={source}" / f"protocol={protocol}"
        folder.mkdir(parents=True, exist_ok=True)
        ordered = [_to_schema(rows[key]) for key in sorted(rows)]
        name = blake2b(repr(sorted(rows)).encode(), digest_size=10).hexdigest()
        table = pa.Table.from_pylist(ordered, RUNS).drop_columns(["source", "protocol"])
        pq.write_table(table, folder / f".{name}", compression="zstd")
        (folder / f".{name}").rename(folder / f"part-{name}.parquet")
    for file in files:
        file.unlink()


def _to_schema(row: Mapping[str, Any]) -> dict[str, Any]:
    plain = {name: row.get(name) for name in RUNS.names}
    for name in ("fired", "reached"):
        plain[name] = sorted((row.get(name) or {}).items())
    return plain


def iterate_runs(out: Path, source: str, columns: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """The rows of a source that are in the table or still in the journal; all columns if none is named. A seed whose
    first try met a timeout or a crash of its worker may have two rows."""
    names = ["protocol", *columns] if columns else [name for name in RUNS.names if name != "source"]
    folder = out / "runs" / f"source={source}"
    if folder.is_dir():
        try:
            for batch in pads.dataset(out / "runs", schema=RUNS, format="parquet", partitioning=_PARTITIONS).to_batches(
                columns=names, filter=pads.field("source") == source
            ):
                yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{folder}: {str(error).splitlines()[0]}; expected the table of a campaign") from None
    for file in sorted((out / "journal").glob("*.jsonl")):
        for row in read_journal(file):
            if row["source"] == source:
                plain = _to_schema(row)
                yield {name: plain[name] for name in names}
