"""A run as text, one line per step, in time order.

    0.000 ms  client 6            multicasts 6000000000 to groups 0, 1 (64 bytes)
    0.000 ms  client 6 -> p0      Request about 6000000000, 96 bytes
    1.000 ms  p0 <- client 6      Request about 6000000000, 1.000 ms on its way
    2.000 ms  p0                  delivers 6000000000 at position 0, rank (1, 6000000000)

Steps that match a `Selection` are shown, the earliest first; if a limit omits some, the last line says how many. The
times of a live run count from its first multicast, and its replicas go by their names.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from heapq import nsmallest
from typing import Any, Final, NamedTuple

from amcast.kernel.errors import UsageError
from amcast.trace.run import Run

CLOCK_NS: Final = 10**17
"""Times from here on (1973) are those of a clock that counts from 1970; simulated runs are shorter."""


@dataclass(frozen=True)
class Selection:
    """Which steps to show: about one message, at one process, within a window of time. None means all."""

    message: int | None = None
    process: int | None = None
    since_ns: int | None = None
    until_ns: int | None = None
    origin_ns: int = 0
    """What the times that are shown count from (`find_origin`)."""

    def __post_init__(self) -> None:
        if self.since_ns is not None and self.until_ns is not None and self.since_ns > self.until_ns:
            raise UsageError(f"window {self.since_ns}..{self.until_ns} ns is upside down; expected its start first")

    def includes_time(self, at_ns: int) -> bool:
        return (self.since_ns is None or at_ns >= self.since_ns) and (self.until_ns is None or at_ns <= self.until_ns)

    def includes_message(self, *messages: int | None) -> bool:
        return self.message is None or self.message in messages

    def includes_process(self, *processes: int) -> bool:
        return self.process is None or self.process in processes

    def describe(self) -> str:
        parts = []
        if self.message is not None:
            parts.append(f"message {self.message}")
        if self.process is not None:
            parts.append(f"process {self.process}")
        if self.since_ns is not None or self.until_ns is not None:
            since = "the start" if self.since_ns is None else format_time(self.since_ns - self.origin_ns)
            until = "the end" if self.until_ns is None else format_time(self.until_ns - self.origin_ns)
            parts.append(f"from {since} to {until}")
        return ", ".join(parts) or "everything"


MULTICAST, RECEIVED, SENT, RECEIVED_AT_ONCE, NOTED, DELIVERED, ANSWERED = range(7)
"""Kinds of steps, in the order of causes: among steps of equal time, no effect is shown before its cause."""


class TraceStep(NamedTuple):
    """One line."""

    at_ns: int
    kind: int
    process: int
    place: int
    who: str
    what: str


def render_lines(run: Run, selection: Selection | None = None, limit: int = 200) -> Iterator[str]:
    """The view, line by line."""
    selection = selection or Selection()
    if limit < 1:
        raise UsageError(f"limit {limit}; expected at least 1 line")
    check_selection(run, selection)
    origin = find_origin(run)
    total = 0

    def count_steps() -> Iterator[TraceStep]:
        nonlocal total
        for step in iterate_steps(run, selection):
            total += 1
            yield step

    shown = nsmallest(limit, count_steps())
    digits = 3 if all((step.at_ns - origin) % 1000 == 0 for step in shown) else 6
    times = [format_time(step.at_ns - origin, digits) for step in shown]
    time_width, name = max(map(len, times), default=0), max((len(step.who) for step in shown), default=0)
    for at, step in zip(times, shown, strict=True):
        yield f"{at:>{time_width}}  {step.who:<{name}}  {step.what}"
    if not total:
        yield f"no step matches ({selection.describe()})"
    elif total > len(shown):
        yield f"... {total - len(shown)} of {total} steps left out after these {len(shown)} (the limit)"


def check_selection(run: Run, selection: Selection) -> None:
    """Refuses a selection of a process or message that the run does not have."""
    if selection.process is not None and selection.process not in run.processes["process"]:
        raise UsageError(f"process {selection.process} is not in run {run.meta.run}; expected one of its processes")
    if selection.message is not None and selection.message not in run.multicasts["message"]:
        raise UsageError(f"message {selection.message} is not in run {run.meta.run}; expected one that was multicast")


def iterate_steps(run: Run, selection: Selection) -> Iterator[TraceStep]:
    """Every step that matches, in no particular order."""
    names = process_names(run)
    yield from _multicast_steps(run, selection, names)
    yield from _answer_steps(run, selection, names)
    yield from _packet_steps(run, selection, names)
    yield from _note_steps(run, selection, names)
    yield from _delivery_steps(run, selection, names)


def find_origin(run: Run) -> int:
    """What the times of a run count from when they are shown: 0, or the first multicast of a run whose times are those
    of a clock."""
    first: int = min(run.multicasts["at_ns"], default=0)
    return first if first >= CLOCK_NS else 0


def process_names(run: Run) -> dict[int, str]:
    """ "client 8" for a process of no group; for a member "orders/1", if run.json names its group, else "p3"."""
    rows = zip(run.processes["process"], run.processes["group"], strict=True)
    names = {process: f"p{process}" if group is not None else f"client {process}" for process, group in rows}
    for group, members in _list_named_groups(run):
        names.update({member: f"{group}/{number}" for number, member in enumerate(members, 1) if member in names})
    return names


def group_names(run: Run) -> dict[int, str]:
    """By group: its name in run.json; groups without a name are missing."""
    groups = dict(zip(run.processes["process"], run.processes["group"], strict=True))
    return {groups[members[0]]: name for name, members in _list_named_groups(run) if members[0] in groups}


def _list_named_groups(run: Run) -> Iterator[tuple[str, list[int]]]:
    """Names and members of the groups in run.json, as far as they have the form that amcast writes."""
    topology = run.meta.topology
    groups = topology.get("groups") if isinstance(topology, dict) else None
    for group in groups if isinstance(groups, list) else ():
        if (
            isinstance(group, dict)
            and isinstance(group.get("name"), str)
            and group["name"]
            and isinstance(group.get("members"), list)
        ):
            members = [member for member in group["members"] if isinstance(member, int)]
            if members:
                yield group["name"], members


def _process_name(names: dict[int, str], process: int) -> str:
    return names.get(process, f"p{process}?")


def _multicast_steps(run: Run, selection: Selection, names: dict[int, str]) -> Iterator[TraceStep]:
    for message, sender, groups, at, size in _iterate_rows(
        run.multicasts, "message", "sender", "destinations", "at_ns", "bytes"
    ):
        if selection.includes_time(at) and selection.includes_message(message) and selection.includes_process(sender):
            to = ("group " if len(groups) == 1 else "groups ") + ", ".join(map(str, groups))
            text = f"multicasts {message} to {to} ({size} bytes)"
            yield TraceStep(at, MULTICAST, sender, message, _process_name(names, sender), text)


def _answer_steps(run: Run, selection: Selection, names: dict[int, str]) -> Iterator[TraceStep]:
    senders = dict(_iterate_rows(run.multicasts, "message", "sender"))
    for message, at in _iterate_rows(run.answers, "message", "at_ns") if run.answers is not None else ():
        sender = senders.get(message)
        if sender is None or not selection.includes_process(sender):
            continue
        if selection.includes_time(at) and selection.includes_message(message):
            text = f"has the answer to {message}"
            yield TraceStep(at, ANSWERED, sender, message, _process_name(names, sender), text)


def _packet_steps(run: Run, selection: Selection, names: dict[int, str]) -> Iterator[TraceStep]:
    if run.packets is None:
        return
    columns = ("message", "messages", "body", "source", "target", "bytes", "sent_ns", "received_ns")
    place = 0
    for batch in run.packets.batches(*columns):
        for one, several, body, source, target, size, sent, received in _iterate_rows(batch, *columns):
            place += 1
            messages = packet_messages(one, several)
            if not selection.includes_message(*messages):
                continue
            text = body + (f" about {', '.join(map(str, messages))}" if messages else "")
            if selection.includes_time(sent) and selection.includes_process(source):
                fate = ", which is lost" if received is None else ""
                who = f"{_process_name(names, source)} -> {_process_name(names, target)}"
                yield TraceStep(sent, SENT, source, place, who, f"{text}, {size} bytes{fate}")
            if received is not None and selection.includes_time(received) and selection.includes_process(target):
                who = f"{_process_name(names, target)} <- {_process_name(names, source)}"
                kind, way = RECEIVED, f"{format_time(received - sent)} on its way"
                if received == sent:
                    kind, way = RECEIVED_AT_ONCE, "at once"
                yield TraceStep(received, kind, target, place, who, f"{text}, {way}")


def _note_steps(run: Run, selection: Selection, names: dict[int, str]) -> Iterator[TraceStep]:
    rows = _iterate_rows(run.notes, "process", "at_ns", "name", "message", "value")
    for place, (process, at, name, message, value) in enumerate(rows):
        if selection.includes_time(at) and selection.includes_message(message) and selection.includes_process(process):
            text = f"notes {name}"
            text += f" about {message}" if message is not None else ""
            text += f" = {value:g}" if value is not None else ""
            yield TraceStep(at, NOTED, process, place, _process_name(names, process), text)


def _delivery_steps(run: Run, selection: Selection, names: dict[int, str]) -> Iterator[TraceStep]:
    for process, position, message, at, time, tie in _iterate_rows(
        run.deliveries, "process", "position", "message", "at_ns", "rank_time", "rank_tie"
    ):
        if selection.includes_time(at) and selection.includes_message(message) and selection.includes_process(process):
            rank = f", rank ({time}, {tie})" if time is not None else ""
            text = f"delivers {message} at position {position}{rank}"
            yield TraceStep(at, DELIVERED, process, position, _process_name(names, process), text)


def packet_messages(one: int | None, several: list[int] | None) -> tuple[int, ...]:
    """The messages that a packet is about."""
    first = () if one is None else (one,)
    return tuple(dict.fromkeys((*first, *several))) if several else first


def _iterate_rows(columns: dict[str, list[Any]], *names: str) -> Iterator[tuple[Any, ...]]:
    return zip(*(columns[name] for name in names), strict=True)


def format_time(at_ns: int, digits: int | None = None) -> str:
    """A time in milliseconds; with as many digits as needed, unless they are given."""
    if digits is None:
        digits = 3 if at_ns % 1000 == 0 else 6
    return f"{at_ns / 1e6:,.{digits}f} ms"
