"""One row per run, and one row per setting: the same plan under several seeds, with confidence intervals over them.

It reads measures of runs, never traces.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from math import sqrt
from typing import Any, Final

from amcast.pipeline.measure.student_t import T95
from amcast.pipeline.sweep.grid import hash_plan, look_up, to_canonical_json
from amcast.trace.meta import Meta

Row = dict[str, Any]

SETTING: Final = (
    *("setting", "protocol", "environment", "groups", "replicas", "clients", "workload", "outstanding", "messages"),
    *("faults", "plan"),
)
"""The columns that runs of one setting share; `plan` is the whole plan without its seed, as JSON."""
NUMBERS: Final = (
    *("throughput_per_s", "latency_ns_mean", "latency_ns_p50", "latency_ns_p90", "latency_ns_p95", "latency_ns_p99"),
    *("latency_ns_max", "packets_per_multicast", "bytes_per_multicast"),
)
"""The columns that are compared between settings."""
FURTHER: Final = (
    *("waited_share", "wait_share_of_latency", "convoy_share_of_latency", "jain_index", "share_for_others"),
    "overhead_max",
)
SUMMARY: Final = (
    *("run", "folder", *SETTING[:-1], "seed", "status", "multicasts", "deliveries", "completed", "low_ns", "high_ns"),
    *(*NUMBERS, *FURTHER, "method", "plan"),
)
COMPARISON: Final = (
    *SETTING[:-1],
    *("runs", "not_ok"),
    *(f"{name}{suffix}" for name in NUMBERS for suffix in ("", "_low", "_high")),
    "plan",
)


def describe_run(meta: Meta, folder: str) -> Row:
    """The setting and seed in a run's description."""
    plan = meta.config if isinstance(meta.config, dict) else {"protocol": meta.protocol or "", "run": meta.run}
    return {"run": meta.run, "folder": folder, "seed": meta.seed, **describe_setting(plan)}


def describe_setting(plan: Mapping[str, Any]) -> Row:
    """The columns that runs of one setting share."""
    common = {key: value for key, value in plan.items() if key != "seed"}
    return {
        "setting": hash_plan(common),
        "protocol": look_up(common, "protocol"),
        "environment": look_up(common, "topology.environment") or "",
        "groups": look_up(common, "topology.groups"),
        "replicas": look_up(common, "topology.replicas"),
        "clients": look_up(common, "topology.clients"),
        "workload": look_up(common, "workload.name") or "",
        "outstanding": look_up(common, "workload.outstanding"),
        "messages": look_up(common, "workload.messages"),
        "faults": look_up(common, "faults.profile") or "none",
        "plan": to_canonical_json(common),
    }


def summarize_cells(cells: Iterable[Row]) -> list[Row]:
    """Summaries of a sweep's cells, from the numbers that the cells measured."""
    rows = []
    for cell in cells:
        plan = json.loads(cell["plan"])
        count = cell["multicasts"] or 0
        rows.append(
            _select_columns(
                {
                    **cell,
                    **describe_setting(plan),
                    "run": cell["cell"],
                    "folder": "",
                    "packets_per_multicast": _ratio(cell["packets"], count),
                    "bytes_per_multicast": _ratio(cell["bytes"], count),
                    "method": "exact",
                },
                SUMMARY,
            )
        )
    return rows


def summarize_runs(runs: Iterable[Row], *tables: Mapping[str, Row]) -> list[Row]:
    """Descriptions of runs with the columns of each table about them."""
    rows = []
    for run in runs:
        merged = dict(run)
        for table in tables:
            merged.update(table.get(run["run"], {}))
        rows.append(_select_columns(merged, SUMMARY))
    return rows


def compare_settings(rows: Iterable[Row]) -> list[Row]:
    """Per setting: the mean over its runs of each number, with 95 % intervals where there are two runs or more."""
    settings: dict[str, list[Row]] = {}
    for row in rows:
        settings.setdefault(row["setting"], []).append(row)
    settings_rows = []
    for runs in settings.values():
        line: Row = {name: runs[0][name] for name in SETTING}
        line["runs"] = len(runs)
        line["not_ok"] = sum(1 for run in runs if run["status"] not in (None, "ok", "holds"))
        for name in NUMBERS:
            values = [float(run[name]) for run in runs if run[name] is not None]
            line[name], line[f"{name}_low"], line[f"{name}_high"] = confidence_interval(values)
        settings_rows.append(_select_columns(line, COMPARISON))
    return sorted(settings_rows, key=_sort_key)


def _sort_key(line: Row) -> list[tuple[bool, Any]]:
    """The place of a setting: numbers by size, the others by name, missing values last."""
    counts = ("groups", "replicas", "clients", "outstanding", "messages")
    return [(line[name] is None, line[name] or 0) if name in counts else (False, str(line[name])) for name in _ORDER]


_ORDER: Final = (
    *("environment", "workload", "faults", "groups", "replicas", "clients", "outstanding", "messages"),
    *("protocol", "setting"),
)


def confidence_interval(values: Sequence[float]) -> tuple[float | None, float | None, float | None]:
    """Mean, lower and upper end of its 95 % interval (Student's t)."""
    if not values:
        return None, None, None
    mean = sum(values) / len(values)
    if len(values) < 2:
        return mean, None, None
    variance = sum((value - mean) ** 2 for value in values) / (len(values) - 1)
    half = T95[min(len(values) - 1, len(T95)) - 1] * sqrt(variance / len(values))
    return mean, mean - half, mean + half


def find_varying_fields(rows: Sequence[Row]) -> list[str]:
    """The fields, as dotted paths, in which some settings differ."""
    flat = [flatten_plan(row) for row in rows]
    paths = dict.fromkeys(path for fields in flat for path in fields)
    return [path for path in paths if len({to_canonical_json(fields.get(path)) for fields in flat}) > 1]


def flatten_plan(row: Row) -> Row:
    """The fields of a run's plan, by dotted path."""
    fields: Row = {}
    pending = list(json.loads(row["plan"]).items())
    while pending:
        path, value = pending.pop(0)
        if isinstance(value, dict) and value:
            pending = [(f"{path}.{key}", inner) for key, inner in value.items()] + pending
        else:
            fields[path] = value
    return fields


def _select_columns(values: Mapping[str, Any], names: Sequence[str]) -> Row:
    return {name: values.get(name) for name in names}


def _ratio(part: float | None, whole: float) -> float | None:
    return part / whole if part is not None and whole else None
