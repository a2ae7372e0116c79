"""What the facts about some messages show, in numbers that add up: the measures of a run are made of their sum."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import ceil
from typing import Any, Final

import numpy as np
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array
from amcast.pipeline.kernels.packet_ends import audit_ends
from amcast.pipeline.kernels.responses import Responses, find_responses
from amcast.pipeline.measure.distribution import BATCHES, Samples, encode
from amcast.pipeline.measure.facts import Facts, MulticastFacts, NoteFacts
from amcast.pipeline.measure.membership import Membership
from amcast.pipeline.measure.times import KEPT_TIMES, Times

VIEWS: Final = ("all", "destinations", "rank", "response", "group")
SLICES: Final = 50
PER_SLICE: Final = 10
"""A slice of time has at least about this many messages: with fewer, the numbers depend mostly on the slicing."""
WAITS: Final = ("own replica", "first answer", "all destinations")
"""What a client may wait for: the sender's own delivery, if it is a destination, else the first one in its region; the
first delivery anywhere; one in every destination group."""
SCOPES: Final = ("local", "global")
"""To one group, or to several."""
ROLES: Final = ("client", "destination", "other member")
"""The sender: in no group, in a destination group, in another group."""
CONVOY: Final = (
    *("deliveries", "waited", "wait_ns", "wait_ns_max", "latency_ns", "local", "local_ns", "local_waited"),
    "behind_ns",
)
"""Of the steady deliveries of a group."""


@dataclass(frozen=True)
class Span:
    """The times of a run: its multicasts, the steady part of them, and its last delivery.

    A run warms up and drains; both ends are dropped before anything is averaged: the first and the last tenth of its
    messages, in order of their multicast. (By number and not by time, because a burst takes almost no time.)
    """

    first_ns: int
    last_ns: int
    low_ns: int
    high_ns: int
    multicasts: int
    end_ns: int

    @staticmethod
    def find(times: Times, edge: float, end_ns: int | None) -> "Span":
        if not times.count:
            return Span(0, 0, 0, -1, 0, 0)
        first, last = (int(times.values[at]) for at in (0, -1))
        low, high = times.find_quantile(edge), times.find_quantile(1 - edge)
        return Span(first, last, low, high, times.count, last if end_ns is None else max(last, end_ns))

    @property
    def width_ns(self) -> int:
        """The length of a slice."""
        slices = max(1, min(ceil(self.multicasts / PER_SLICE), SLICES))
        return max(1, ceil((self.end_ns + 1 - self.first_ns) / slices))

    def find_slices(self, times: Int64Array) -> dict[int, int]:
        """The number of these times in each slice."""
        slices, codes = encode((times - self.first_ns) // self.width_ns)
        return dict(zip(slices.tolist(), np.bincount(codes, minlength=slices.size).tolist(), strict=True))

    def is_steady(self, sent: Int64Array) -> NDArray[np.bool_]:
        return (sent >= self.low_ns) & (sent <= self.high_ns)

    def find_batches(self, sent: Int64Array) -> NDArray[np.int64]:
        width = (self.high_ns - self.low_ns + 1) / BATCHES
        return np.floor((sent - self.low_ns) / width).astype(np.int64)


@dataclass(frozen=True)
class GroupAnswers:
    """The responses of one group: when, and when the message was multicast."""

    at: Int64Array
    sent: Int64Array


@dataclass
class RunObservation:
    """Sums over some messages of a run."""

    responses: Samples
    senders: Samples
    receivers: Samples
    waits: Samples
    clients: Samples
    deliveries: int = 0
    end_ns: int | None = None
    """The last delivery."""
    done: list[Times] = field(default_factory=list)
    """When messages were complete."""
    slices: dict[str, dict[int, int]] = field(default_factory=dict)
    """multicast, delivery, completion -> slice -> how many."""
    convoy: dict[int, list[float]] = field(default_factory=dict)
    steady_done: list[int] = field(default_factory=lambda: [0, 0])
    """The number of complete steady messages, and the sum of their latencies."""
    paths: dict[str, list[int]] = field(default_factory=dict)
    """name of a note -> messages, complete steady ones, sum of their latencies."""
    worked: dict[int, list[int]] = field(default_factory=dict)
    """number of a process -> ends, ends about messages of others, such messages."""
    work: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    overhead: dict[int, list[int]] = field(default_factory=dict)
    """group -> messages whose payload it received, messages that it delivered."""
    answers: dict[int, GroupAnswers] = field(default_factory=dict)
    """group -> its responses; only if they are asked for, and never added up."""

    @staticmethod
    def zero(is_exact: bool) -> "RunObservation":
        sides = (Samples(is_exact, ("region",)), Samples(is_exact, ("region",)), Samples(is_exact, ("group",)))
        clients = Samples(is_exact, ("scope", "place"))
        return RunObservation(Samples(is_exact, (*VIEWS, "route")), *sides, clients)

    def __iadd__(self, other: "RunObservation") -> "RunObservation":
        for name in ("responses", "senders", "receivers", "waits", "clients"):
            getattr(self, name).__iadd__(getattr(other, name))
        self.deliveries += other.deliveries
        ends = [end for end in (self.end_ns, other.end_ns) if end is not None]
        self.end_ns = max(ends, default=None)
        self.done += other.done
        for what, slices in other.slices.items():
            mine = self.slices.setdefault(what, {})
            for number, count in slices.items():
                mine[number] = mine.get(number, 0) + count
        for group, numbers in other.convoy.items():
            known = self.convoy.get(group, [0.0] * len(CONVOY))
            highest = max(known[3], numbers[3])
            self.convoy[group] = [a + b for a, b in zip(known, numbers, strict=True)]
            self.convoy[group][3] = highest
        self.steady_done = [a + b for a, b in zip(self.steady_done, other.steady_done, strict=True)]
        for name in ("paths", "worked", "work", "overhead"):
            _add_lists(getattr(self, name), getattr(other, name))
        return self


def _add_lists(total: dict[Any, list[int]], other: dict[Any, list[int]]) -> None:
    for key, numbers in other.items():
        known = total.get(key)
        total[key] = numbers if known is None else [a + b for a, b in zip(known, numbers, strict=True)]


@dataclass(frozen=True)
class RunScope:
    """What is known about a run before its messages are observed."""

    members: Membership
    span: Span
    order: Sequence[int] | None
    """Ranks destinations; None: by number."""
    is_exact: bool
    kept_times: int = KEPT_TIMES


def observe(facts: Facts, scope: RunScope, keeps_answers: bool = False) -> RunObservation:
    """Everything that the facts show."""
    found, sent, delivered = RunObservation.zero(scope.is_exact), facts.multicasts, facts.deliveries
    owners = sent.index.find(delivered.messages)
    keys = _rank_keys(sent.destinations, scope.order)
    reply = find_responses(owners, delivered.groups, delivered.at, sent.offsets, sent.destinations, keys)
    owner_of_place = np.repeat(np.arange(sent.count), np.diff(sent.offsets))
    _observe_responses(found, sent, reply, owner_of_place, scope)
    latency = _observe_completions(found, sent, reply, owner_of_place, scope)
    _observe_deliveries(found, facts, reply, owners, scope)
    _observe_clients(found, facts, reply, (owners, owner_of_place), scope)
    _observe_paths(found, facts.notes, sent, latency)
    found.slices["multicast"] = scope.span.find_slices(sent.at)
    if facts.packets is not None:
        _observe_packets(found, facts, reply, scope.members)
    if keeps_answers:
        for group in encode(sent.destinations[reply.answered])[0].tolist():
            own = np.nonzero(reply.answered & (sent.destinations == group))[0]
            found.answers[group] = GroupAnswers(reply.first[own], sent.at[owner_of_place[own]])
    return found


def _rank_keys(destinations: Int32Array, order: Sequence[int] | None) -> Int64Array:
    """What ranks a group among its message's destinations: its number, or its place in an overlay's order."""
    if order is None:
        return destinations.astype(np.int64)
    groups, codes = encode(destinations)
    places = {group: place for place, group in enumerate(order, start=1)}
    ranks: Int64Array = np.array([places.get(group, 0) for group in groups.tolist()], np.int64)
    return ranks[codes]


def _observe_responses(
    found: RunObservation, sent: MulticastFacts, reply: Responses, owners: NDArray[np.intp], scope: RunScope
) -> None:
    """The first delivery of each destination group of each steady message: what a client of that group waits for."""
    members, span = scope.members, scope.span
    steady = span.is_steady(sent.at)
    own = np.nonzero(reply.answered & steady[owners])[0]
    message, group = owners[own], sent.destinations[own].astype(np.int64)
    region = members.region_codes[members.number(sent.senders[message])]
    views = {
        "all": np.zeros(own.size, np.int64),
        "destinations": np.diff(sent.offsets)[message],
        "rank": reply.rank[own],
        "response": reply.turn[own],
        "group": group,
        "route": group * len(members.region_names) + region,
    }
    at = sent.at[message]
    found.responses.add(reply.first[own] - at, span.find_batches(at), views)


def _observe_completions(
    found: RunObservation, sent: MulticastFacts, reply: Responses, owners: NDArray[np.intp], scope: RunScope
) -> Int64Array:
    """Messages that every destination delivered; returns the latency of each steady one, _NOT_DONE for the others."""
    members, span = scope.members, scope.span
    last = np.full(sent.count, np.iinfo(np.int64).min, np.int64)
    np.maximum.at(last, owners[reply.answered], reply.first[reply.answered])
    found.done = [Times.summarize(last[reply.done], scope.kept_times)]
    found.slices["completion"] = span.find_slices(last[reply.done])
    own = np.nonzero(reply.done & span.is_steady(sent.at))[0]
    latency = last[own] - sent.at[own]
    region = members.region_codes[members.number(sent.senders[own])]
    found.senders.add(latency, span.find_batches(sent.at[own]), {"region": region})
    found.steady_done = [own.size, int(latency.sum())]
    every = np.full(sent.count, _NOT_DONE, np.int64)
    every[own] = latency
    return every


_NOT_DONE: Final = np.iinfo(np.int64).min


def _observe_deliveries(
    found: RunObservation, facts: Facts, reply: Responses, owners: Int32Array, scope: RunScope
) -> None:
    """Every delivery of a message that was multicast to its group; of steady ones, latency and waiting in the order.

    Convoy effect as in paper 001 (sections 5 and 7.2): local messages that wait for global ones. Processes note it
    themselves (`convoy`, nanoseconds, once per delivery); the share is relative to the latency of all local messages.
    """
    sent, delivered, members, span = facts.multicasts, facts.deliveries, scope.members, scope.span
    valid = np.nonzero(reply.is_valid)[0]
    at = delivered.at[valid]
    found.deliveries, found.end_ns = valid.size, int(at.max()) if valid.size else None
    found.slices["delivery"] = span.find_slices(at)
    times = sent.at[owners[valid]]
    own = valid[span.is_steady(times)]
    owner, times = owners[own], times[span.is_steady(times)]
    latency, number = delivered.at[own] - times, members.number(delivered.processes[own])
    batches = span.find_batches(times)
    found.receivers.add(latency, batches, {"region": members.region_codes[number]})
    wait = np.zeros(own.size, np.int64)
    if delivered.is_committed is not None:
        wait = np.maximum(delivered.at[own] - delivered.committed[own], 0) * delivered.is_committed[own]
    behind = _find_convoys(facts.notes, sent, owner, delivered.processes[own])
    groups, codes = encode(delivered.groups[own])
    waited, local = wait > 0, np.diff(sent.offsets)[owner] == 1
    found.waits.add(wait[waited], batches[waited], {"group": delivered.groups[own][waited]})
    highest = np.zeros(groups.size, np.int64)
    np.maximum.at(highest, codes, wait)
    weights = (None, waited, wait, None, latency, local, latency * local, ~np.isnan(behind), np.nan_to_num(behind))
    table = [np.bincount(codes, weight, groups.size) for weight in weights]
    table[3] = highest.astype(np.float64)
    found.convoy = {group: [float(row[at]) for row in table] for at, group in enumerate(groups.tolist())}


def _observe_clients(
    found: RunObservation,
    facts: Facts,
    reply: Responses,
    owners: tuple[Int32Array, NDArray[np.intp]],
    scope: RunScope,
) -> None:
    """How long the sender of each steady message waits, for each thing that it may wait for."""
    sent, delivered, members = facts.multicasts, facts.deliveries, scope.members
    of_row, of_place = owners
    number = members.number(sent.senders)
    own_code = np.append(members.group_codes, -1)[number]
    own_group = np.where(own_code >= 0, members.group_ids[own_code] if members.group_ids.size else 0, 0)
    is_own = (sent.destinations == own_group[of_place]) & (own_code[of_place] >= 0)
    is_destination = np.zeros(sent.count, np.bool_)
    is_destination[of_place[is_own]] = True
    late, none = np.iinfo(np.int64).max, np.iinfo(np.int64).min
    times = [np.full(sent.count, late, np.int64) for _ in range(2)]
    valid = np.nonzero(reply.is_valid)[0]
    message, process = of_row[valid], members.number(delivered.processes[valid])
    near = members.region_codes[process] == members.region_codes[number[message]]
    near &= np.array([name != "" for name in members.region_names])[members.region_codes[process]]
    near = np.where(is_destination[message], process == number[message], near) & (process >= 0)
    np.minimum.at(times[0], message[near], delivered.at[valid[near]])
    np.minimum.at(times[1], of_place[reply.answered], reply.first[reply.answered])
    last = np.full(sent.count, none, np.int64)
    np.maximum.at(last, of_place[reply.answered], reply.first[reply.answered])
    times.append(np.where(reply.done, last, late))
    role = np.where(own_code < 0, 0, np.where(is_destination, 1, 2))
    kind = (np.diff(sent.offsets) > 1).astype(np.int64)
    steady = scope.span.is_steady(sent.at)
    for wait, at in enumerate(times):
        own = np.nonzero(steady & (at != late))[0]
        key = wait * len(SCOPES) + kind[own]
        place = (key * len(ROLES) + role[own]) * len(members.region_names) + members.region_codes[number[own]]
        batches = scope.span.find_batches(sent.at[own])
        found.clients.add(at[own] - sent.at[own], batches, {"scope": key, "place": place})


def _find_convoys(
    notes: NoteFacts, sent: MulticastFacts, owners: Int32Array, processes: Int32Array
) -> NDArray[np.float64]:
    """How long each delivery waited for messages to several groups, as its process noted it; NaN without a note."""
    behind = np.full(owners.size, np.nan)
    chosen = pc.equal(notes.names, "convoy").to_numpy(zero_copy_only=False) & (np.nan_to_num(notes.values) > 0)
    if not chosen.any():
        return behind
    places = sent.index.find(notes.messages[chosen])
    known = places >= 0
    noted = _join_key(places[known], notes.processes[chosen][known])
    keys, codes = np.unique(noted, return_inverse=True)
    sums = np.bincount(codes, notes.values[chosen][known], keys.size)
    if keys.size:
        wanted = _join_key(owners, processes)
        at = np.minimum(np.searchsorted(keys, wanted), keys.size - 1)
        behind = np.where(keys[at] == wanted, sums[at], np.nan)
    return behind


def _join_key(owners: Int32Array, processes: Int32Array) -> Int64Array:
    return (owners.astype(np.int64) << 32) | (processes.astype(np.int64) & 0xFFFFFFFF)


def _observe_paths(found: RunObservation, notes: NoteFacts, sent: MulticastFacts, latency: Int64Array) -> None:
    """Fast and slow paths: the messages with each note, and how long the complete ones took."""
    names = pc.dictionary_encode(notes.names)
    codes = names.indices.to_numpy()
    places = sent.index.find(notes.messages)
    for code, name in enumerate(names.dictionary.to_pylist()):
        own = codes == code
        marked, first = np.unique(notes.messages[own], return_index=True)
        here = places[own][first]
        took = latency[here[here >= 0]]
        took = took[took != _NOT_DONE]
        found.paths[name] = [marked.size, took.size, int(took.sum())]


def _observe_packets(found: RunObservation, facts: Facts, reply: Responses, members: Membership) -> None:
    """Whose work the packets were, and the payloads that groups received."""
    sent, packets = facts.multicasts, facts.packets
    assert packets is not None
    owners = sent.index.find(packets.messages)
    ends: Int32Array = np.stack([members.number(packets.sources), members.number(packets.targets)])
    groups, codes = encode(sent.destinations)
    processes = (members.ids, members.group_codes, members.group_ids)
    messages = (sent.senders, sent.payloads, sent.offsets, sent.destinations, codes.astype(np.int32))
    seen = audit_ends(owners, ends, packets.carried, processes, messages, groups.size)
    strange, pairs = np.zeros(members.ids.size, np.int64), []
    for end in (0, 1):
        own = np.nonzero(seen.strange[end])[0]
        strange += np.bincount(ends[end, own], minlength=members.ids.size)
        pairs.append(ends[end, own].astype(np.int64) * sent.count + owners[own])
    others = np.bincount(np.unique(np.concatenate(pairs)) // max(1, sent.count), minlength=members.ids.size)
    table = (seen.worked.tolist(), strange.tolist(), others.tolist())
    found.worked = {at: list(numbers) for at, numbers in enumerate(zip(*table, strict=True)) if numbers[0]}
    for mine, theirs in zip(*np.nonzero(seen.matrix[0]), strict=True):
        key = int(members.group_ids[mine]), int(groups[theirs])
        found.work[key] = [int(seen.matrix[0, mine, theirs]), int(seen.matrix[1, mine, theirs])]
    _observe_overhead(found, facts, reply, members, seen.reached, (owners, ends[1], seen.strange_payload))


def _observe_overhead(
    found: RunObservation,
    facts: Facts,
    reply: Responses,
    members: Membership,
    reached: NDArray[np.bool_],
    payloads: tuple[Int32Array, Int32Array, NDArray[np.bool_]],
) -> None:
    sent, (owners, targets, strange) = facts.multicasts, payloads
    own = np.nonzero(strange)[0]
    code = members.group_codes[targets[own]].astype(np.int64)
    extra = np.unique(code * sent.count + owners[own]) // max(1, sent.count)
    for group, count in zip(*np.unique(extra, return_counts=True), strict=True):
        _add_lists(found.overhead, {int(members.group_ids[group]): [int(count), 0]})
    for chosen, row in ((reply.answered | reached, [1, 0]), (reply.answered, [0, 1])):
        groups, counts = np.unique(sent.destinations[chosen], return_counts=True)
        _add_lists(
            found.overhead, {g: [n * a for a in row] for g, n in zip(groups.tolist(), counts.tolist(), strict=True)}
        )
