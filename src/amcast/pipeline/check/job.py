"""`amcast check DIR --engine spark`: P1 to P9 over traces of any size, many runs at once.

Small runs are judged whole, several in one task. A large run is judged by many tasks, each reading its share; if its
deliveries are not laid out for that, they are sorted to a scratch folder first. Verdicts and stories are the plain
checker's.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import SparkSession

from amcast.check import judge
from amcast.check.verdict import EXIT_CODES, Report, worst_verdict
from amcast.kernel.errors import CannotTellError
from amcast.pipeline.check.examination import Examination, PositionGapError, UnsortedRowsError
from amcast.pipeline.check.run_view import (
    build_file_view,
    build_memory_view,
    load_runs,
    refuse_other_groups,
    to_plain_run,
)
from amcast.pipeline.check.runner import Call, Runner
from amcast.pipeline.check.segments import SEGMENT_ENTRIES
from amcast.pipeline.check.surveyed_run import PACKET_ROWS
from amcast.pipeline.kernels.fingerprints import BUCKETS, find_buckets
from amcast.pipeline.rows.completion import complete_deliveries, sort_deliveries
from amcast.pipeline.rows.files import (
    SMALL_BYTES,
    TraceFolder,
    find_trace_folders,
    list_parquet_files,
    open_scratch,
    resolve_filesystem,
    sum_file_bytes,
)
from amcast.pipeline.rows.folder_tasks import read_all_footers, share_folders
from amcast.pipeline.rows.footers import (
    Footers,
    ProvenTables,
    RowGroup,
    count_table_rows,
    prove_tables,
    read_footers,
    read_written_row_groups,
    split_row_groups,
)
from amcast.pipeline.rows.isolation import isolate_run
from amcast.pipeline.rows.sequences import FileSequences, are_separated
from amcast.pipeline.rows.sort import COLUMNS, copy_columns, refuse_stated, sort_stretch, split_stretches
from amcast.pipeline.rows.tables import LOOKUP_MESSAGES, MessageLookup, Table, index_table
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
    segment_entries: int = SEGMENT_ENTRIES
    """Entries of all chains that one task merges."""
    packet_rows: int = PACKET_ROWS
    """Packets that one task judges."""


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
        footers = read_all_footers(make_spark_runner(spark), folders)
        rows = {folder: sum(count_table_rows(found).values()) for folder, found in footers.items()}
        small = [source for source in folders if rows[source.folder] <= limits.small_rows]
        reports = _judge_small(spark, small, rows, limits)
        for source in folders:
            if source.folder not in reports:
                with _scratch_folder(scratch, source, master) as place:
                    job = LargeRunJob(make_spark_runner(spark), place, limits, spark)
                    reports[source.folder] = job.judge(source, footers[source.folder])
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
    shares = share_folders(small, rows, spark.sparkContext.defaultParallelism)
    calls: list[Call] = [(judge_folders, (own, limits.gapped_rows)) for own in shares]
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
    try:
        view = build_memory_view(meta, tables, source.tables, source.folder)
        return Examination(view, gapped_rows=gapped_rows).report()
    except PositionGapError:
        return judge(to_plain_run(meta, tables, source.tables))


# Large runs


class LargeRunJob:
    """Judges the runs of a large folder by many calls. Without Spark, a run must not need a join."""

    def __init__(
        self, runner: Runner, scratch: str, limits: CheckLimits | None = None, spark: SparkSession | None = None
    ) -> None:
        self._runner = runner
        self._scratch = scratch
        self._limits = limits or CheckLimits()
        self._spark = spark

    def judge(self, source: TraceFolder, footers: Footers) -> list[dict[str, Any]]:
        """The reports of the folder's runs."""
        proven = prove_tables(self._runner, footers, [meta.run for meta in source.metas])
        if len(source.metas) == 1:
            return [self._judge_run(source, proven).as_dict()]
        reports = []
        for meta in source.metas:
            place = f"{self._scratch}/alone-{source.metas.index(meta)}"
            own = isolate_run(self._runner, source, proven.footers, meta, place)
            own_footers = {table: tuple(read_footers(table, files, [meta.run])) for table, files in own.tables.items()}
            reports.append(self._judge_run(own, prove_tables(self._runner, own_footers, [meta.run])).as_dict())
        return reports

    def _judge_run(self, source: TraceFolder, proven: ProvenTables) -> Report:
        (meta,) = source.metas
        try:
            return self._examine(source, proven, meta)
        except PositionGapError:
            ((_, tables),) = load_runs(source)
            return judge(to_plain_run(meta, tables, source.tables))

    def _examine(self, source: TraceFolder, proven: ProvenTables, meta: Meta) -> Report:
        """Judges the files as they are, if they are laid out for it; otherwise, or if their rows are unsorted, after
        sorting them.
        """
        row_groups = list(proven.footers["deliveries"])
        if all(one.states_all for one in row_groups) and are_separated(row_groups):
            try:
                return self._examine_sequences(source, proven, meta, FileSequences(row_groups), is_sorted=False)
            except UnsortedRowsError:
                pass
        sequences = self._prepare_sequences(source, proven.footers)
        return self._examine_sequences(source, proven, meta, sequences, is_sorted=True)

    def _examine_sequences(
        self, source: TraceFolder, proven: ProvenTables, meta: Meta, sequences: FileSequences, is_sorted: bool
    ) -> Report:
        view = build_file_view(source, proven.footers, meta, sequences, is_sorted)
        refuse_other_groups(proven.groups, view.group_of)
        limits = self._limits
        sizes = (limits.segment_entries, limits.packet_rows)
        return Examination(view, self._runner, limits.gapped_rows, self._scratch, *sizes).report()

    def _prepare_sequences(self, source: TraceFolder, footers: Footers) -> FileSequences:
        """The run's deliveries sorted to the scratch folder; missing columns are looked up, or joined by Spark."""
        row_groups = list(footers["deliveries"])
        has_all = all(one.states_all for one in row_groups)
        multicasts = None if has_all else index_table(footers, "multicasts")
        if multicasts is None or multicasts.rows <= LOOKUP_MESSAGES:
            written = self._sort(row_groups, multicasts, f"{self._scratch}/sorted")
            if are_separated(written):
                return FileSequences(written)
        joined = self._join_deliveries(footers, f"{self._scratch}/joining")
        written = self._sort(joined, None, f"{self._scratch}/joined-sorted")
        if not are_separated(written):
            raise CannotTellError(
                f"{source.folder}: deliveries cannot be sorted by process and position; is a file changing?"
            )
        return FileSequences(written)

    def _sort(self, row_groups: list[RowGroup], multicasts: Table | None, place: str) -> list[RowGroup]:
        where, inner = resolve_filesystem(place)
        where.create_dir(inner)
        calls: list[Call] = [
            (sort_stretch, (stretch, multicasts, f"{place}/part-{number:05}.parquet"))
            for number, stretch in enumerate(split_stretches(row_groups))
        ]
        return [one for answer in self._runner(calls) for one in answer]

    def _join_deliveries(self, footers: Footers, place: str) -> list[RowGroup]:
        """Deliveries with the columns of their multicasts, joined and sorted by Spark's engine."""
        assert self._spark is not None, "only a session can join"
        frames = []
        for table, columns in (("deliveries", COLUMNS), ("multicasts", ["message", "destinations", "at_ns"])):
            where, inner = resolve_filesystem(f"{place}/{table}")
            where.create_dir(inner)
            calls: list[Call] = [
                (copy_columns, (table, share, columns, f"{place}/{table}/part-{number:05}.parquet"))
                for number, share in enumerate(split_row_groups(footers[table]))
            ]
            self._runner(calls)
            frames.append(self._spark.read.parquet(f"{place}/{table}"))
        rows = sum(one.rows for one in footers["deliveries"])
        complete = sort_deliveries(complete_deliveries(*frames), max(1, rows // TASK_ROWS))
        complete.write.parquet(f"{place}/joined")
        wrong = self._spark.read.parquet(f"{place}/joined").where("contradicts").select("message").head()
        if wrong is not None:
            known = MessageLookup.build([index_table(footers, "multicasts")], find_buckets([wrong[0]], BUCKETS))
            for share in split_row_groups(footers["deliveries"]):
                refuse_stated(known, share)
        return read_written_row_groups(list_parquet_files(f"{place}/joined"))


@contextmanager
def _scratch_folder(given: str | None, source: TraceFolder, master: str | None) -> Iterator[str]:
    """A folder that every worker can write to: the given one, or a temporary one on one machine, or one inside the run
    folder.
    """
    if given is None and not is_local(master):
        given = f"{source.folder}/.scratch"
    with open_scratch(given, "check") as place:
        yield place
