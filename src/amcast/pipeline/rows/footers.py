"""What the footers of Parquet files say about their row groups, and what must be read because they do not say it.

A footer is read once per file, by tasks if there are many files. It has the number of rows, the range of each column,
and the number of nulls. From these follow, for most writers, that a row group has nothing that must be refused. Columns
of which that does not follow (other integer types than those of the trace, writers without statistics, lists with
nulls) are read once, before anything else reads the row group: so a large run is refused for the same reasons as a
small one, which is read whole.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amcast.kernel.errors import UsageError
from amcast.pipeline.check.runner import Call, Runner, run_sequentially
from amcast.pipeline.rows.files import TraceFolder, open_parquet
from amcast.trace.columns import TABLES, Column
from amcast.trace.meta import META_FILE
from amcast.trace.parquet import TYPES, check_schema, iterate_canonical

FILES_PER_TASK: Final = 256
"""Files whose footers one task reads."""
ROWS_PER_TASK: Final = 4_000_000
"""Rows whose unproven columns one task reads."""

Range = tuple[int, int]


@dataclass(frozen=True)
class RowGroup:
    """One row group of one table."""

    path: str
    row_group: int
    rows: int
    unproven: tuple[str, ...] = ()
    """Columns that must be read before they can be trusted."""
    ranges: dict[str, Range] = field(default_factory=dict)
    """The lowest and highest time of a row, and of deliveries process, group and position, where known."""
    states_all: bool = True
    """Of deliveries: whether every row states the destinations and the time of the multicast."""
    is_canonical: bool = True
    """Whether its types are those of the trace: Spark's own reader understands no others."""

    @property
    def process(self) -> Range:
        """Its lowest and its highest process."""
        return self.ranges["process"]

    @property
    def position(self) -> Range:
        """Its lowest and its highest position."""
        return self.ranges["position"]


Footers = dict[str, tuple[RowGroup, ...]]
"""table -> its row groups, in order."""


def read_footers(table: str, paths: Sequence[str], runs: Sequence[str]) -> list[RowGroup]:
    """The row groups of some files. Refuses files that are no tables of a trace."""
    found = []
    for path in paths:
        file = open_parquet(path)
        known = set(check_schema(table, path, file.schema_arrow))
        columns = [column for column in TABLES[table] if column.name in known]
        places = {file.metadata.schema.column(at).path.split(".")[0]: at for at in range(file.metadata.num_columns)}
        for number in range(file.metadata.num_row_groups):
            group = file.metadata.row_group(number)
            if group.num_rows:
                statistics = {column.name: group.column(places[column.name]).statistics for column in columns}
                found.append(_describe_row_group(table, path, number, group.num_rows, file, statistics, runs))
    return found


def _describe_row_group(
    table: str, path: str, number: int, rows: int, file: pq.ParquetFile, statistics: dict[str, Any], runs: Sequence[str]
) -> RowGroup:
    unproven = [
        column.name
        for column in TABLES[table]
        if column.name in statistics
        and not _is_proven(column, file.schema_arrow.field(column.name).type, statistics[column.name], runs)
    ]
    is_canonical = all(_is_canonical(file.schema_arrow.field(name).type, table, name) for name in statistics)
    ranges = {}
    for name in _RANGES.get(table, ()):
        if name not in unproven and (found := _read_range(statistics[name])) is not None:
            ranges[name] = found
    if table != "deliveries":
        return RowGroup(path, number, rows, tuple(unproven), ranges, is_canonical=is_canonical)
    if any(name not in ranges or ranges[name][0] != ranges[name][1] for name in ("process", "group")):
        # Whether each process states its own group is seen row by row.
        unproven += ["process", "group"]
    if "position" not in ranges:
        unproven.append("position")
    states_all = all(name in statistics and _count_nulls(statistics[name]) == 0 for name in _STATED)
    return RowGroup(path, number, rows, tuple(dict.fromkeys(unproven)), ranges, states_all, is_canonical)


_STATED: Final = ("destinations", "multicast_ns")
TIMES: Final = {"multicasts": "at_ns", "deliveries": "at_ns", "packets": "sent_ns"}
"""The column that says when a row of a table was written."""
_RANGES: Final = {name: (at,) for name, at in TIMES.items()} | {
    "deliveries": ("process", "group", "position", TIMES["deliveries"])
}


def _is_canonical(found: pa.DataType, table: str, name: str) -> bool:
    expected = next(TYPES[column.type] for column in TABLES[table] if column.name == name)
    if pa.types.is_string(expected):
        return not pa.types.is_null(found)  # every kind of string is the same in the file
    if pa.types.is_list(found) or pa.types.is_large_list(found):
        return bool(found.value_type == expected.value_type)
    return bool(found == expected)


def _is_proven(column: Column, found: pa.DataType, statistics: Any, runs: Sequence[str]) -> bool:
    """Whether the footer proves that reading a column refuses nothing."""
    if statistics is None:
        return False
    if column.name == "run":
        # Writers may cut long values off: the lowest then shrinks and the highest grows, so equal ends are exact.
        return bool(statistics.has_min_max and statistics.min == statistics.max and statistics.min in runs)
    if (not column.nullable or column.type.startswith("array")) and _count_nulls(statistics) != 0:
        return False
    expected = TYPES[column.type]
    if column.type.startswith("array"):
        if not pa.types.is_list(found):
            return False
        found, expected = found.value_type, expected.value_type
    is_number = column.type not in ("string", "double")
    if is_number and not (pa.types.is_signed_integer(found) and found.bit_width <= expected.bit_width):
        return False
    bounds = column.bounds
    if bounds is None or (_count_nulls(statistics) > 0 and statistics.num_values == 0):
        return True
    values = _read_range(statistics)
    return values is not None and bounds[0] <= values[0] and values[1] <= bounds[1]


def _count_nulls(statistics: Any) -> int:
    """The number of nulls; -1 if the footer does not say it."""
    return int(statistics.null_count) if statistics is not None and statistics.has_null_count else -1


def _read_range(statistics: Any) -> Range | None:
    if statistics is None or not statistics.has_min_max:
        return None
    return int(statistics.min), int(statistics.max)


def read_written_row_groups(paths: Sequence[str]) -> list[RowGroup]:
    """The row groups of deliveries that this pipeline wrote to a scratch folder."""
    found = []
    for path in paths:
        file = open_parquet(path).metadata
        places = {file.schema.column(at).path: at for at in range(file.num_columns)}
        for number in range(file.num_row_groups):
            group = file.row_group(number)
            names = ("process", "position", "at_ns")
            ranges = {name: _read_range(group.column(places[name]).statistics) for name in names}
            if group.num_rows:
                known = {name: span for name, span in ranges.items() if span is not None}
                found.append(RowGroup(path, number, group.num_rows, (), known))
    return found


# Columns that footers do not prove


@dataclass(frozen=True)
class ProvenTables:
    """Tables of which every column was proven by footers, or read."""

    footers: Footers
    groups: set[tuple[int, int]]
    """The pairs (process, group) that deliveries state."""


def prove_tables(runner: Runner, footers: Footers, runs: Sequence[str]) -> ProvenTables:
    """Reads what footers do not prove, by the runner if there is any; refuses what must be refused."""
    calls: list[Call] = [
        (prove_row_groups, (table, share, runs))
        for table, row_groups in footers.items()
        for share in split_row_groups(row_groups)
    ]
    has_work = any(one.unproven for row_groups in footers.values() for one in row_groups)
    answers = (runner if has_work else run_sequentially)(calls)
    tables: dict[str, list[RowGroup]] = {table: [] for table in footers}
    groups: set[tuple[int, int]] = set()
    for (_, (table, *_)), proven in zip(calls, answers, strict=True):
        tables[table] += proven.row_groups
        groups |= proven.groups
    return ProvenTables({table: tuple(found) for table, found in tables.items()}, groups)


@dataclass(frozen=True)
class ProvenRows:
    """Row groups whose columns were all read or proven."""

    row_groups: list[RowGroup]
    groups: set[tuple[int, int]]
    """Of deliveries: the pairs (process, group) that rows state."""


def prove_row_groups(table: str, row_groups: Sequence[RowGroup], runs: Sequence[str]) -> ProvenRows:
    """Reads the columns that footers do not prove; refuses what must be refused."""
    proven, pairs = [], set()
    for one in row_groups:
        ranges = dict(one.ranges)
        if one.unproven:
            file = open_parquet(one.path)
            for data in iterate_canonical(table, one.path, file, one.unproven, one.row_group):
                if "run" in one.unproven:
                    refuse_other_runs(data.column("run"), one.path, runs)
                if table == "deliveries":
                    pairs |= _find_pairs(data)
                    _widen(ranges, data)
        if table == "deliveries" and "group" not in one.unproven:
            pairs.add((ranges["process"][0], ranges["group"][0]))
        proven.append(replace(one, unproven=(), ranges=ranges))
    return ProvenRows(proven, pairs)


def refuse_other_runs(names: pa.ChunkedArray, path: str, runs: Sequence[str]) -> None:
    """Refuses rows of a run that run.json does not describe."""
    for name in pc.unique(names).to_pylist():
        if name not in runs:
            raise UsageError(f"{path}: rows of run {name!r}; expected only {list(runs[:5])}, as {META_FILE} says")


def _find_pairs(data: pa.Table) -> set[tuple[int, int]]:
    if not {"process", "group"} <= set(data.column_names):
        return set()
    pairs = data.group_by(["process", "group"]).aggregate([])
    return set(zip(pairs.column("process").to_pylist(), pairs.column("group").to_pylist(), strict=True))


def _widen(ranges: dict[str, Range], data: pa.Table) -> None:
    for name in ("process", "position"):
        if name in data.column_names and len(data):
            found = pc.min_max(data.column(name)).as_py()
            low, high = ranges.get(name, (found["min"], found["max"]))
            ranges[name] = (min(low, found["min"]), max(high, found["max"]))


def count_table_rows(footers: Footers) -> dict[str, int]:
    """The number of rows of each table."""
    return {table: sum(one.rows for one in row_groups) for table, row_groups in footers.items()}


def split_files(source: TraceFolder) -> list[tuple[str, tuple[str, ...]]]:
    """The files of a folder in shares for one task each: (table, files)."""
    return [
        (table, files[at : at + FILES_PER_TASK])
        for table, files in source.tables.items()
        for at in range(0, len(files), FILES_PER_TASK)
    ]


def split_row_groups(row_groups: Sequence[RowGroup]) -> list[list[RowGroup]]:
    """Row groups in order, in shares whose unproven columns one task reads."""
    shares: list[list[RowGroup]] = []
    rows = ROWS_PER_TASK
    for one in row_groups:
        if rows >= ROWS_PER_TASK:
            shares.append([])
            rows = 0
        shares[-1].append(one)
        rows += one.rows if one.unproven else one.rows // 64
    return shares
