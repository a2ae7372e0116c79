"""What an experiment measures in one run, as columns of its table.

    answer_ms_mean, _p50, _p90, _p95, _p99    what a client waits for (the plan's `answers`)
    ..._local, ..._global                     the same of messages to one group, to several groups
    ..._REGION                                the same of clients of one region
    answer_ms_max, answer_gap_ms_max          with faults: the longest wait, and the longest time without any answer
    leader_ms_p50, _p95, follower_ms_...      from multicast to delivery at the processes of a role
    rank1_ms_p50, _p90, _p95, _p99, rank2 ... to the first delivery in the n-th destination group, by rank
    response1_ms_..., response2 ...           to the n-th destination group that delivers
    client_rank1_ms_..., client_response1 ... the same with the way back to the client, without jitter
    throughput_per_s                          answers per second
    packets_per_multicast, uplink_kb_per_s    with packets: all packets; bytes that a region sends to others, the mean
                                              and (uplink_kb_per_s_max) the highest region
    received_kb_per_s                         with packets: bytes that a process receives, from clients too; the mean
                                              and (received_kb_per_s_max) the highest process
    overhead_max, overhead_mean               with packets: of the messages whose payload reaches a group, those that
                                              are not addressed to it, in per cent; the worst group and the mean
    clean_share                               with packets: messages whose payload reaches destinations only, per cent
    delays, lone_packets, leader_delays ...   of one lone multicast (`lone = true`), as `amcast delays` counts them

Messages that are multicast in the first or the last tenth of the time do not count.
"""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import ceil
from typing import Any, Final, get_type_hints

from amcast.check.judge import judge
from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId, MessageId, ProcessId, sender_of
from amcast.kernel.message import Message
from amcast.lab.delays import measure_delays
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.network import Network
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

EDGE: Final = 0.1
SHARES: Final = (50, 90, 95, 99)
PLACES: Final = 3
"""Destinations of a message that have columns of their own, by rank and by response."""

Sent = dict[MessageId, tuple[int, tuple[GroupId, ...]]]
"""Of the messages that count: when each was multicast, and where to."""


def measure_lone_cell(values: dict[str, Any]) -> dict[str, Any]:
    """The message delays and packets of one multicast to all groups of a plan, where nothing else happens."""
    prepared = prepare_run(parse_plan(values))
    topology = prepared.topology
    replicas = len(topology.members(topology.groups[0]))
    row = measure_delays(find_protocol(prepared.plan.protocol), len(topology.groups), replicas, prepared.plan.options)
    roles = {f"{role}_delays": float(delays) for role, delays in row.delays_by_role.items()}
    return {"delays": float(row.delays_max or 0), "lone_packets": float(row.packets), **roles}


def run_measured_cell(values: dict[str, Any], packets: bool = False) -> dict[str, Any]:
    """Simulates a plan, judges the run, and measures it."""
    prepared = prepare_run(parse_plan(values))
    recorder = Recorder()
    recorder.wants_packets = packets
    summary = Simulation(prepared.make_setup(), recorder).run()
    report = judge(Run.from_recorder(recorder, prepared.make_meta("cell").with_claims(complete=summary.complete)))
    if summary.violations or report.verdict == "violated":
        raise CannotTellError(" ".join([*summary.violations[:1], *report.story()]))
    return {"end": summary.end, "multicasts": summary.multicasts, **measure(prepared, recorder)}


def measure(prepared: PreparedRun, recorder: Recorder) -> dict[str, float]:
    """All columns."""
    times = sorted(int(str(row[3])) for row in recorder.multicasts)
    if not times:
        return {}
    begin, end = times[0], max(times[-1], round(prepared.plan.seconds * 1e9))
    low, high = begin + (end - begin) * EDGE, end - (end - begin) * EDGE
    sent: Sent = {
        int(str(row[0])): (int(str(row[3])), row[2])  # type: ignore[misc]
        for row in recorder.multicasts
        if low <= int(str(row[3])) <= high
    }
    found: dict[str, float] = {}
    _measure_answers(prepared, recorder, sent, found)
    answered = sum(1 for row in recorder.answers if low <= int(str(row[1])) <= high)
    if high > low:
        found["throughput_per_s"] = answered * 1e9 / (high - low)
    _measure_deliveries(prepared, recorder, sent, found)
    if recorder.wants_packets:
        _measure_packets(prepared, recorder, (low, high), found)
    return {name: round(value, 4) for name, value in found.items()}


def _measure_answers(prepared: PreparedRun, recorder: Recorder, sent: Sent, found: dict[str, float]) -> None:
    spans: dict[str, list[int]] = defaultdict(list)
    for row in recorder.answers:
        message, at_ns = int(str(row[0])), int(str(row[1]))
        if message in sent:
            since, destinations = sent[message]
            region = prepared.topology.region(sender_of(message))
            for view in ("", "_global" if len(destinations) > 1 else "_local", f"_{region}" if region else ""):
                spans[view].append(at_ns - since)
    for view, values in sorted(spans.items()):
        summarize("answer_ms", values, found, view)
    if prepared.plan.faults.events and spans[""]:
        found["answer_ms_max"] = max(spans[""]) / 1e6
        times = sorted(int(str(row[1])) for row in recorder.answers)
        found["answer_gap_ms_max"] = max((late - early for early, late in pairwise(times)), default=0) / 1e6


def _measure_deliveries(prepared: PreparedRun, recorder: Recorder, sent: Sent, found: dict[str, float]) -> None:
    roles: dict[str, list[int]] = defaultdict(list)
    first: dict[str, dict[MessageId, dict[GroupId, int]]] = {
        "": defaultdict(dict),
        "client_": defaultdict(dict),
    }
    network = Network(prepared.network, prepared.topology, make_stream(0))
    role_of: dict[ProcessId, str] = {
        process: prepared.spec.role_of(prepared.topology, process) for process in prepared.topology.servers
    }
    for row in recorder.deliveries:
        process, group, message, at_ns = (int(str(row[place])) for place in (0, 1, 3, 4))
        if message in sent:
            span = at_ns - sent[message][0]
            roles[role_of[process]].append(span)
            for view, at in (("", span), ("client_", span + network.base_delay(process, sender_of(message)))):
                known = first[view][message].get(group)
                if known is None or at < known:
                    first[view][message][group] = at
    for role, values in sorted(roles.items()):
        summarize(f"{role}_ms", values, found)
    ranks = {group: place for place, group in enumerate(list_ranks(prepared))}
    places: dict[str, list[int]] = defaultdict(list)
    for view, spans in ((view, spans) for view, messages in first.items() for spans in messages.values()):
        for place, group in enumerate(sorted(spans, key=ranks.__getitem__)[:PLACES], 1):
            places[f"{view}rank{place}_ms"].append(spans[group])
        for place, span in enumerate(sorted(spans.values())[:PLACES], 1):
            places[f"{view}response{place}_ms"].append(span)
    for name, values in sorted(places.items()):
        summarize(name, values, found)


def _measure_packets(
    prepared: PreparedRun, recorder: Recorder, window: tuple[float, float], found: dict[str, float]
) -> None:
    region_of = {process: prepared.topology.region(process) for process in prepared.topology.processes}
    servers = set(prepared.topology.servers)
    low, high = window
    uplinks: dict[str, int] = {region_of[process]: 0 for process in servers}
    destinations: dict[int, Any] = {int(str(row[0])): row[2] for row in recorder.multicasts}
    carriers = {body.__name__ for body in prepared.wire_bodies() if Message in get_type_hints(body).values()}
    reached: dict[GroupId, set[MessageId]] = defaultdict(set)
    received: dict[ProcessId, int] = dict.fromkeys(prepared.topology.servers, 0)
    for row in recorder.packets:
        message, source, target = row[0], int(str(row[2])), int(str(row[3]))
        size, sent_ns = int(str(row[4])) + prepared.network.overhead_bytes, int(str(row[5]))
        leaves = source in servers and target in servers and region_of[source] != region_of[target]
        is_steady = low <= sent_ns <= high
        if leaves and is_steady:
            uplinks[region_of[source]] += size
        if target in servers and is_steady:
            received[target] += size
        group = prepared.topology.group_of(target)
        if group is not None and message is not None and row[1] in carriers:
            reached[group].add(int(str(message)))
    seconds = (high - low) / 1e9
    if seconds > 0 and uplinks:
        rates = [total / 1000 / seconds for total in uplinks.values()]
        found["uplink_kb_per_s"] = sum(rates) / len(rates)
        found["uplink_kb_per_s_max"] = max(rates)
        rates = [total / 1000 / seconds for total in received.values()]
        found["received_kb_per_s"], found["received_kb_per_s_max"] = sum(rates) / len(rates), max(rates)
    found["packets_per_multicast"] = len(recorder.packets) / len(recorder.multicasts)
    shares, strayed = [], set()
    for group in prepared.topology.groups:
        messages = reached[group]
        foreign = {message for message in messages if group not in destinations[message]}
        strayed |= foreign
        shares.append(100 * len(foreign) / len(messages) if messages else 0.0)
    found["clean_share"] = 100 - 100 * len(strayed) / len(recorder.multicasts)
    found["overhead_mean"], found["overhead_max"] = sum(shares) / len(shares), max(shares)


def list_ranks(prepared: PreparedRun) -> list[GroupId]:
    """The groups by rank: in the order of FlexCast's overlay, from the root of a tree downwards, or by id."""
    options = prepared.plan.options
    if "order" in options:
        return list(options["order"])
    if "edges" not in options:
        return list(prepared.topology.groups)
    children: dict[GroupId, list[GroupId]] = defaultdict(list)
    for parent, child in options["edges"]:
        children[parent].append(child)
    below = {child for _, child in options["edges"]}
    ranks = [parent for parent in children if parent not in below][:1]
    for group in ranks:
        ranks += children.get(group, [])
    return ranks


def summarize(name: str, spans: Iterable[int], found: dict[str, float], suffix: str = "") -> None:
    """Adds the mean and percentiles (of the nearest rank) of nanoseconds, in milliseconds."""
    values = sorted(spans)
    if not values:
        return
    found[f"{name}_mean{suffix}"] = sum(values) / len(values) / 1e6
    for share in SHARES:
        found[f"{name}_p{share}{suffix}"] = take_percentile(values, share) / 1e6


def take_percentile(values: Sequence[int], share: float) -> int:
    return values[max(0, ceil(len(values) * share / 100) - 1)]
