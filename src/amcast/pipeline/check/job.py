"""`amcast check DIR --engine spark`: P1 to P8 over traces of any size, many runs at once.

Small runs are judged whole, several in one task. A large run is judged by many tasks, each reading its share; if its
deliveries are not laid out for that, they are sorted to scratch first. Verdicts and stories are the plain checker's.
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
from amcast.check.verdict import EXIT_CODES, Report, Verdict
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.check.examination import Call, Examination, PositionGapError, UnsortedRowsError
from amcast.pipeline.check.run_view import (
    LOOKUP_MESSAGES,
    Table,
    filed_table,
    filed_view,
    kept_tables,
    kept_view,
    plain_run,
)
from amcast.pipeline.rows.compaction import footers
from amcast.pipeline.rows.completion import completed, in_sequence
from amcast.pipeline.rows.files import SMALL_BYTES, Source, Span, filesystem, opened, parts, size_of, sources, spans
from amcast.pipeline.rows.schemas import frame
from amcast.pipeline.rows.sequences import FiledSequences, separate
from amcast.pipeline.rows.sort import sort_stretch, stretches
from amcast.pipeline.spark.progress import progress
from amcast.pipeline.spark.session import is_local, session
from amcast.pipeline.spark.tasks import spark_runner
from amcast.trace.meta import Meta

SMALL_ROWS: Final = 3_000_000
"""A folder with fewer rows than this is judged in one task."""
RAGGED_ROWS: Final = 2_000_000
"""Up to so many deliveries, a trace with holes goes to the plain checker, which uses every row of it."""
TASK_ROWS: Final = 1_000_000


@dataclass(frozen=True)
class CheckLimits:
    """Where small ends. Tests lower it to send small runs down the road of large ones."""

    small_rows: int = SMALL_ROWS
    ragged_rows: int = RAGGED_ROWS


def check(
    folder: str, master: str | None = None, scratch: str | None = None, limits: CheckLimits | None = None
) -> dict[str, Any]:
    """Judge every run at or below a folder.

    {"verdict": ..., "runs": [report, ...]}: each report is what the plain checker gives as JSON, the runs in order of
    their folders; the verdict is the worst of them.
    """
    limits = limits or CheckLimits()
    found = sources(str(folder))
    with session(master, brief=size_of(found) < SMALL_BYTES) as spark, progress(spark, "checking"):
        rows = {folder: sum(tables.values()) for folder, tables in footers(spark, found).items()}
        small = [source for source in found if rows[source.folder] <= limits.small_rows]
        reports = _judge_small(spark, small, rows, limits)
        for source in found:
            if source.folder not in reports:
                with _scratch(scratch, source, master) as place:
                    reports[source.folder] = _judge_large(spark, source, place, limits)
    every = [report for source in found for report in reports[source.folder]]
    return {"verdict": worst_verdict([report["verdict"] for report in every]), "runs": every}


def worst_verdict(verdicts: list[Verdict]) -> Verdict:
    """Violated if one is, else unknown if one is, else holds."""
    for verdict in ("violated", "unknown"):
        if verdict in verdicts:
            return verdict
    return "holds"


def exit_code(answer: dict[str, Any]) -> int:
    return EXIT_CODES[answer["verdict"]]


# Small runs


def _judge_small(
    spark: SparkSession, small: list[Source], rows: dict[str, int], limits: CheckLimits
) -> dict[str, list[dict[str, Any]]]:
    """Judge folders whole: the big ones first, the little ones many to a task."""
    if not small:
        return {}
    tasks = max(1, min(len(small), max(4 * spark.sparkContext.defaultParallelism, sum(rows.values()) // TASK_ROWS)))
    shares: list[tuple[int, list[Source]]] = [(0, []) for _ in range(tasks)]
    for source in sorted(small, key=lambda source: -rows[source.folder]):
        load, mine = shares[0]
        mine.append(source)
        # A folder costs about as much to open as some thousand rows to judge.
        shares[0] = (load + rows[source.folder] + 5000, mine)
        shares.sort(key=lambda share: share[0])
    calls: list[Call] = [(judge_folders, (mine, limits.ragged_rows)) for _, mine in reversed(shares) if mine]
    answers = spark_runner(spark)(calls)
    return {folder: reports for answer in answers for folder, reports in answer.items()}


def judge_folders(found: list[Source], ragged_rows: int) -> dict[str, list[dict[str, Any]]]:
    """The reports of some small folders."""
    return {
        source.folder: [judge_kept(source, meta, tables, ragged_rows).as_dict() for meta, tables in kept_tables(source)]
        for source in found
    }


def judge_kept(source: Source, meta: Meta, tables: dict[str, Any], ragged_rows: int) -> Report:
    has_packets = "packets" in source.tables
    try:
        return Examination(kept_view(meta, tables, has_packets, source.folder), ragged_rows=ragged_rows).report()
    except PositionGapError:
        return judge(plain_run(meta, tables, has_packets))


# Large runs


def _judge_large(spark: SparkSession, source: Source, scratch: str, limits: CheckLimits) -> list[dict[str, Any]]:
    reports = []
    for meta in source.metas:
        mine = _alone(spark, source, meta, scratch)
        try:
            report = _examined(spark, mine, meta, scratch, limits)
        except PositionGapError:
            ((_, tables),) = kept_tables(mine)
            report = judge(plain_run(meta, tables, "packets" in mine.tables))
        reports.append(report.as_dict())
    return reports


def _examined(spark: SparkSession, source: Source, meta: Meta, scratch: str, limits: CheckLimits) -> Report:
    """Judge the files as they are, if they are laid out for it; else, or if that was a mistake, after sorting them."""
    found = spans(source.tables["deliveries"])
    filed_table(source, "deliveries", meta.run)
    if _states_all(source) and separate(found):
        try:
            view = filed_view(source, meta, FiledSequences(found), in_order=False)
            return Examination(view, spark_runner(spark), limits.ragged_rows).report()
        except UnsortedRowsError:
            pass
    view = filed_view(source, meta, _sequences(spark, source, meta, found, scratch), in_order=True)
    return Examination(view, spark_runner(spark), limits.ragged_rows).report()


def _alone(spark: SparkSession, source: Source, meta: Meta, scratch: str) -> Source:
    """A folder that holds this run only: itself, or its share of shared tables, written to scratch."""
    if len(source.metas) == 1:
        return source
    place = f"{scratch}/alone-{source.metas.index(meta)}"
    for table in source.tables:
        rows = frame(spark, [source], table)
        rows.where(rows["run"] == meta.run).write.parquet(f"{place}/{table}")
    return Source(source.folder, (meta,), {table: parts(f"{place}/{table}") for table in source.tables})


def _sequences(spark: SparkSession, source: Source, meta: Meta, found: list[Span], scratch: str) -> FiledSequences:
    """The run's deliveries sorted to scratch; what they do not state is looked up, or joined by Spark."""
    multicasts = None if _states_all(source) else filed_table(source, "multicasts", meta.run)
    if multicasts is None or multicasts.rows <= LOOKUP_MESSAGES:
        written = _sorted(spark, found, multicasts, meta, f"{scratch}/sorted")
        if separate(written):
            return FiledSequences(written)
    joined = completed(frame(spark, [source], "deliveries"), frame(spark, [source], "multicasts"))
    rows = sum(span.rows for span in found)
    in_sequence(joined, max(1, rows // TASK_ROWS)).write.parquet(f"{scratch}/joined")
    ready = spans(parts(f"{scratch}/joined"))
    written = _sorted(spark, ready, None, meta, f"{scratch}/joined-sorted")
    if not separate(written):
        raise CannotTellError(
            f"{source.folder}: deliveries cannot be sorted by process and position; is a file changing?"
        )
    return FiledSequences(written)


def _sorted(spark: SparkSession, found: list[Span], multicasts: Table | None, meta: Meta, place: str) -> list[Span]:
    where, inner = filesystem(place)
    where.create_dir(inner)
    calls: list[Call] = [
        (sort_stretch, (pieces, multicasts, meta.run, f"{place}/part-{number:05}.parquet"))
        for number, pieces in enumerate(stretches(found))
    ]
    return [span for answer in spark_runner(spark)(calls) for span in answer]


def _states_all(source: Source) -> bool:
    """Do all deliveries state destinations and time of multicast?"""
    for path in source.tables["deliveries"]:
        meta = opened(path).metadata
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
def _scratch(given: str | None, source: Source, master: str | None) -> Iterator[str]:
    """A place that every worker can write to: given, or on one machine a temporary folder, or beside the run."""
    if given is None and not is_local(master):
        given = f"{source.folder}/.scratch"
    if given is None:
        with tempfile.TemporaryDirectory(prefix="amcast-check-") as place:
            yield place
        return
    where, inner = filesystem(given)
    if where.get_file_info(inner).is_file:
        raise UsageError(f"--scratch {given}: a file; expected a folder")
    place = f"{given}/check-{uuid4().hex[:12]}"
    where.create_dir(filesystem(place)[1])
    try:
        yield place
    finally:
        if "://" in place:
            where.delete_dir(filesystem(place)[1])
        else:
            shutil.rmtree(place, ignore_errors=True)
