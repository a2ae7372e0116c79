"""`amcast check DIR --engine spark`: P1 to P8 over traces of any size, many runs at once.

Small runs are judged whole, several in one task. A large run is judged by many tasks, each reading its share; if its
deliveries are not laid out for that, they are sorted to a scratch folder first. Verdicts and stories are the plain
checker's.
"""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final
from uuid import uuid4

from pyspark.sql import SparkSession

from amcast.check import judge
from amcast.check.verdict import EXIT_CODES, Report, worst_verdict
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.check.examination import Examination, PositionGapError, UnsortedRowsError
from amcast.pipeline.check.run_view import build_file_view, build_memory_view, load_runs, to_plain_run
from amcast.pipeline.check.runner import Call
from amcast.pipeline.rows.compaction import count_rows
from amcast.pipeline.rows.completion import complete_deliveries, sort_deliveries
from amcast.pipeline.rows.files import (
    SMALL_BYTES,
    RowGroup,
    TraceFolder,
    find_trace_folders,
    list_parquet_files,
    open_parquet,
    read_row_groups,
    resolve_filesystem,
    sum_file_bytes,
)
from amcast.pipeline.rows.schemas import read_frame
from amcast.pipeline.rows.sequences import FileSequences, are_separated
from amcast.pipeline.rows.sort import sort_stretch, split_stretches
from amcast.pipeline.rows.tables import LOOKUP_MESSAGES, Table, index_table
from amcast.pipeline.spark.progress import show_progress
from amcast.pipeline.spark.session import is_local, open_session
from amcast.pipeline.spark.tasks import make_spark_runner
from amcast.trace.meta import Meta

SMALL_ROWS: Final = 3_000_000
"""A folder with fewer rows than this is judged in one task."""
GAPPED_ROWS: Final = 2_000_000
"""A trace with gaps and at most this many deliveries goes to the plain checker, which uses every row of it."""
TASK_ROWS: Final = 1_000_000


@dataclass(frozen=True)
class CheckLimits:
    """The sizes up to which a run counts as small. Tests lower them to judge small runs in the way of large ones."""

    small_rows: int = SMALL_ROWS
    gapped_rows: int = GAPPED_ROWS


def check(
    folder: str, master: str | None = None, scratch: str | None = None, limits: CheckLimits | None = None
) -> dict[str, Any]:
    """Judges every run at or below a folder.

    {"verdict": ..., "runs": [report, ...]}: each report is the plain checker's JSON, the runs in order of their
    folders; the verdict is the worst of them.
    """
    limits = limits or CheckLimits()
    folders = find_trace_folders(str(folder))
    with open_session(master, brief=sum_file_bytes(folders) < SMALL_BYTES) as spark, show_progress(spark, "checking"):
        rows = {folder: sum(tables.values()) for folder, tables in count_rows(spark, folders).items()}
        small = [source for source in folders if rows[source.folder] <= limits.small_rows]
        reports = _judge_small(spark, small, rows, limits)
        for source in folders:
            if source.folder not in reports:
                with _scratch_folder(scratch, source, master) as place:
                    reports[source.folder] = _judge_large(spark, source, place, limits)
    every = [report for source in folders for report in reports[source.folder]]
    return {"verdict": worst_verdict([report["verdict"] for report in every]), "runs": every}


def exit_code_of(answer: dict[str, Any]) -> int:
    return EXIT_CODES[answer["verdict"]]


def load_kernels(_: int) -> None:
    """Loads the kernels in a worker, so that the first real call does not pay for it: importing this module does."""


# Small runs


def _judge_small(
    spark: SparkSession, small: list[TraceFolder], rows: dict[str, int], limits: CheckLimits
) -> dict[str, list[dict[str, Any]]]:
    """Judges folders whole: large ones first, small ones many to a task."""
    if not small:
        return {}
    tasks = max(1, min(len(small), max(4 * spark.sparkContext.defaultParallelism, sum(rows.values()) // TASK_ROWS)))
    shares: list[tuple[int, list[TraceFolder]]] = [(0, []) for _ in range(tasks)]
    for source in sorted(small, key=lambda source: -rows[source.folder]):
        load, own = shares[0]
        own.append(source)
        # Opening a folder costs about as much as judging some thousand rows.
        shares[0] = (load + rows[source.folder] + 5000, own)
        shares.sort(key=lambda share: share[0])
    calls: list[Call] = [(judge_folders, (own, limits.gapped_rows)) for _, own in reversed(shares) if own]
    answers = make_spark_runner(spark)(calls)
    return {folder: reports for answer in answers for folder, reports in answer.items()}


def judge_folders(folders: list[TraceFolder], gapped_rows: int) -> dict[str, list[dict[str, Any]]]:
    """The reports of some small folders."""
    return {
        source.folder: [judge_run(source, meta, tables, gapped_rows).as_dict() for meta, tables in load_runs(source)]
        for source in folders
    }


def judge_run(source: TraceFolder, meta: Meta, tables: dict[str, Any], gapped_rows: int) -> Report:
    """Judges one run in memory; a run with gaps is left to the plain checker."""
    has_packets = "packets" in source.tables
    try:
        return Examination(
            build_memory_view(meta, tables, has_packets, source.folder), gapped_rows=gapped_rows
        ).report()
    except PositionGapError:
        return judge(to_plain_run(meta, tables, has_packets))


# Large runs


def _judge_large(spark: SparkSession, source: TraceFolder, scratch: str, limits: CheckLimits) -> list[dict[str, Any]]:
    reports = []
    for meta in source.metas:
        own = _isolate_run(spark, source, meta, scratch)
        try:
            report = _examine(spark, own, meta, scratch, limits)
        except PositionGapError:
            ((_, tables),) = load_runs(own)
            report = judge(to_plain_run(meta, tables, "packets" in own.tables))
        reports.append(report.as_dict())
    return reports


def _examine(spark: SparkSession, source: TraceFolder, meta: Meta, scratch: str, limits: CheckLimits) -> Report:
    """Judges the files as they are, if they are laid out for it; otherwise, or if their rows are unsorted, after
    sorting them.
    """
    row_groups = read_row_groups(source.tables["deliveries"])
    index_table(source, "deliveries", meta.run)
    if _deliveries_state_all(source) and are_separated(row_groups):
        try:
            view = build_file_view(source, meta, FileSequences(row_groups), is_sorted=False)
            return Examination(view, make_spark_runner(spark), limits.gapped_rows).report()
        except UnsortedRowsError:
            pass
    view = build_file_view(source, meta, _prepare_sequences(spark, source, meta, row_groups, scratch), is_sorted=True)
    return Examination(view, make_spark_runner(spark), limits.gapped_rows).report()


def _isolate_run(spark: SparkSession, source: TraceFolder, meta: Meta, scratch: str) -> TraceFolder:
    """A folder that holds this run only: itself, or its share of shared tables, written to the scratch folder."""
    if len(source.metas) == 1:
        return source
    place = f"{scratch}/alone-{source.metas.index(meta)}"
    for table in source.tables:
        rows = read_frame(spark, [source], table)
        rows.where(rows["run"] == meta.run).write.parquet(f"{place}/{table}")
    return TraceFolder(
        source.folder, (meta,), {table: list_parquet_files(f"{place}/{table}") for table in source.tables}
    )


def _prepare_sequences(
    spark: SparkSession, source: TraceFolder, meta: Meta, row_groups: list[RowGroup], scratch: str
) -> FileSequences:
    """The run's deliveries sorted to the scratch folder; missing columns are looked up, or joined by Spark."""
    multicasts = None if _deliveries_state_all(source) else index_table(source, "multicasts", meta.run)
    if multicasts is None or multicasts.rows <= LOOKUP_MESSAGES:
        written = _sort_to_scratch(spark, row_groups, multicasts, meta, f"{scratch}/sorted")
        if are_separated(written):
            return FileSequences(written)
    joined = complete_deliveries(read_frame(spark, [source], "deliveries"), read_frame(spark, [source], "multicasts"))
    rows = sum(span.rows for span in row_groups)
    sort_deliveries(joined, max(1, rows // TASK_ROWS)).write.parquet(f"{scratch}/joined")
    ready = read_row_groups(list_parquet_files(f"{scratch}/joined"))
    written = _sort_to_scratch(spark, ready, None, meta, f"{scratch}/joined-sorted")
    if not are_separated(written):
        raise CannotTellError(
            f"{source.folder}: deliveries cannot be sorted by process and position; is a file changing?"
        )
    return FileSequences(written)


def _sort_to_scratch(
    spark: SparkSession, row_groups: list[RowGroup], multicasts: Table | None, meta: Meta, place: str
) -> list[RowGroup]:
    where, inner = resolve_filesystem(place)
    where.create_dir(inner)
    calls: list[Call] = [
        (sort_stretch, (pieces, multicasts, meta.run, f"{place}/part-{number:05}.parquet"))
        for number, pieces in enumerate(split_stretches(row_groups))
    ]
    return [span for answer in make_spark_runner(spark)(calls) for span in answer]


def _deliveries_state_all(source: TraceFolder) -> bool:
    """Whether all deliveries state destinations and time of multicast."""
    for path in source.tables["deliveries"]:
        meta = open_parquet(path).metadata
        places = {meta.schema.column(place).path.split(".")[0]: place for place in range(meta.num_columns)}
        if "destinations" not in places or "multicast_ns" not in places:
            return False
        for number in range(meta.num_row_groups):
            for name in ("destinations", "multicast_ns"):
                statistics = meta.row_group(number).column(places[name]).statistics
                if statistics is None or not statistics.has_null_count or statistics.null_count:
                    return False
    return True


@contextmanager
def _scratch_folder(given: str | None, source: TraceFolder, master: str | None) -> Iterator[str]:
    """A folder that every worker can write to: the given one, or a temporary one on one machine, or one inside the run
    folder.
    """
    if given is None and not is_local(master):
        given = f"{source.folder}/.scratch"
    if given is None:
        with tempfile.TemporaryDirectory(prefix="amcast-check-") as place:
            yield place
        return
    where, inner = resolve_filesystem(given)
    if where.get_file_info(inner).is_file:
        raise UsageError(f"--scratch {given}: a file; expected a folder")
    place = f"{given}/check-{uuid4().hex[:12]}"
    where.create_dir(resolve_filesystem(place)[1])
    try:
        yield place
    finally:
        if "://" in place:
            where.delete_dir(resolve_filesystem(place)[1])
        else:
            shutil.rmtree(place, ignore_errors=True)
