"""Compares what clients were told, what hosted programs executed and what observers read.

The trace is judged by `check/`; this is the second judge, which knows nothing of the trace: it compares the statements
of different parties.
"""

from bisect import bisect_left
from collections.abc import Iterable, Iterator, Mapping, Sequence

from amcast.kernel.ids import GroupId
from amcast.lab.torture.ledger import EMPTY, INSTALLED, Row
from amcast.live.torture.session import Acknowledgement, Observation

Place = tuple[int, int]
"""Position and place in the batch."""


def compare_ledgers(group: GroupId, ledgers: Mapping[str, Sequence[Row]]) -> tuple[dict[Place, Row], list[str]]:
    """The common sequence of a group, and a sentence for each replica that contradicts it. Rows that a restarted
    replica repeats must be the same, too, and an installed state must have the hash of what it contains."""
    agreed: dict[Place, tuple[str, Row]] = {}
    sentences: list[str] = []
    for node, rows in sorted(ledgers.items()):
        for row in rows:
            if row.place == INSTALLED:
                continue
            other, expected = agreed.setdefault((row.position, row.place), (node, row))
            if expected != row:
                sentences.append(
                    f"group {group}: {node} executed {row.payload!r} at position {row.position}.{row.place}"
                    f" (hash {row.chain}), where {other} executed {expected.payload!r} (hash {expected.chain})"
                )
                break
    executed = {place: row for place, (_, row) in sorted(agreed.items())}
    for node, rows in sorted(ledgers.items()):
        sentences += _compare_installed(group, node, rows, executed)
    return executed, sentences


def _compare_installed(group: GroupId, node: str, rows: Sequence[Row], executed: Mapping[Place, Row]) -> Iterator[str]:
    places = sorted(executed)
    for row in rows:
        if row.place == INSTALLED:
            before = bisect_left(places, (row.position, 0))
            expected = executed[places[before - 1]].chain if before else EMPTY.hex()
            if row.chain != expected:
                yield (
                    f"group {group}: {node} installed a state of {row.position} positions with hash {row.chain};"
                    f" the group had {expected} there"
                )


def compare_ends(group: GroupId, ledgers: Mapping[str, Sequence[Row]]) -> list[str]:
    """A sentence for each replica that has executed less than others after the cluster has settled."""
    ends = {node: max(map(_count_positions, rows), default=0) for node, rows in ledgers.items()}
    furthest = max(ends.values(), default=0)
    return [
        f"group {group}: {node} executed {end} positions; others executed {furthest}"
        for node, end in sorted(ends.items())
        if end < furthest
    ]


def _count_positions(row: Row) -> int:
    """How many positions are executed with this row."""
    return row.position if row.place == INSTALLED else row.position + 1


def compare_acknowledged(
    acknowledged: Iterable[Acknowledgement], executed: Mapping[GroupId, Mapping[Place, Row]]
) -> list[str]:
    """A sentence for each acknowledged payload that a destination lost, executed twice or in another message, or that
    a group executed without being a destination."""
    places: dict[GroupId, dict[str, list[Row]]] = {}
    for group, rows in executed.items():
        by_payload = places.setdefault(group, {})
        for row in rows.values():
            by_payload.setdefault(row.payload, []).append(row)
    sentences: list[str] = []
    for payload, message, destinations in acknowledged:
        for group, by_payload in places.items():
            found = by_payload.get(payload, [])
            if len(found) != (group in destinations):
                count = f"{len(found)} times" if found else "never"
                sentences.append(
                    f"{payload!r} was acknowledged as message {message} to groups {list(destinations)};"
                    f" group {group} executed it {count}"
                )
            elif found and found[0].message != message:
                sentences.append(
                    f"{payload!r} was acknowledged as message {message}; group {group} executed it in message"
                    f" {found[0].message}"
                )
    return sentences


def compare_observed(
    group: GroupId, observed: Sequence[Observation], executed: Mapping[Place, Row], gaps: int
) -> list[str]:
    """A sentence for each reading of an observer that contradicts what the group executed or is out of order, and for
    deliveries that it skipped without being told."""
    sentences: list[str] = []
    last: Place = (-1, 0)
    for position, place, message, payload in observed:
        row = executed.get((position, place))
        if row is None or (row.message, row.payload) != (message, payload):
            there = "nothing" if row is None else repr(row.payload)
            sentences.append(
                f"group {group}: an observer read {payload!r} at position {position}.{place}; executed was {there}"
            )
        if (position, place) <= last:
            sentences.append(f"group {group}: an observer read position {position}.{place} after {last[0]}.{last[1]}")
        last = (position, place)
    if not gaps and not sentences:
        read = {(row.position, row.place) for row in observed}
        skipped = [place for place in executed if place < last and place not in read]
        if skipped:
            sentences.append(f"group {group}: an observer skipped position {skipped[0][0]}.{skipped[0][1]} silently")
    return sentences
