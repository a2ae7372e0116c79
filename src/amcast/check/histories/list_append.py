"""Strict serializability of transactions that append to lists and read them, for histories of any length.

A value is a list of `["append", key, element]` and `["r", key, elements]`; elements of a key are unique. A read shows
the whole past of its key, so the order of appends follows from the reads, and so does what depends on what:

    ww  appends directly after what another one appended      wr  reads what another one appended last
    rw  another one appends directly after what it reads      rt  begins after another one has ended

In a strictly serializable history these have no cycle (Adya; Kingsbury and Alvaro, Elle). What is wrong with a single
read (elements that nobody appended, or in another order than elsewhere, or twice) is told before. It is sound: every
violation is real; and complete for what reads show: appends that no read ever saw are not in any order.
"""

from collections import deque
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any, Final, NamedTuple

from amcast.check.histories.history import HistoryOperation
from amcast.check.histories.report import HistoryReport
from amcast.kernel.errors import UsageError

Edges = dict[int, dict[int, str]]
"""By transaction: the transactions after it, and why."""
NOTHING_READ: Final = "nothing was read: no order is known"
MAX_SOURCES: Final = 2_000
"""From so many transactions of a cycle's component the shortest cycle is searched."""


class Dependencies(NamedTuple):
    """What transactions show of each other, without time."""

    checked: dict[str, int]
    wrong: str
    """What is wrong with a single read, as a sentence; "" if nothing is."""
    edges: Edges


def check_list_append(history: Sequence[HistoryOperation]) -> HistoryReport:
    """Judges whether a history of list-append transactions is strictly serializable."""
    checked, wrong, edges = find_dependencies(history)
    checked = {"transactions": len(history)} | checked
    if not checked["reads"]:
        return HistoryReport("unknown", checked, [NOTHING_READ])
    story = [wrong] if wrong else tell_cycle(history, edges)
    return HistoryReport("violated" if story else "holds", checked, story)


def find_dependencies(history: Sequence[HistoryOperation]) -> Dependencies:
    """Reads off what depends on what; all that concerns a key must be there, but not all keys."""
    checked = {"reads": 0, "appends": 0}
    writers: dict[tuple[str, Any], int] = {}
    reads: list[tuple[int, Any, list[Any]]] = []
    for operation in history:
        for kind, key, element in list_steps(operation):
            if kind == "append":
                checked["appends"] += 1
                if (repr(key), element) in writers:
                    raise UsageError(f"line {operation.begin}: {element!r} is appended to {key!r} twice; expected once")
                writers[repr(key), element] = operation.number
            elif operation.is_certain:
                checked["reads"] += 1
                reads.append((operation.number, key, list(element or ())))
    wrong, orders = _order_keys(history, reads, writers)
    return Dependencies(checked, wrong, {} if wrong else _connect(history, reads, writers, orders))


def tell_cycle(history: Sequence[HistoryOperation], edges: Edges) -> list[str]:
    """A shortest cycle of dependencies and of time, in sentences; empty if there is none."""

    def add(before: int, after: int, why: str) -> None:
        edges[before].setdefault(after, why)

    _connect_times(history, add)
    cycle = _find_cycle(edges)
    return _describe_cycle(history, edges, cycle) if cycle else []


def list_steps(operation: HistoryOperation) -> Iterator[tuple[str, Any, Any]]:
    """The appends and reads of a transaction: kind, key, element or elements."""
    for step in operation.value if isinstance(operation.value, list) else [None]:
        if not isinstance(step, list) or len(step) != 3 or step[0] not in ("append", "r"):
            raise UsageError(
                f"line {operation.end or operation.begin}: {step!r}; expected ['append', key, element] or ['r', key,"
                f" elements]"
            )
        elements = [step[2]] if step[0] == "append" else step[2] or []
        if not isinstance(elements, list) or not all(isinstance(one, int | str) for one in elements):
            raise UsageError(
                f"line {operation.end or operation.begin}: {step!r}; expected elements that are numbers or texts"
            )
        yield step[0], step[1], step[2]


def _order_keys(
    history: Sequence[HistoryOperation],
    reads: Sequence[tuple[int, Any, list[Any]]],
    writers: dict[tuple[str, Any], int],
) -> tuple[str, dict[str, list[Any]]]:
    """The order of appends of each key, from its longest read; or a sentence about a read that is wrong by itself."""
    orders: dict[str, list[Any]] = {}
    longest: dict[str, int] = {}
    places = {appended: place for place, appended in enumerate(writers)}
    for number, key, elements in reads:
        name = repr(key)
        strange = [element for element in elements if (name, element) not in writers]
        if strange:
            return f"the {history[number]} read {strange[0]!r} from {key!r}, which nobody appended", {}
        if len(set(map(repr, elements))) < len(elements):
            return f"the {history[number]} read an element of {key!r} twice: {elements}", {}
        for one, other in pairwise(elements):
            writer = writers[name, one]
            if writer == writers[name, other] and places[name, one] > places[name, other]:
                return (
                    f"the {history[number]} read {one!r} before {other!r} from {key!r}: the {history[writer]} appended"
                    f" them the other way round"
                ), {}
        known = orders.get(name, [])
        short, long = sorted((known, elements), key=len)
        if long[: len(short)] != short:
            return (
                f"the {history[number]} read {elements} from {key!r}, the {history[longest[name]]} {known}: neither is"
                f" the beginning of the other"
            ), {}
        if len(elements) >= len(known):
            orders[name], longest[name] = elements, number
    return "", orders


def _connect(
    history: Sequence[HistoryOperation],
    reads: Sequence[tuple[int, Any, list[Any]]],
    writers: dict[tuple[str, Any], int],
    orders: dict[str, list[Any]],
) -> Edges:
    edges: Edges = {operation.number: {} for operation in history}

    def add(before: int, after: int, why: str) -> None:
        if before != after:
            edges[before].setdefault(after, why)

    for name, elements in orders.items():
        for one, other in pairwise(elements):
            add(
                writers[name, one], writers[name, other], f"it appended {one!r} to {name}, directly before {other!r} of"
            )
    for number, key, elements in reads:
        name = repr(key)
        if elements:
            add(writers[name, elements[-1]], number, f"it appended {elements[-1]!r} to {name}, which was read by")
        if len(elements) < len(orders.get(name, ())):
            following = orders[name][len(elements)]
            add(number, writers[name, following], f"it read {name} without {following!r}, which was appended by")
    return edges


def _connect_times(history: Sequence[HistoryOperation], add: Any) -> None:
    """Adds an edge from the latest transactions that ended before each begin: others follow from these."""
    events = [(operation.begin, 1, operation) for operation in history]
    events += [(operation.end, 0, operation) for operation in history if operation.end is not None]
    frontier: list[HistoryOperation] = []
    for _, is_begin, operation in sorted(events, key=lambda event: event[:2]):
        if is_begin:
            for earlier in frontier:
                add(earlier.number, operation.number, "it had ended before the begin of")
        else:
            frontier = [one for one in frontier if one.end is not None and one.end > operation.begin] + [operation]


def _find_cycle(edges: Edges) -> list[int]:
    """A shortest cycle; empty if there is none."""
    left = _list_blocked(edges)
    best: list[int] = []
    for source in sorted(left)[:MAX_SOURCES]:
        found = _find_cycle_through(edges, left, source, len(best) or len(left) + 1)
        if found and (not best or len(found) < len(best)):
            best = found
        if len(best) == 2:
            break
    return best


def _list_blocked(edges: Edges) -> set[int]:
    """Transactions that remain when those without predecessors, and then those without successors, are removed."""
    left = set(edges)
    for graph in (edges, _reverse(edges)):
        count = dict.fromkeys(left, 0)
        for before in left:
            for after in graph[before]:
                if after in left:
                    count[after] += 1
        free = [number for number in left if not count[number]]
        while free:
            before = free.pop()
            left.discard(before)
            for after in graph[before]:
                if after in left:
                    count[after] -= 1
                    if not count[after]:
                        free.append(after)
    return left


def _reverse(edges: Edges) -> Edges:
    turned: Edges = {number: {} for number in edges}
    for before, others in edges.items():
        for after, why in others.items():
            turned[after][before] = why
    return turned


def _find_cycle_through(edges: Edges, left: set[int], source: int, limit: int) -> list[int]:
    reached = {source: -1}
    depth = {source: 1}
    waiting = deque([source])
    while waiting:
        number = waiting.popleft()
        if depth[number] >= limit:
            return []
        for after in edges[number]:
            if after == source:
                path = [number]
                while reached[path[-1]] >= 0:
                    path.append(reached[path[-1]])
                return path[::-1]
            if after in left and after not in reached:
                reached[after], depth[after] = number, depth[number] + 1
                waiting.append(after)
    return []


def _describe_cycle(history: Sequence[HistoryOperation], edges: Edges, cycle: list[int]) -> list[str]:
    sentences = [f"{len(cycle)} transactions each come before the next, and the last before the first:"]
    for place, number in enumerate(cycle):
        after = cycle[(place + 1) % len(cycle)]
        sentences.append(f"the {history[number]}: {edges[number][after]} the {history[after]}")
    return sentences
