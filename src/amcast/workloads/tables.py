"""The package data that workloads draw from. data/README.md names the sources."""

import json
from functools import cache
from importlib.resources import files
from typing import Any, Final

Nearest = tuple[int, ...]
"""Group numbers by rising distance from one group, which is omitted."""

NEAREST_TABLES: Final = {
    "O1": "O1",
    "O2": "O2",
    "T1": "T1_loc1",
    "T2": "T2_loc2",
    "T3": "T3_loc3a(@be101a1d, table-2 experiment)",
    "T3b": "T3_loc3b(@867ea264)",
    "P1": "older_flexcast_P1(@b1cc068c)",
    "latency": "by_latency_matrix",
    "fit": "FIT_to_Table4(not from repo; hill-climb over 6^12 tables, 36 restarts)",
}
"""amcast's names of the tables, by overlay -> their names in flexcast_overlays.json."""


def read_data(name: str) -> str:
    return files("amcast").joinpath("data", name).read_text(encoding="utf-8")


@cache
def nearest_three(table: str) -> dict[int, Nearest]:
    """The nearest, second and third group of each of the twelve, from one overlay's locality file."""
    data: dict[str, Any] = json.loads(read_data("flexcast_overlays.json"))
    rows = data["locality_tables_nearest_second_third"][NEAREST_TABLES[table]]
    return {int(number): tuple(row) for number, row in rows.items()}


@cache
def nearest_all() -> dict[int, Nearest]:
    """All other groups of each of the twelve, by the delay of the latency matrix; ties by number."""
    lines = [line for line in read_data("flexcast_aws12_oneway_ms.csv").splitlines() if not line.startswith("#")]
    numbers = [int(cell) for cell in lines[0].split(",")[1:]]
    ranked = {}
    for line in lines[1:]:
        source, *cells = line.split(",")
        delays = sorted((float(cell), number) for number, cell in zip(numbers, cells, strict=True))
        ranked[int(source)] = tuple(number for _, number in delays if number != int(source))
    return ranked


@cache
def social_users() -> tuple[tuple[int, ...], ...]:
    """The partitions that each user's posts reach, the user's own first."""
    lines = read_data("social_users.txt").splitlines()
    return tuple(tuple(int(cell) for cell in line.split()) for line in lines if not line.startswith("#"))
