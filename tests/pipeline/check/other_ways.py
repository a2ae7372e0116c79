"""The same traces on the ways that do not judge every property: a watch, and the measures.

A watch gets the files of a trace in any order, as a run that is going on would write them. What it says about P1, P4
and P5 is compared with the brute force: it may know less, and then says "unknown"; it never says "holds" or "violated"
where that is wrong. The measures of a trace in one piece and in buckets are equal, and a damaged trace is refused.
"""

import math
from pathlib import Path
from random import Random
from typing import Any

from amcast.kernel.errors import UsageError
from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.measure.large_run import LargeRun
from amcast.pipeline.measure.small_run import MeasureSetting, measure_folders, read_members
from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.footers import prove_tables, read_footers
from amcast.pipeline.watch.job import RunWatcher
from tests.pipeline.check.brute_force import BruteForce, RefusedError
from tests.pipeline.check.trace_generator import WrittenTrace, strip_omitted

WATCHED = ("processes", "multicasts", "deliveries", "notes")
REFUSED = "refused"
MeasuredTables = dict[str, list[dict[str, Any]]]


def watch_files(trace: WrittenTrace, folder: Path) -> str:
    """What a watch says at the end about files that arrive one by one or many at once, in any order."""
    random = Random(f"watch {trace.seed}")
    files = [(table, str(file)) for table in WATCHED for file in sorted((folder / table).glob("*.parquet"))]
    random.shuffle(files)
    watcher = RunWatcher(trace.run, lambda status: None)
    while files:
        table = files[0][0]
        taken = [file for file in files[: random.randint(1, 4)] if file[0] == table]
        watcher.take_files(table, [path for _, path in taken])
        files = [file for file in files if file not in taken]
    if watcher.failure is None:
        try:
            watcher.finish()
        except UsageError:
            return REFUSED
    return REFUSED if watcher.failure is not None else watcher.snapshot.verdict


def judge_watched(trace: WrittenTrace) -> str:
    """The brute force's word on P1, P4 and P5 together, from the tables that a watch reads."""
    tables = {table: rows for table, rows in trace.tables.items() if table in WATCHED}
    seen = WrittenTrace(trace.seed, trace.run, tables, trace.claims, trace.clock_bound_ns, [], trace.omitted)
    if seen.is_damaged():
        return REFUSED
    try:
        verdicts = BruteForce(strip_omitted(seen), trace.claims, trace.clock_bound_ns).verdicts()
    except RefusedError:
        return REFUSED
    found = {verdicts[name] for name in ("P1", "P4", "P5")}
    return next(verdict for verdict in ("violated", "unknown", "holds") if verdict in found)


ALLOWED = {
    "violated": {"violated", "unknown"},
    "unknown": {"unknown"},
    "holds": {"holds", "unknown"},
    # A watch ends with the first certain violation, and may not have read what makes the trace refused.
    REFUSED: {REFUSED, "violated", "unknown"},
}


def find_wrong_watch(trace: WrittenTrace, folder: Path) -> str | None:
    """What is wrong about a watch's word, if anything."""
    wanted, found = judge_watched(trace), watch_files(trace, folder)
    return None if found in ALLOWED[wanted] else f"{found}; brute force: {wanted}"


def measure_both(folder: Path, setting: MeasureSetting) -> tuple[MeasuredTables, MeasuredTables]:
    """The tables of the whole run, and those of its buckets, of a dozen rows or so."""
    source = read_trace_folder(str(folder))
    runs = [meta.run for meta in source.metas]
    footers = {table: tuple(read_footers(table, files, runs)) for table, files in source.tables.items()}
    whole = measure_folders([(source, footers)], setting)
    proven, members = prove_tables(run_sequentially, footers, runs), read_members(source, runs[0])
    (folder / "scratch").mkdir()
    large = LargeRun(run_sequentially, str(folder / "scratch"), proven.footers, members, setting, task_rows=12)
    return whole, large.measure(runs[0])


def find_different_measures(whole: MeasuredTables, large: MeasuredTables) -> str | None:
    """The first row in which two measures of a run differ."""
    for table in sorted(whole.keys() | large.keys()):
        one, other = _sort_rows(whole.get(table, [])), _sort_rows(large.get(table, []))
        if len(one) != len(other):
            return f"table {table}: {len(one)} rows whole, {len(other)} in buckets"
        for a, b in zip(one, other, strict=True):
            if a.keys() != b.keys() or not all(_are_equal(a[name], b[name]) for name in a):
                return f"table {table}: {a} whole, {b} in buckets"
    return None


def find_wrong_measure(trace: WrittenTrace, folder: Path, setting: MeasureSetting) -> str | None:
    """What is wrong about the measures of a trace, if anything."""
    try:
        whole, large = measure_both(folder, setting)
    except UsageError:
        return None
    if trace.is_damaged():
        return "a damaged trace is measured"
    difference = find_different_measures(whole, large)
    return difference if difference is not None else find_wrong_count(trace, whole)


def find_wrong_count(trace: WrittenTrace, tables: MeasuredTables) -> str | None:
    """Whether the measured run has as many messages and deliveries as were recorded, each counted once."""
    sent: dict[int, set[int]] = {}
    for row in trace.tables["multicasts"]:
        sent.setdefault(row["message"], set(row["destinations"]))
    delivered = {
        (row["process"], row["message"])
        for row in trace.tables["deliveries"]
        if row["group"] in sent.get(row["message"], ())
    }
    if not sent:
        return None
    spans = tables["spans"][0]
    if spans["multicasts"] != len(sent):
        return f"{spans['multicasts']} multicasts; {len(sent)} messages were multicast"
    if spans["deliveries"] < len(delivered):
        return f"{spans['deliveries']} deliveries; {len(delivered)} were recorded"
    return None


def _sort_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr({name: v for name, v in row.items() if not isinstance(v, float)}))


def _are_equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return math.isclose(one, other, rel_tol=1e-6, abs_tol=1e-12) or (math.isnan(one) and math.isnan(other))
    return bool(one == other)
