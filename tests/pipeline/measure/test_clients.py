"""What clients wait for, and bytes between groups: the measures of generated traces against a few plain loops."""

from collections import defaultdict
from pathlib import Path
from random import Random
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.pipeline.measure.small_run import MeasureSetting, measure_folders
from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.footers import read_footers
from tests.pipeline.check.trace_generator import WrittenTrace, make_trace

Waits = dict[tuple[str, str, str | None, str | None], list[int]]


def measure(trace: WrittenTrace, folder: Path) -> dict[str, list[dict[str, Any]]]:
    source = read_trace_folder(str(trace.write(folder)))
    footers = {table: tuple(read_footers(table, files, [trace.run])) for table, files in source.tables.items()}
    return measure_folders([(source, footers)], MeasureSetting(0.0, None, is_exact=True))


def list_waits(trace: WrittenTrace) -> Waits:
    """Every wait of every message, by loops."""
    processes = {row["process"]: row for row in trace.tables["processes"]}
    found: Waits = defaultdict(list)
    sent: dict[int, dict[str, Any]] = {}
    for row in sorted(trace.tables["multicasts"], key=lambda row: row["at_ns"]):
        sent.setdefault(row["message"], row)
    for message, row in sent.items():
        groups, sender = set(row["destinations"]), processes.get(row["sender"], {"group": None, "region": ""})
        rows = [d for d in trace.tables["deliveries"] if d["message"] == message and d["group"] in groups]
        first = {g: min(d["at_ns"] for d in rows if d["group"] == g) for g in {d["group"] for d in rows}}
        role = "client" if sender["group"] is None else "destination" if sender["group"] in groups else "other member"
        if role == "destination":
            own = [d["at_ns"] for d in rows if d["process"] == row["sender"]]
        else:
            near = {p for p, other in processes.items() if other["region"] == sender["region"] != ""}
            own = [d["at_ns"] for d in rows if d["process"] in near]
        every = {
            "own replica": min(own, default=None),
            "first answer": min(first.values(), default=None),
            "all destinations": max(first.values()) if first.keys() == groups else None,
        }
        for wait, at in every.items():
            if at is not None:
                scope = "local" if len(groups) == 1 else "global"
                for place in ((role, sender["region"]), (None, None)):
                    found[wait, scope, *place].append(at - row["at_ns"])
    return found


def list_traffic(trace: WrittenTrace) -> dict[tuple[int | None, int | None], list[int]]:
    group = {row["process"]: row["group"] for row in trace.tables["processes"]}
    found: dict[tuple[int | None, int | None], list[int]] = defaultdict(lambda: [0, 0])
    for row in trace.tables["packets"]:
        pair = found[group.get(row["source"]), group.get(row["target"])]
        pair[0] += 1
        pair[1] += row["bytes"]
    return found


def spread(trace: WrittenTrace) -> WrittenTrace:
    """Processes in three regions, some senders that are members, and packets of different sizes."""
    random = Random(trace.seed)
    members = [row["process"] for row in trace.tables["processes"]]
    for row in trace.tables["processes"]:
        row["region"] = random.choice(("", "east", "west"))
    for row in trace.tables["multicasts"]:
        row["sender"] = random.choice([*members, 4711])
    for row in trace.tables.get("packets", []):
        row["bytes"], row["sender"] = random.randrange(100), None
    return trace


def test_measures_are_those_of_plain_loops(tmp_path: Path) -> None:
    compared = 0
    for seed in range(7000, 7040):
        trace = make_trace(seed)
        if trace.changes or trace.omitted or "packets" not in trace.tables or not trace.tables["multicasts"]:
            continue
        try:
            tables = measure(spread(trace), tmp_path / str(seed))
        except UsageError:
            continue
        waits = list_waits(trace)
        names = ("wait", "scope", "role", "region")
        rows = {tuple(row[name] for name in names): row for row in tables["clients"]}
        assert rows.keys() == waits.keys(), seed
        for key, row in rows.items():
            assert row["count"] == len(waits[key]), (seed, key)
            assert row["latency_ns_mean"] == pytest.approx(sum(waits[key]) / len(waits[key])), (seed, key)
            assert row["latency_ns_max"] == max(waits[key]), (seed, key)
        traffic = {(row["group"], row["to_group"]): [row["packets"], row["bytes"]] for row in tables["traffic"]}
        assert traffic == list_traffic(trace), seed
        compared += 1
    assert compared >= 5
