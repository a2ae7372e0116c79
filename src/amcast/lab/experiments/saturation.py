"""The load at which a protocol saturates: a cell is run with load after load, each twice the one before, until the 95th
percentile of what clients wait for is twice that of the first.

    saturation_load       the first load at which it is
    saturation_per_s      answers per second there: about the most that the protocol can do

All other columns are those of the last load before it.
"""

from collections.abc import Callable
from typing import Any, Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.sweep.grid import set_fields

FACTOR: Final = 2.0
MAX_DOUBLINGS: Final = 16
P95: Final = "answer_ms_p95"

Row = dict[str, Any]


def find_saturation(values: dict[str, Any], path: str, measure: Callable[[dict[str, Any]], Row]) -> Row:
    """Runs a plan with rising values of the field `path`, which begins with the plan's own."""
    load = get_field(values, path)
    first = last = measure(values)
    if P95 not in first:
        raise CannotTellError(f"{path} = {load}: no client was answered; expected a first load below saturation")
    for _ in range(MAX_DOUBLINGS):
        load *= 2
        row = measure(set_fields(values, {path: load}))
        if row.get(P95, float("inf")) >= FACTOR * first[P95]:
            return {**last, "saturation_load": load, "saturation_per_s": row.get("throughput_per_s", 0.0)}
        last = row
    raise CannotTellError(f"{path} = {load}: not saturated; expected a cost of packets, or a bandwidth, in [network]")


def get_field(values: dict[str, Any], path: str) -> int:
    """The number at a dotted path of a plan."""
    found: Any = values
    for part in path.split("."):
        found = found.get(part) if isinstance(found, dict) else None
    if type(found) is not int or found < 1:
        raise UsageError(f"saturate = {path!r}: the plan has {found!r} there; expected a whole number of at least 1")
    return found
