"""Latencies between regions that a user measured: a CSV file, read into the table that a plan holds.

The first row names the regions, every other row begins with the name of one; a line that begins with # is a comment.
Cells are milliseconds, and the diagonal is the latency within a region:

    ,eu-west-1,us-east-1
    eu-west-1,0.8,68.1
    us-east-1,68.3,0.7
"""

import csv
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from amcast.kernel.errors import UsageError

MAX_MS: Final = 3_600_000.0
MAX_REGIONS: Final = 1000

Latencies = dict[str, dict[str, float]]
"""Milliseconds by region of the source, then of the target."""


def load_latencies(options: dict[str, Any], where: str) -> dict[str, Any]:
    """Options of an environment with the latencies of a file as a table."""
    file = options.get("latencies")
    if not isinstance(file, str):
        return options
    try:
        return {**options, "latencies": read_latencies(Path(file))}
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None


def read_latencies(file: Path) -> Latencies:
    """Reads a CSV file; errors name the row, the column, the value and what was expected."""
    try:
        text = file.read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise UsageError(f"latencies {file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"latencies {file}: not UTF-8 text; expected CSV") from None
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    rows = [[cell.strip() for cell in row] for row in csv.reader(lines)]
    if len(rows) < 2 or len(rows[0]) < 2:
        raise UsageError(f"latencies {file}: no table; expected a first row and a first column with names of regions")
    names = rows[0][1:]
    found: Latencies = {}
    for source, *cells in rows[1:]:
        if source in found:
            raise UsageError(f"latencies {file}: row {source!r} appears twice; expected one row per region")
        if len(cells) != len(names):
            raise UsageError(f"latencies {file}: row {source!r} has {len(cells)} numbers; expected {len(names)}")
        found[source] = {
            target: _parse_cell(file, source, target, cell) for target, cell in zip(names, cells, strict=True)
        }
    check_latencies(found, f"latencies {file}")
    return found


def check_latencies(table: Mapping[str, Mapping[str, float]], where: str) -> None:
    """Refuses a table that lacks pairs of regions."""
    if not 1 <= len(table) <= MAX_REGIONS:
        raise UsageError(f"{where}: {len(table)} regions; expected 1 to {MAX_REGIONS}")
    for source, row in table.items():
        if not source or "/" in source:
            raise UsageError(f"{where}: region {source!r}; expected a name without a slash")
        if set(row) != set(table):
            odd = sorted(set(row) ^ set(table))[0]
            raise UsageError(
                f"{where}: row {source!r} and region {odd!r}; expected the same regions in rows and columns"
            )
        for target, value in row.items():
            if not 0 <= value <= MAX_MS:
                raise UsageError(f"{where}: row {source!r}, column {target!r}: {value}; expected 0 to {MAX_MS:.0f} ms")


def _parse_cell(file: Path, source: str, target: str, cell: str) -> float:
    try:
        return float(cell)
    except ValueError:
        raise UsageError(
            f"latencies {file}: row {source!r}, column {target!r}: {cell!r}; expected milliseconds"
        ) from None
