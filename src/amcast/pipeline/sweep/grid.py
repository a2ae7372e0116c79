"""A sweep's plan file, and the cells of its grid. Pure: data in, data out.

A plan file is a plan as `amcast simulate` reads it, with four more tables that say what varies:

    protocol = "skeen"                     # the base: every cell starts from it

    [workload]
    messages = 1000

    [grid]                                 # every combination of these
    protocol = ["skeen", "primcast"]
    seed = "0..9"                          # a range, both ends included
    topology.groups = [2, 4, 8]

    [[zip]]                                # fields that change together: the first of each, the second of each ...
    topology.clients = [4, 16]
    workload.outstanding = [1, 8]

    [[override]]                           # cells that match `where` get the fields of `set`
    where = { protocol = "skeen" }
    set = { topology.replicas = 1 }

    [[exclude]]                            # cells that match every field are omitted; a list matches any of its values
    protocol = ["skeen"]
    topology.groups = 8

A cell is one plan, and its id is a hash of that plan: equal plans are the same cell and have the same result, on any
machine at any time. Equal cells (overrides can make some) are one cell.
"""

import copy
import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import product
from typing import Any, Final

from amcast.kernel.errors import UsageError

MAX_CELLS: Final = 250_000
MAX_CHOICES: Final = MAX_CELLS
TABLES: Final = ("grid", "zip", "override", "exclude")
_RANGE: Final = re.compile(r"(-?\d+)\.\.(-?\d+)")

Values = dict[str, Any]
"""A plan as plain data."""
Fields = dict[str, Any]
"""Dotted path -> value."""


@dataclass(frozen=True)
class SweepCell:
    """One run of a sweep."""

    id: str
    plan: Values
    varied: Fields
    """The fields of the grid with this cell's values: what distinguishes it from the others."""


@dataclass(frozen=True)
class Grid:
    """A sweep's plan file, parsed."""

    base: Values
    axes: tuple[tuple[Fields, ...], ...]
    """The choices of each axis; a cell takes one of each."""
    overrides: tuple[tuple[Fields, Fields], ...] = ()
    excluded: tuple[Fields, ...] = ()

    @property
    def paths(self) -> tuple[str, ...]:
        """The fields that vary, in the order of the file."""
        seen = dict.fromkeys(path for axis in self.axes for choice in axis for path in choice)
        return tuple({**seen, **dict.fromkeys(path for _, fields in self.overrides for path in fields)})

    @property
    def combinations(self) -> int:
        count = 1
        for axis in self.axes:
            count *= len(axis)
        return count


def parse_grid(values: Values, where: str = "plan") -> Grid:
    """Parses a plan file's data. Errors name the place, the field, the value and what was expected."""
    base = {key: value for key, value in values.items() if key not in TABLES}
    axes = [
        _parse_axis(path, choices, f"{where}: grid.{path}") for path, choices in _iterate_leaves(values, "grid", where)
    ]
    for number, table in enumerate(_get_tables(values, "zip", where)):
        axes.append(_parse_zip(_flatten(table), f"{where}: zip[{number}]"))
    overrides = [
        _parse_override(table, f"{where}: override[{number}]")
        for number, table in enumerate(_get_tables(values, "override", where))
    ]
    excluded = [_flatten(table) for table in _get_tables(values, "exclude", where)]
    for number, fields in enumerate(excluded):
        if not fields:
            raise UsageError(
                f"{where}: exclude[{number}] is empty, it would leave out everything; expected some fields"
            )
    grid = Grid(base, tuple(axes), tuple(overrides), tuple(excluded))
    if grid.combinations > MAX_CELLS:
        raise UsageError(f"{where}: the grid spans {grid.combinations} cells; expected at most {MAX_CELLS}")
    return grid


def expand_cells(grid: Grid, normalize: Callable[[Values, str], Values], where: str = "plan") -> list[SweepCell]:
    """Every cell, in the order of the file. `normalize` checks one plan and fills in its defaults."""
    found: dict[str, SweepCell] = {}
    for choices in product(*grid.axes):
        fields: Fields = {}
        for choice in choices:
            fields.update(choice)
        if any(_matches(grid.base, fields, pattern) for pattern in grid.excluded):
            continue
        for pattern, change in grid.overrides:
            if _matches(grid.base, fields, pattern):
                fields.update(change)
        plan = normalize(set_fields(grid.base, fields), f"{where}, cell {describe_fields(fields)}" if fields else where)
        cell_id = hash_plan(plan)
        if cell_id not in found:
            found[cell_id] = SweepCell(cell_id, plan, {path: look_up(plan, path) for path in grid.paths})
    if not found:
        raise UsageError(f"{where}: every cell is excluded; expected at least one")
    return list(found.values())


def hash_plan(plan: Values) -> str:
    """The id of a cell: a hash of its plan in canonical JSON."""
    return blake2b(to_canonical_json(plan).encode(), digest_size=10).hexdigest()


def describe_cell(cell: SweepCell) -> Fields:
    """The columns that identify a cell; every table about cells begins with them."""
    plan = cell.plan
    return {
        "cell": cell.id,
        "protocol": look_up(plan, "protocol"),
        "environment": look_up(plan, "topology.environment") or "",
        "groups": look_up(plan, "topology.groups"),
        "replicas": look_up(plan, "topology.replicas"),
        "clients": look_up(plan, "topology.clients"),
        "workload": look_up(plan, "workload.name") or "",
        "outstanding": look_up(plan, "workload.outstanding"),
        "messages": look_up(plan, "workload.messages"),
        "faults": look_up(plan, "faults.profile") or "none",
        "seed": look_up(plan, "seed"),
        "varied": to_canonical_json(cell.varied),
        "plan": to_canonical_json(plan),
    }


def to_canonical_json(value: Any) -> str:
    """JSON with one spelling for each value."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def set_fields(base: Values, fields: Fields) -> Values:
    """A copy of a plan with fields set by their dotted paths."""
    values = copy.deepcopy(base)
    for path, value in fields.items():
        table = values
        *tables, last = path.split(".")
        for name in tables:
            table = table.setdefault(name, {})
            if not isinstance(table, dict):
                raise UsageError(f"{path}: {name} = {table!r}; expected a table")
        table[last] = copy.deepcopy(value)
    return values


def look_up(plan: Values, path: str) -> Any:
    """The value of a dotted path; None where there is none."""
    value: Any = plan
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def describe_fields(fields: Fields) -> str:
    """Fields in a sentence."""
    return ", ".join(f"{path} = {json.dumps(value, ensure_ascii=False)}" for path, value in fields.items())


def bundle_cells(weights: Sequence[float], slots: int, least: float = 1.0, most: int = 1000) -> list[list[int]]:
    """Groups cells into tasks, given an estimate of each cell's seconds.

    Long cells come first and alone; short ones share a task, so that a task is worth its cost. Towards the end tasks
    shrink to a fraction of what is left, so that no slot finishes much later than the others.
    """
    if slots < 1 or least <= 0 or most < 1:
        raise ValueError(f"slots {slots}, least {least}, most {most}: expected 1 or more, above 0, 1 or more")
    order = sorted(range(len(weights)), key=lambda place: (-weights[place], place))
    left = sum(weights)
    tasks: list[list[int]] = []
    filled = worth = 0.0
    for place in order:
        if filled >= worth or len(tasks[-1]) >= most:
            tasks.append([])
            filled, worth = 0.0, min(least, max(least / 8, left / (3 * slots)))
        tasks[-1].append(place)
        filled += weights[place]
        left -= weights[place]
    return tasks


# A plan as TOML, for readers and for `amcast simulate --plan`


def to_toml(plan: Values) -> str:
    """A plan as a TOML file. Fields without a value are omitted: TOML has no null."""
    lines = [
        f"{_format_key(key)} = {_format_value(value)}"
        for key, value in plan.items()
        if not _is_table(value) and value is not None
    ]
    pending: list[tuple[tuple[str, ...], Values]] = [((key,), value) for key, value in plan.items() if _is_table(value)]
    while pending:
        path, table = pending.pop(0)
        lines += ["", f"[{'.'.join(_format_key(name) for name in path)}]"]
        lines += [
            f"{_format_key(k)} = {_format_value(v)}" for k, v in table.items() if not _is_table(v) and v is not None
        ]
        pending = [((*path, key), value) for key, value in table.items() if _is_table(value)] + pending
    return "\n".join(lines) + "\n"


def _is_table(value: Any) -> bool:
    return isinstance(value, dict) and bool(value)


def _format_key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _quote(name)


def _format_value(value: Any) -> str:
    """A value as TOML writes it. Nested values go onto one line; they are shallow."""
    if isinstance(value, dict):
        return (
            "{" + ", ".join(f"{_format_key(k)} = {_format_value(v)}" for k, v in value.items() if v is not None) + "}"
        )
    if isinstance(value, (list, tuple)):
        return "[" + ", ".join(_format_value(item) for item in value) + "]"
    if isinstance(value, float):
        return repr(value)
    return _quote(value)


def _quote(value: Any) -> str:
    """JSON's strings, numbers and booleans are TOML's, except for one character."""
    return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")


# Parsing a plan file


def _iterate_leaves(values: Values, name: str, where: str) -> Iterator[tuple[str, Any]]:
    table = values.get(name, {})
    if not isinstance(table, dict):
        raise UsageError(f"{where}: {name} = {table!r}; expected a table of lists")
    yield from _flatten(table).items()


def _flatten(table: Values) -> Fields:
    """Tables as dotted paths: `topology.groups = ...` and `"topology.groups" = ...` are the same."""
    fields: Fields = {}
    pending = list(table.items())
    while pending:
        path, value = pending.pop(0)
        if isinstance(value, dict):
            pending = [(f"{path}.{key}", inner) for key, inner in value.items()] + pending
        else:
            fields[path] = value
    return fields


def _get_tables(values: Values, name: str, where: str) -> Iterable[Values]:
    tables = values.get(name, [])
    if not isinstance(tables, list) or not all(isinstance(table, dict) for table in tables):
        raise UsageError(f"{where}: {name} = {tables!r}; expected tables, each written [[{name}]]")
    return tables


def _parse_choices(choices: Any, where: str) -> list[Any]:
    if isinstance(choices, str) and (found := _RANGE.fullmatch(choices)):
        first, last = int(found[1]), int(found[2])
        if last < first or last - first >= MAX_CHOICES:
            raise UsageError(f"{where} = {choices!r}; expected a range A..B upwards, of at most {MAX_CHOICES} values")
        return list(range(first, last + 1))
    if not isinstance(choices, list) or not choices:
        raise UsageError(f'{where} = {choices!r}; expected a list of values, or a range such as "0..9"')
    seen = {to_canonical_json(choice) for choice in choices}
    if len(seen) < len(choices):
        raise UsageError(f"{where} = {choices!r} names a value twice; expected different values")
    return choices


def _parse_axis(path: str, choices: Any, where: str) -> tuple[Fields, ...]:
    return tuple({path: choice} for choice in _parse_choices(choices, where))


def _parse_zip(table: Fields, where: str) -> tuple[Fields, ...]:
    columns = {
        path: _parse_choices(choices, f"{where}.{path}") if isinstance(choices, str) else choices
        for path, choices in table.items()
    }
    lengths = {len(column) if isinstance(column, list) else 0 for column in columns.values()}
    if len(lengths) != 1 or 0 in lengths:
        raise UsageError(f"{where} = {table!r}; expected lists of one length, which change together")
    return tuple({path: column[place] for path, column in columns.items()} for place in range(lengths.pop()))


def _parse_override(table: Values, where: str) -> tuple[Fields, Fields]:
    pattern, change = table.get("where"), table.get("set")
    if set(table) != {"where", "set"} or not isinstance(pattern, dict) or not isinstance(change, dict) or not change:
        raise UsageError(f"{where} = {table!r}; expected two tables, where = {{...}} and set = {{...}}")
    return _flatten(pattern), _flatten(change)


def _matches(base: Values, fields: Fields, pattern: Fields) -> bool:
    for path, wanted in pattern.items():
        value = fields.get(path, look_up(base, path))
        if value != wanted and not (isinstance(wanted, list) and value in wanted):
            return False
    return True
