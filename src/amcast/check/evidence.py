"""The evidence of a run: which processes are correct, and what each process delivered, in order.

The position of a delivery says where it belongs in the process' sequence. Two notes say what the rows cannot:

- `installed` (value v): the process installed a snapshot; the group's messages at positions below v count as delivered
by it, and are filled in from the rows of its group.
- `trace-gap` (value v): rows from position v on are lost, up to the next row that exists.

Positions that are missing without a note are a gap as well: a sampled trace proves no order. Before its first gap a
process' sequence is exact; after it, only recorded deliveries are certain.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import compress
from math import isfinite
from typing import Any

from amcast.kernel.errors import UsageError
from amcast.trace.columns import LIMIT
from amcast.trace.run import Run

Entry = tuple[int, int, int | None]
"""(position, message, at_ns); at_ns is None when a snapshot stands for the delivery."""


@dataclass
class DeliverySequence:
    """The deliveries of one process, by position."""

    process: int
    entries: list[Entry]
    gap: int | None = None
    """The first missing position, if one is missing."""
    positions: list[int] = field(init=False)
    messages: list[int] = field(init=False)

    def __post_init__(self) -> None:
        self.positions = [entry[0] for entry in self.entries]
        self.messages = [entry[1] for entry in self.entries]


@dataclass
class Evidence:
    """A run, prepared for the checks."""

    run: Run
    complete: bool
    group_of: dict[int, int | None]
    crashed: dict[int, int]
    """Processes that did not recover -> when they crashed."""
    members: dict[int, tuple[int, ...]]
    sender: dict[int, int]
    destinations: dict[int, tuple[int, ...]]
    multicast_ns: dict[int, int]
    session: dict[int, tuple[int, int]]
    """Messages of client sessions -> (session, sequence number)."""
    sequences: dict[int, DeliverySequence]
    """Of every member of a group, and of every other process that delivered something or lost rows of its trace."""
    _members_of: dict[tuple[int, ...], tuple[int, ...]] = field(default_factory=dict)
    _delivered: dict[int, frozenset[int]] = field(default_factory=dict)

    def addressed_members(self, message: int) -> tuple[int, ...]:
        """The members of a message's destinations."""
        destinations = self.destinations[message]
        found = self._members_of.get(destinations)
        if found is None:
            found = tuple(member for group in destinations for member in self.members[group])
            self._members_of[destinations] = found
        return found

    def delivered_messages(self, process: int) -> frozenset[int]:
        """The messages that a process is known to have delivered."""
        found = self._delivered.get(process)
        if found is None:
            found = self._delivered[process] = frozenset(self.sequences[process].messages)
        return found

    def gaps(self) -> list[DeliverySequence]:
        return [sequence for sequence in self.sequences.values() if sequence.gap is not None]

    def valid_deliveries(self, sequence: DeliverySequence) -> tuple[list[int], list[int]]:
        """(messages, positions) that integrity allows: known messages, addressed to the process, each once. Order is
        checked on these.
        """
        group = self.group_of.get(sequence.process)
        destinations = self.destinations
        messages = sequence.messages
        fits = [group in destinations.get(message, ()) for message in messages]
        if all(fits) and len(self.delivered_messages(sequence.process)) == len(messages):
            return messages, sequence.positions
        first: dict[int, int] = {}
        for message, position in compress(zip(messages, sequence.positions, strict=True), fits):
            first.setdefault(message, position)
        return list(first), list(first.values())


def collect_evidence(run: Run) -> Evidence:
    """Reads the tables; refuses tables that contradict themselves."""
    processes, multicasts = run.processes, run.multicasts
    group_of = _map_unique(processes["process"], processes["group"], "processes: process", "group")
    crashes = zip(processes["process"], processes["crashed_at_ns"], strict=True)
    members: dict[int, list[int]] = {}
    for process in sorted(group_of):
        if group_of[process] is not None:
            members.setdefault(group_of[process], []).append(process)
    messages = multicasts["message"]
    destinations = _map_unique(
        messages, _normalize_sets(multicasts["destinations"]), "multicasts: message", "destinations"
    )
    _refuse_unknown_groups(destinations, members)
    multicast_ns = _find_first_multicasts(messages, multicasts["at_ns"])
    _refuse_contradictions(run, group_of, destinations, multicast_ns)
    return Evidence(
        run=run,
        complete=run.meta.claims.complete,
        group_of=group_of,
        crashed=_find_last_crashes((process, at) for process, at in crashes if at is not None),
        members={group: tuple(found) for group, found in sorted(members.items())},
        sender=_map_unique(messages, multicasts["sender"], "multicasts: message", "sender"),
        destinations=destinations,
        multicast_ns=multicast_ns,
        session=_map_sessions(multicasts),
        sequences=_build_sequences(run, group_of, members),
    )


def _map_unique(keys: list[int], values: list[Any], what: str, column: str) -> dict[int, Any]:
    """A table as a map. A key that occurs again (a client that retried) must have the same value."""
    found = dict(zip(keys, values, strict=True))
    if len(found) == len(keys):
        return found
    first: dict[int, Any] = {}
    for key, value in zip(keys, values, strict=True):
        if first.setdefault(key, value) != value:
            raise UsageError(f"{what} {key} has {column} {first[key]} and {value}; expected one value")
    return first


def _normalize_sets(lists: Iterable[Iterable[int]]) -> list[tuple[int, ...]]:
    return [tuple(sorted(set(groups))) for groups in lists]


def _refuse_unknown_groups(destinations: dict[int, tuple[int, ...]], members: dict[int, list[int]]) -> None:
    judged: set[tuple[int, ...]] = set()
    for message, groups in destinations.items():
        if groups in judged:
            continue
        judged.add(groups)
        if not groups:
            raise UsageError(f"multicasts: message {message} has no destinations; expected at least one group")
        for group in groups:
            if group not in members:
                raise UsageError(
                    f"multicasts: message {message} is addressed to group {group}, of which processes lists no member;"
                    f" expected some of {list(members)[:8]}"
                )


def _find_last_crashes(crashes: Iterable[tuple[int, int]]) -> dict[int, int]:
    """When processes crashed. A process that stopped cleanly and crashed in a later incarnation has a row of each
    incarnation; the crash counts.
    """
    found: dict[int, int] = {}
    for process, at in crashes:
        found[process] = max(at, found.get(process, at))
    return found


def _find_first_multicasts(messages: list[int], times: list[int]) -> dict[int, int]:
    found = dict(zip(messages, times, strict=True))
    if len(found) != len(messages):
        for message, at in zip(messages, times, strict=True):
            found[message] = min(found[message], at)
    return found


def _map_sessions(multicasts: dict[str, list[Any]]) -> dict[int, tuple[int, int]]:
    numbers = list(zip(multicasts["session"], multicasts["sequence"], strict=True))
    found = _map_unique(multicasts["message"], numbers, "multicasts: message", "session and sequence")
    return {m: pair for m, pair in found.items() if None not in pair}


def _refuse_contradictions(
    run: Run,
    group_of: dict[int, int | None],
    destinations: dict[int, tuple[int, ...]],
    multicast_ns: dict[int, int],
) -> None:
    """Refuses deliveries that state another group, other destinations or another time of multicast than the tables
    that have the last word about these.
    """
    table = run.deliveries
    names = ("process", "group", "message", "destinations", "multicast_ns")
    for process, group, message, stated, sent in zip(*(table[name] for name in names), strict=True):
        if group != group_of.get(process, group) and group_of[process] is not None:
            raise contradiction_error("group", f"process {process}", group, group_of[process], "processes")
        known = destinations.get(message)
        if known is None:
            continue
        if stated is not None and stated != known and tuple(sorted(set(stated))) != known:
            raise contradiction_error("destinations", f"message {message}", list(stated), list(known))
        if sent is not None and sent != multicast_ns[message]:
            raise contradiction_error("multicast_ns", f"message {message}", sent, multicast_ns[message])


def contradiction_error(
    column: str, subject: str, stated: object, known: object, table: str = "multicasts", stating: str = "deliveries"
) -> UsageError:
    """The refusal of a table that states something else than the table that has the last word."""
    return UsageError(f"{stating}: {column} of {subject} is {stated}, but {known} in {table}; expected the same")


def _build_sequences(
    run: Run, group_of: dict[int, int | None], members: dict[int, list[int]]
) -> dict[int, DeliverySequence]:
    rows: dict[int, list[Entry]] = {process: [] for group in members.values() for process in group}
    table = run.deliveries
    columns = (table["process"], table["position"], table["message"], table["at_ns"])
    for process, position, message, at_ns in zip(*columns, strict=True):
        entries = rows.get(process)
        if entries is None:
            entries = rows[process] = []
        entries.append((position, message, at_ns))
    notes = _collect_gap_notes(run)
    for process in notes:
        rows.setdefault(process, [])  # what a process lost counts, even if nothing is left of it
    found = {}
    for process in sorted(rows):
        entries, notes_of_process = rows[process], notes.get(process, [])
        if not notes_of_process and _is_dense(entries):
            found[process] = DeliverySequence(process, entries)
        else:
            group = group_of.get(process)
            peers = [] if group is None else [rows[peer] for peer in members[group] if peer != process]
            found[process] = _repair_sequence(process, entries, notes_of_process, peers)
    return found


def _is_dense(entries: list[Entry]) -> bool:
    return [entry[0] for entry in entries] == list(range(len(entries)))


def _collect_gap_notes(run: Run) -> dict[int, list[tuple[str, float | None]]]:
    table = run.notes
    found: dict[int, list[tuple[str, float | None]]] = {}
    for process, name, value in zip(table["process"], table["name"], table["value"], strict=True):
        if name in ("installed", "trace-gap"):
            known = value is not None and isfinite(value)
            found.setdefault(process, []).append((name, value if known else None))
    return found


def _map_positions(peers: list[list[Entry]]) -> dict[int, int]:
    """position -> the group's message there, from the first member in the list that recorded it."""
    messages_at: dict[int, int] = {}
    for entries in peers:
        for position, message, _ in entries:
            messages_at.setdefault(position, message)
    return messages_at


def sort_key(entry: Entry) -> tuple[int, bool, int, int]:
    """Entries in order of position; at one position in order of time, one without a time first."""
    position, message, at_ns = entry
    return position, at_ns is not None, at_ns or 0, message


def find_snapshot_end(notes_of_process: Iterable[tuple[str, float | None]]) -> int:
    """The end of the positions that a process' snapshots stand for."""
    ends = (int(value) for name, value in notes_of_process if name == "installed" and value is not None)
    return min(LIMIT, max(ends, default=0))


def _repair_sequence(
    process: int, entries: list[Entry], notes_of_process: list[tuple[str, float | None]], peers: list[list[Entry]]
) -> DeliverySequence:
    """A sequence with gaps: a row that was recorded twice counts once, snapshots fill positions, and what is still
    missing is a gap.
    """
    facts: dict[tuple[int, int], Entry] = {}
    for entry in sorted(entries, key=sort_key):
        facts.setdefault((entry[0], entry[1]), entry)
    entries_kept = list(facts.values())
    present = {entry[0] for entry in entries_kept}
    snapshot_end = find_snapshot_end(notes_of_process)
    if snapshot_end:
        messages_at = _map_positions(peers)
        entries_kept += [
            (position, messages_at[position], None)
            for position in messages_at
            if position < snapshot_end and position not in present
        ]
        entries_kept.sort(key=lambda entry: entry[0])
        present.update(entry[0] for entry in entries_kept)
    end = max(max(present, default=-1) + 1, snapshot_end)
    gap = next((position for position in range(end) if position not in present), None)
    lost_from = [value for name, value in notes_of_process if name == "trace-gap"]
    if None in lost_from:
        gap = 0
    elif gap is None and any(value is not None and int(value) not in present for value in lost_from):
        gap = end
    return DeliverySequence(process, entries_kept, gap)
