"""Linearizability of registers: `read` and `write`, each of one key, for small histories.

A value is `[key, value]`, or a bare value of the only key. Keys are judged one by one: linearizability is local. For a
key, the search takes the operations in every order that time allows until one explains all reads (Wing and Gong), and
remembers which sets of operations with which value it has seen (Lowe). It is exponential in the number of operations at
the same time, so it gives up, with the verdict unknown, after MAX_STATES.
"""

from collections.abc import Sequence
from typing import Any, Final

from amcast.check.histories.history import HistoryOperation
from amcast.check.histories.report import HistoryReport
from amcast.kernel.errors import UsageError

MAX_STATES: Final = 1_000_000


def check_register(history: Sequence[HistoryOperation], max_states: int = MAX_STATES) -> HistoryReport:
    """Judges whether a history of registers is linearizable."""
    by_key: dict[Any, list[HistoryOperation]] = {}
    for operation in history:
        if operation.f not in ("read", "write"):
            raise UsageError(f"f = {operation.f!r} (line {operation.begin}); expected read or write")
        if operation.f == "write" or operation.is_certain:  # a read of unknown end says nothing
            by_key.setdefault(_split(operation)[0], []).append(operation)
    checked = {"operations": len(history), "keys": len(by_key)}
    unknown: list[str] = []
    for key, operations in by_key.items():
        found = _search(operations, max_states)
        if found is None:
            unknown.append(f"key {key!r}: no answer after {max_states} states; expected a shorter history")
        elif found:
            return HistoryReport("violated", checked, [f"key {key!r}: no order of its operations explains {found}"])
    return HistoryReport(
        "unknown" if unknown or not by_key else "holds", checked, unknown or ([] if by_key else ["nothing was called"])
    )


def _split(operation: HistoryOperation) -> tuple[Any, Any]:
    value = operation.value
    return (value[0], value[1]) if isinstance(value, list) and len(value) == 2 else ("", value)


def _search(operations: Sequence[HistoryOperation], max_states: int) -> str | None:
    """ "" if the operations of one key are linearizable; else a sentence's end; None if it is not known."""
    ends = [operation.end for operation in operations]
    certain = sum(1 << place for place, end in enumerate(ends) if end is not None)
    values = [_split(operation)[1] for operation in operations]
    seen: set[tuple[int, str]] = set()
    stack: list[tuple[int, Any]] = [(0, None)]
    furthest = 0
    while stack:
        done, value = stack.pop()
        if done & certain == certain:
            return ""
        state = (done, repr(value))
        if state in seen:
            continue
        seen.add(state)
        if len(seen) > max_states:
            return None
        furthest = max(furthest, done, key=lambda one: (one & certain).bit_count())
        # Whatever begins after the end of an operation that has not happened yet cannot be next.
        limit = min((end for place, end in enumerate(ends) if end is not None and not done >> place & 1), default=None)
        for place, operation in enumerate(operations):
            if done >> place & 1:
                continue
            if limit is not None and operation.begin > limit:
                break
            if operation.f == "write":
                stack.append((done | 1 << place, values[place]))
            elif values[place] == value:
                stack.append((done | 1 << place, value))
    left = [
        operation for place, operation in enumerate(operations) if not furthest >> place & 1 and ends[place] is not None
    ]
    return f"the {left[0]} with {_split(left[0])[1]!r}"
