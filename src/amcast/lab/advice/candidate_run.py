"""What clients wait for under a candidate, what crosses between regions, and what is lost when a region dies."""

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil
from typing import Any, Final

from amcast.check.judge import judge
from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId, sender_of
from amcast.kernel.topology import Topology
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.plan import parse_plan, scale_ns
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

SHARES: Final = (50, 95, 99)
WARM_UP: Final = 0.1
"""The share of messages at the begin that does not count."""


@dataclass(frozen=True)
class Waits:
    """What clients wait for, in milliseconds."""

    messages: int
    mean: float
    p50: float
    p95: float
    p99: float

    @classmethod
    def of(cls, spans_ns: Sequence[int]) -> "Waits":
        ordered = sorted(spans_ns)
        p50, p95, p99 = (ordered[max(0, ceil(len(ordered) * share / 100) - 1)] / 1e6 for share in SHARES)
        return cls(len(ordered), sum(ordered) / len(ordered) / 1e6, p50, p95, p99)

    def as_dict(self) -> dict[str, float]:
        fields = {"mean_ms": self.mean, "p50_ms": self.p50, "p95_ms": self.p95, "p99_ms": self.p99}
        return {"messages": self.messages, **{name: round(value, 3) for name, value in fields.items()}}


@dataclass(frozen=True)
class CandidateRun:
    """What a simulated run of a candidate showed."""

    total: Waits
    by_kind: dict[str, Waits]
    """local (one destination group) and global."""
    by_region: dict[str, dict[str, Waits]]
    """Region of the client -> local, global."""
    region_bytes: float
    """Bytes per multicast that servers send to other regions."""
    packets: float
    """Packets per multicast, between any two processes."""


def simulate_candidate(plan: dict[str, Any]) -> CandidateRun:
    """Simulates a candidate, judges the run, and measures what its clients waited for."""
    prepared, recorder, complete = _simulate(plan, packets=True)
    report = judge(Run.from_recorder(recorder, prepared.make_meta("candidate").with_claims(complete=complete)))
    if report.verdict == "violated":
        raise CannotTellError(" ".join(report.story()))
    return measure_waits(recorder, prepared.topology)


def _simulate(plan: dict[str, Any], packets: bool) -> tuple[PreparedRun, Recorder, bool]:
    prepared = prepare_run(parse_plan(plan, "candidate"))
    recorder = Recorder()
    recorder.wants_packets = packets
    summary = Simulation(prepared.make_setup(), recorder).run()
    if summary.violations:
        raise CannotTellError(summary.violations[0])
    return prepared, recorder, summary.complete


def measure_waits(recorder: Recorder, topology: Topology) -> CandidateRun:
    """Measures a recorded run; the first tenth of its messages does not count."""
    sent: dict[int, tuple[int, tuple[GroupId, ...]]] = {}
    for row in recorder.multicasts[int(len(recorder.multicasts) * WARM_UP) :]:
        sent[int(str(row[0]))] = (int(str(row[3])), row[2])  # type: ignore[assignment]
    kinds: dict[str, list[int]] = defaultdict(list)
    regions: dict[str, dict[str, list[int]]] = defaultdict(lambda: defaultdict(list))
    for row in recorder.answers:
        message, at_ns = int(str(row[0])), int(str(row[1]))
        if message in sent:
            since, destinations = sent[message]
            kind = "local" if len(destinations) == 1 else "global"
            kinds[kind].append(at_ns - since)
            regions[topology.region(sender_of(message))][kind].append(at_ns - since)
    if not kinds:
        raise CannotTellError("no client was answered; expected some answers to measure")
    return CandidateRun(
        Waits.of([span for spans in kinds.values() for span in spans]),
        {kind: Waits.of(spans) for kind, spans in sorted(kinds.items(), reverse=True)},
        {
            region: {kind: Waits.of(spans) for kind, spans in sorted(found.items(), reverse=True)}
            for region, found in sorted(regions.items())
        },
        _count_region_bytes(recorder, topology) / max(1, len(recorder.multicasts)),
        len(recorder.packets) / max(1, len(recorder.multicasts)),
    )


def _count_region_bytes(recorder: Recorder, topology: Topology) -> int:
    servers = set(topology.servers)
    total = 0
    for row in recorder.packets:
        source, target = int(str(row[2])), int(str(row[3]))
        if source in servers and target in servers and topology.region(source) != topology.region(target):
            total += int(str(row[4]))
    return total


@dataclass(frozen=True)
class RegionLoss:
    """What a region takes with it when it dies."""

    region: str
    stopped: tuple[GroupId, ...]
    """Groups that lose their majority."""
    led: tuple[GroupId, ...]
    """Groups that keep it and lose their leader: they elect another one."""
    answered: dict[str, tuple[int, int]]
    """Of messages to living groups alone (local, global) and of those to stopped ones ("stopped") that clients of other
    regions multicast after the loss was noticed: how many were answered, of how many."""

    @property
    def blocked(self) -> bool:
        """Whether messages that need no stopped group are not answered either."""
        return any(done < total for kind, (done, total) in self.answered.items() if kind != "stopped")


def list_losses(rows: Sequence[Sequence[str]], region: str) -> tuple[tuple[GroupId, ...], tuple[GroupId, ...]]:
    """The groups that stop when a region dies, and those that only lose their leader."""
    stopped = tuple(g for g, row in enumerate(rows) if 2 * row.count(region) >= len(row))
    led = tuple(g for g, row in enumerate(rows) if row[0] == region and g not in stopped)
    return stopped, led


def simulate_loss(plan: dict[str, Any], region: str) -> RegionLoss:
    """Kills every process of a region in the middle of a run, and counts who is answered afterwards."""
    rows = plan["topology"]["options"]["placement"]
    stopped, led = list_losses(rows, region)
    base = prepare_run(parse_plan(plan, "candidate"))
    scale = scale_ns(base.network)
    # Suspicion takes up to 48 delays, a request is repeated after up to 120: from then on losses are noticed.
    lost_ns = 40 * scale
    noticed_ns, end_ns = lost_ns + 200 * scale, lost_ns + 400 * scale
    dead = [process for process in base.topology.processes if base.topology.region(process) == region]
    workload = {key: value for key, value in plan["workload"].items() if key != "messages"}
    failing = {
        **plan,
        "workload": {**workload, "seconds": end_ns / 1e9},
        "faults": {"events": [{"at_ns": lost_ns, "do": "crash", "process": process} for process in dead]},
        "until_ns": end_ns + 400 * scale,
    }
    prepared, recorder, _ = _simulate(failing, packets=False)
    answered = {int(str(row[0])) for row in recorder.answers}
    counts: dict[str, list[int]] = {}
    for row in recorder.multicasts:
        message, since = int(str(row[0])), int(str(row[3]))
        destinations: tuple[GroupId, ...] = row[2]  # type: ignore[assignment]
        if since < noticed_ns or prepared.topology.region(sender_of(message)) == region:
            continue
        alive = "local" if len(destinations) == 1 else "global"
        kind = "stopped" if set(destinations) & set(stopped) else alive
        count = counts.setdefault(kind, [0, 0])
        count[0] += message in answered
        count[1] += 1
    return RegionLoss(region, stopped, led, {kind: (done, total) for kind, (done, total) in sorted(counts.items())})
