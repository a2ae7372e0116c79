"""Random traces as rows: well formed, damaged, lying in every optional column, absurd in every field.

    trace = make_trace(seed)
    trace.write(folder)

A trace follows one order, with the mistakes of `small_runs`; then some changes are applied to its rows, and the rows
are written the way some writer might: other integer types, dictionaries, many files, no statistics.
"""

import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import msgspec
import pyarrow as pa
import pyarrow.parquet as pq

from amcast.trace.columns import TABLES
from tests.pipeline.small_runs import gapped_run, random_run, timed_run

Row = dict[str, Any]
TIMED = 10**9
"""Seeds from here on make runs in which time alone decides (`timed_run`)."""
INTEGERS = {
    f"{sign}int{bits}": (0 if sign else -(2 ** (bits - 1)), 2**bits - 1 if sign else 2 ** (bits - 1) - 1)
    for bits in (8, 16, 32, 64)
    for sign in ("", "u")
}
EDGES = {"int": (-(2**31), -1, 2**31 - 1, 2_000_000_000), "long": (-(2**63), -(2**62), -1, 0, 2**62, 2**63 - 1)}


@dataclass
class WrittenTrace:
    """A run as rows, and how to write it."""

    seed: int
    run: str
    tables: dict[str, list[Row]]
    claims: dict[str, Any]
    clock_bound_ns: int | None
    changes: list[str] = field(default_factory=list)
    omitted: set[tuple[str, str]] = field(default_factory=set)
    """(table, column) that the files lack."""

    def is_damaged(self) -> bool:
        """Whether a value or a column is missing where it may not be, or rows are of another run."""
        for table, rows in self.tables.items():
            for column in TABLES[table][1:]:
                if (table, column.name) in self.omitted:
                    if not column.optional:
                        return True
                    continue
                values = [row[column.name] for row in rows]
                if None in values and not column.nullable:
                    return True
                if column.type.startswith("array") and any(None in value for value in values if value is not None):
                    return True
        return any(row.get("run", self.run) != self.run for row in self.tables["processes"])

    def write(self, folder: Path) -> Path:
        random = Random(f"encoding {self.seed}")
        meta = {"run": self.run, "schema": 1, "claims": self.claims, "clock_bound_ns": self.clock_bound_ns}
        for table, rows in self.tables.items():
            (folder / table).mkdir(parents=True)
            plain = random.random() < 0.3
            for number, part in enumerate(_split(random, rows)):
                data = self._encode(random, table, part, plain)
                pq.write_table(
                    data,
                    folder / table / f"part-{number:05}.parquet",
                    row_group_size=random.choice((1, 3, 7, 1000)),
                    write_statistics=random.random() < 0.7,
                    use_dictionary=random.random() < 0.5,
                    data_page_version=random.choice(("1.0", "2.0")),
                )
        (folder / "run.json").write_text(json.dumps(meta))
        return folder

    def _encode(self, random: Random, table: str, rows: list[Row], plain: bool) -> pa.Table:
        arrays = {}
        for column in TABLES[table]:
            if (table, column.name) in self.omitted:
                continue
            values = [self.run] * len(rows) if column.name == "run" else [row[column.name] for row in rows]
            if table == "processes" and column.name == "run":
                values = [row.get("run", self.run) for row in rows]
            arrays[column.name] = _encode_column(random, column.type, values, plain)
        return pa.table(arrays)


def _split(random: Random, rows: list[Row]) -> list[list[Row]]:
    """The rows of several files, in order; a table always has one."""
    cuts = sorted(random.randint(0, len(rows)) for _ in range(random.choice((0, 0, 1, 3))))
    return [rows[low:high] for low, high in zip([0, *cuts], [*cuts, len(rows)], strict=True)]


def _encode_column(random: Random, kind: str, values: list[Any], plain: bool) -> pa.Array:
    if kind == "string":
        array = pa.array(values, pa.string())
        choices = [array, array.cast(pa.large_string()), array.dictionary_encode()]
        return array if plain else random.choice(choices)
    if kind == "double":
        return pa.array(values, pa.float64())
    expected = pa.int32() if "int" in kind else pa.int64()
    flat = [v for value in values for v in (value or [])] if kind.startswith("array") else values
    known = [value for value in flat if value is not None]
    low, high = min(known, default=0), max(known, default=0)
    fitting = [name for name, (least, most) in INTEGERS.items() if least <= low and high <= most]
    chosen = getattr(pa, random.choice(fitting))()
    if plain and str(expected) in fitting:
        chosen = expected
    if not kind.startswith("array"):
        array = pa.array(values, chosen)
        return array.dictionary_encode() if not plain and random.random() < 0.2 else array
    others = (pa.large_list, pa.list_view, pa.large_list_view)
    listed = pa.list_ if plain or random.random() < 0.7 else random.choice(others)
    return pa.array(values, listed(chosen))


# Traces


def make_trace(seed: int) -> WrittenTrace:
    """A trace and up to three changes of it."""
    random = Random(f"trace {seed}")
    if seed >= TIMED:
        source = timed_run(seed)
    else:
        source = gapped_run(seed) if random.random() < 0.3 else random_run(seed)
    recorded = source.recorder()
    tables = {
        table: [dict(zip([c.name for c in columns[1:]], row, strict=True)) for row in getattr(recorded, table)]
        for table, columns in TABLES.items()
    }
    if source.answers is None:
        del tables["answers"]
    if source.packets is None:
        del tables["packets"]
    name = random.choice(("r", "run with a name of more than sixty-four bytes " + "x" * 60, "länger"))
    trace = WrittenTrace(seed, name, tables, dict(source.claims), source.clock_bound_ns)
    _state_truth(random, trace)
    if seed >= TIMED:
        _multicast_again(random, trace)
    for _ in range(random.choice((0, 0, 1, 1, 1, 2, 3))):
        change = random.choice(CHANGES)
        # After a null, other changes find nothing to work on, and every way must refuse already.
        if not trace.is_damaged() and change(random, trace):
            trace.changes.append(change.__name__)
    return trace


def _state_truth(random: Random, trace: WrittenTrace) -> None:
    """Fills optional columns with what is true, or leaves them null in some rows, or in all."""
    sent = {row["message"]: row for row in trace.tables["multicasts"]}
    for table, column, source in (
        ("deliveries", "multicast_ns", "at_ns"),
        ("deliveries", "destinations", "destinations"),
        ("packets", "sender", "sender"),
        ("packets", "destinations", "destinations"),
    ):
        share = random.choice((0.0, 0.5, 1.0, 1.0))
        for row in trace.tables.get(table, []):
            known = sent.get(row["message"])
            row[column] = known[source] if known is not None and random.random() < share else None
        if share == 0.0 and random.random() < 0.5:
            trace.omitted.add((table, column))


def _multicast_again(random: Random, trace: WrittenTrace) -> None:
    """Records some multicasts twice, as of a client that asks again: the first counts."""
    rows = trace.tables["multicasts"]
    for row in [row for row in rows if random.random() < 0.15]:
        rows.insert(random.randint(0, len(rows)), {**row, "at_ns": row["at_ns"] + random.randrange(12)})


Change = Callable[[Random, WrittenTrace], bool]
CHANGES: list[Change] = []


def change(function: Change) -> Change:
    CHANGES.append(function)
    return function


def _pick(random: Random, trace: WrittenTrace, *tables: str) -> tuple[str, Row] | None:
    there = [table for table in tables or TABLES if trace.tables.get(table)]
    if not there:
        return None
    table = random.choice(there)
    return table, random.choice(trace.tables[table])


@change
def deliveries_state_own_group_only(random: Random, trace: WrittenTrace) -> bool:
    trace.omitted.discard(("deliveries", "destinations"))
    for row in trace.tables["deliveries"]:
        row["destinations"] = [row["group"]]
    return True


@change
def one_row_lies(random: Random, trace: WrittenTrace) -> bool:
    """One optional column of one row states something else, true or not."""
    in_deliveries = ("destinations", "multicast_ns", "committed_ns", "group", "rank_time")
    table = random.choice(("deliveries", "deliveries", "packets"))
    column = random.choice(in_deliveries if table == "deliveries" else ("destinations", "sender"))
    picked = _pick(random, trace, table)
    if picked is None or (table, column) in trace.omitted:
        return False
    row = picked[1]
    groups = sorted({row["group"] for row in trace.tables["processes"] if row["group"] is not None})
    if not groups:
        return False
    if column == "destinations":
        row[column] = random.choice(([], groups, groups[:1] * 2, [random.choice(groups or [77])], [77]))
    elif column == "group":
        row[column] = random.choice(groups)
    else:
        row[column] = random.choice((-1, 0, 7, (row[column] or 0) + 1))
    return True


@change
def row_is_recorded_again(random: Random, trace: WrittenTrace) -> bool:
    """A row is recorded twice: with the same content, or with another value in one column."""
    picked = _pick(random, trace, "multicasts", "deliveries", "processes", "packets", "answers", "notes")
    if picked is None:
        return False
    table, row = picked
    again = dict(row)
    if random.random() < 0.6:
        column = random.choice([c for c in TABLES[table][1:] if c.type in ("int", "long", "array<int>")])
        value = again[column.name]
        if column.type == "array<int>":
            again[column.name] = [*(value or []), *(value or [])[:1]] if random.random() < 0.5 else (value or [0])[:1]
        else:
            again[column.name] = (value or 0) + random.choice((0, 1, -1))
    trace.tables[table].insert(random.randint(0, len(trace.tables[table])), again)
    return True


@change
def number_is_absurd(random: Random, trace: WrittenTrace) -> bool:
    """One number of one row is at the edge of its type."""
    picked = _pick(random, trace)
    if picked is None:
        return False
    table, row = picked
    columns = [c for c in TABLES[table][1:] if c.type in ("int", "long") and (table, c.name) not in trace.omitted]
    column = random.choice(columns)
    row[column.name] = random.choice((*EDGES[column.type], 10**10 if column.type == "long" else 10**5))
    return True


@change
def position_is_far(random: Random, trace: WrittenTrace) -> bool:
    """The last positions of a process, or of a whole group, are billions away from the others."""
    processes = sorted({row["process"] for row in trace.tables["deliveries"]})
    if not processes:
        return False
    process, far = random.choice(processes), random.choice((10**7, 10**10, 2**61, 2**62 - 5))
    from_here = random.randint(0, 4)
    for row in trace.tables["deliveries"]:
        if row["process"] == process and row["position"] >= from_here:
            row["position"] += far
    return True


def _rename(trace: WrittenTrace, what: str, names: dict[int, int]) -> None:
    columns = {
        "group": {"group"},
        "process": {"process", "sender", "source", "target"},
        "message": {"message"},
        "session": {"session"},
        "sequence": {"sequence"},
    }[what]
    lists = {"group": "destinations", "message": "messages"}.get(what)
    for rows in trace.tables.values():
        for row in rows:
            for column in columns & row.keys():
                row[column] = names.get(row[column], row[column])
            if lists in row and row[lists] is not None:
                row[lists] = [names.get(value, value) for value in row[lists]]


@change
def ids_are_absurd(random: Random, trace: WrittenTrace) -> bool:
    """A few groups, processes, messages, sessions or numbers have other names everywhere."""
    what = random.choice(("group", "process", "message", "session", "sequence"))
    table = {"group": "processes", "process": "processes"}.get(what, "multicasts")
    present = sorted({row[what] for row in trace.tables[table] if row[what] is not None})
    kind = "int" if what in ("group", "process") else "long"
    wanted = [value for value in (*EDGES[kind], -7, 10**6) if value not in present]
    old = random.sample(present, min(len(present), 3))
    _rename(trace, what, dict(zip(old, random.sample(wanted, len(old)), strict=True)))
    return bool(old)


@change
def times_are_shifted(random: Random, trace: WrittenTrace) -> bool:
    """All times are moved, many below zero."""
    by = random.choice((-30, -5000, -(10**15), 2**62 - 10**5))
    for rows in trace.tables.values():
        for row in rows:
            for column, value in row.items():
                if column.endswith("_ns") and value is not None:
                    row[column] = value + by
    return True


@change
def answers_lie(random: Random, trace: WrittenTrace) -> bool:
    """Answers to messages that nobody multicast, before the multicast, long after it, or twice."""
    rows = trace.tables.setdefault("answers", [])
    messages = [row["message"] for row in trace.tables["multicasts"]]
    for _ in range(random.randint(1, 4)):
        message = random.choice((*messages, 4711, -1))
        rows.append({"message": message, "at_ns": random.choice((-(2**62), -3, 0, 5, 40, 10**6, 2**62))})
    return True


@change
def notes_lie(random: Random, trace: WrittenTrace) -> bool:
    rows = trace.tables.setdefault("notes", [])
    process = random.choice(sorted({row["process"] for row in trace.tables["processes"]} | {4711}))
    value = random.choice((None, float("nan"), float("inf"), -1.0, -0.5, 0.0, 2.7, 3.0, 1e10, 1e300))
    name = random.choice(("installed", "trace-gap", "another"))
    rows.append({"process": process, "at_ns": 0, "name": name, "message": None, "value": value})
    return True


@change
def rows_are_shuffled(random: Random, trace: WrittenTrace) -> bool:
    random.shuffle(trace.tables[random.choice(sorted(trace.tables))])
    return True


@change
def rows_are_lost(random: Random, trace: WrittenTrace) -> bool:
    table = random.choice(sorted(trace.tables))
    trace.tables[table] = [row for row in trace.tables[table] if random.random() < 0.8]
    return True


@change
def table_is_empty(random: Random, trace: WrittenTrace) -> bool:
    trace.tables[random.choice(sorted(trace.tables))] = []
    return True


@change
def value_is_null(random: Random, trace: WrittenTrace) -> bool:
    """A null in any column, also where none may be, or inside a list."""
    picked = _pick(random, trace)
    if picked is None:
        return False
    table, row = picked
    column = random.choice([c for c in TABLES[table][1:] if (table, c.name) not in trace.omitted])
    if column.type.startswith("array") and random.random() < 0.5:
        row[column.name] = [*(row[column.name] or []), None]
    else:
        row[column.name] = None
    return True


@change
def run_has_another_name(random: Random, trace: WrittenTrace) -> bool:
    if not trace.tables["processes"]:
        return False
    trace.tables["processes"][0]["run"] = trace.run + "x"
    return True


@change
def column_is_missing(random: Random, trace: WrittenTrace) -> bool:
    table = random.choice(sorted(trace.tables))
    column = random.choice(TABLES[table][1:])
    trace.omitted.add((table, column.name))
    return True


def strip_omitted(trace: WrittenTrace) -> dict[str, list[Row]]:
    """The rows as a reader sees them: what files lack is null."""
    tables = msgspec.convert(msgspec.to_builtins(trace.tables), dict[str, list[dict[str, Any]]])
    for table, column in trace.omitted:
        for row in tables.get(table, []):
            row[column] = None
    return tables
