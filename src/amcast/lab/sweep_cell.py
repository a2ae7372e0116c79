"""One cell of a sweep: from a plan as plain data to one row of results. Sweeps get these functions as arguments.

    normalise_plan     checks and completes a plan, so that equal cells look equal
    estimate_seconds   estimates how long a cell takes, to balance a sweep
    run_cell           simulates, judges and measures a cell

Everything in a row follows from the plan: two machines that run a cell get the same row.
"""

import os
import platform
import shutil
from collections.abc import Sequence
from functools import lru_cache
from math import ceil
from pathlib import Path
from typing import Any, Final

import msgspec

from amcast.check.judge import Report, judge
from amcast.kernel.errors import UsageError
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.plan import describe_plan, parse_plan
from amcast.simulation.simulate import RunSummary, Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from amcast.trace.run import read_run as read_run
from amcast.trace.run_folder import FolderRecorder

EDGE: Final = 0.1
"""The share of messages that is dropped at either end: warm-up and drain are not the steady state."""
SHARES: Final = (50, 90, 95, 99)
ADDED_FIELDS: Final = {"senders": "clients"}
"""Fields of plans that are younger than the committed tables of cells, with their defaults: a cell that has the default
goes without, and keeps its id."""
SECONDS_PER_PACKET: Final = 3e-5
"""CPU time to simulate, record and judge one packet on a slow core. Only the balance of a sweep depends on it."""


def normalise_plan(values: dict[str, Any], where: str) -> dict[str, Any]:
    """A checked plan with every field filled in."""
    plain = describe_plan(parse_plan(values, where))
    plain = {name: value for name, value in plain.items() if name not in ADDED_FIELDS or value != ADDED_FIELDS[name]}
    try:
        workload = _checked(msgspec.json.encode({**plain, "seed": 0}, order="sorted"))
    except UsageError as error:
        raise UsageError(f"{where}: {error}; [[exclude]] leaves cells out, [[override]] changes them") from None
    return {**plain, "workload": {**workload, **plain["workload"]}}


@lru_cache(maxsize=4096)
def _checked(plan: bytes) -> dict[str, Any]:
    """The fields that the workload's table leaves to defaults. Cells that differ only in their seed are valid or
    invalid together."""
    prepared = prepare_run(parse_plan(msgspec.json.decode(plan)))
    workload: dict[str, Any] = {"name": prepared.plan.workload_name, "messages": prepared.plan.messages}
    load = prepared.make_workload(0)
    return workload if load.is_open_loop else {**workload, "outstanding": load.outstanding}


def estimate_seconds(values: dict[str, Any]) -> float:
    """Estimates how many seconds a cell takes."""
    return _weight(msgspec.json.encode({**values, "seed": 0}, order="sorted"))


@lru_cache(maxsize=4096)
def _weight(values: bytes) -> float:
    prepared = prepare_run(parse_plan(msgspec.json.decode(values)))
    topology, plan = prepared.topology, prepared.plan
    replicas = max(len(topology.members(group)) for group in topology.groups)
    destinations = plan.workload.get("destinations", 2)
    wide = max(destinations) if isinstance(destinations, (list, tuple)) and destinations else destinations
    k = max(1, min(int(wide) if isinstance(wide, int) else 2, len(topology.groups)))
    packets = prepared.spec.claims.packets(k, replicas) or 2 * (k * replicas) ** 2
    return 0.02 + plan.messages * packets * SECONDS_PER_PACKET


def run_cell(values: dict[str, Any], folder: str | None = None, packets: bool = True) -> dict[str, Any]:
    """Run a cell, judge it, and say how it went. With a folder, its trace is kept there.

    The trace of a run that violates a property is kept in any case, if there is a folder to keep it in:
    `folder` ending in "?" means only then.
    """
    prepared = prepare_run(parse_plan(values))
    only_if_violated = folder is not None and folder.endswith("?")
    target = Path(folder.removesuffix("?")) if folder is not None else None
    if target is not None and not only_if_violated:
        summary, run = _recorded(prepared, target, packets)
    else:
        recorder = Recorder()
        recorder.wants_packets = packets
        summary = Simulation(prepared.make_setup(), recorder).run()
        run = Run.from_recorder(
            recorder, prepared.make_meta(target.name if target else "cell").with_claims(complete=summary.complete)
        )
    report = judge(run)
    if only_if_violated and target is not None and (summary.violations or report.verdict == "violated"):
        _recorded(prepared, target, packets)
    return make_row(summary, run, report)


def _recorded(prepared: PreparedRun, target: Path, packets: bool) -> tuple[RunSummary, Run]:
    """Simulates into a folder that appears when it is complete: a killed cell leaves only a dot-folder."""
    # A unique name: a cell may be retried elsewhere while a machine that seemed lost still works on it.
    early = target.parent / f".{target.name}-{platform.node()}-{os.getpid()}"
    for old in (early, target):
        shutil.rmtree(old, ignore_errors=True)
    with FolderRecorder(early, prepared.make_meta(target.name), packets=packets, latest=False) as recorder:
        summary = Simulation(prepared.make_setup(), recorder).run()
        recorder.close(complete=summary.complete)
    early.rename(target)
    return summary, read_run(target)


def make_row(summary: RunSummary, run: Run, report: Report) -> dict[str, Any]:
    """The row of a cell, without anything that depends on the machine."""
    verdict = "violated" if summary.violations else report.verdict
    status = {"holds": "ok"}.get(verdict, verdict)
    message = " ".join(sentence.strip() for sentence in [*summary.violations[:1], *report.story()])
    return {
        "status": status,
        "message": message or None,
        "end": summary.end,
        "multicasts": summary.multicasts,
        "deliveries": summary.deliveries,
        "packets": summary.packets,
        "steps": summary.steps,
        "simulated_ns": summary.simulated_ns,
        "notes": summary.notes,
        **_measured(run),
    }


def _measured(run: Run) -> dict[str, Any]:
    """Throughput and latency in the steady part of a run: every (message, group) counts once, by its first replica."""
    sent = dict(zip(run.multicasts["message"], run.multicasts["at_ns"], strict=True))
    owed = {m: len(d) for m, d in zip(run.multicasts["message"], run.multicasts["destinations"], strict=True)}
    if not sent:
        return {}
    low, high = edges(sorted(sent.values()))
    first: dict[tuple[int, int], int] = {}
    table = run.deliveries
    for message, group, at in zip(table["message"], table["group"], table["at_ns"], strict=True):
        key = (message, group)
        if at < first.get(key, at + 1):
            first[key] = at
    spans, last = [], dict.fromkeys(sent, 0)
    for (message, _), at in first.items():
        if message in sent:
            owed[message] -= 1
            last[message] = max(last[message], at)
            if low <= sent[message] <= high:
                spans.append(at - sent[message])
    done = [at for message, at in last.items() if owed[message] == 0]
    size = sum(sum(batch["bytes"]) for batch in run.packets.batches("bytes")) if run.packets is not None else None
    return {
        "bytes": size,
        "throughput_per_s": throughput(done),
        **latencies(sorted(spans)),
    }


def edges(times: Sequence[int]) -> tuple[int, int]:
    """The begin and end of the steady part of sorted times."""
    return tuple(times[max(0, ceil(len(times) * share) - 1)] for share in (EDGE, 1 - EDGE))  # type: ignore[return-value]


def throughput(done: Sequence[int]) -> float | None:
    """Completions per second in the steady part."""
    if not done:
        return None
    low, high = edges(sorted(done))
    steady = sum(1 for at in done if low < at <= high)
    return steady * 1e9 / (high - low) if high > low else None


def latencies(spans: Sequence[int]) -> dict[str, Any]:
    """Percentiles of sorted nanoseconds, by the nearest rank: each is a latency that occurred."""
    if not spans:
        return {}
    found: dict[str, Any] = {
        "latency_ns_mean": sum(spans) / len(spans),
        **{f"latency_ns_p{share}": spans[max(0, ceil(len(spans) * share / 100) - 1)] for share in SHARES},
        "latency_ns_max": spans[-1],
    }
    return found
