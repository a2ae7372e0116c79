"""The tables of measures of one run, from its sums. docs/RESULTS.md explains every column."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa

from amcast.pipeline.measure.counts import SENT, Counts
from amcast.pipeline.measure.distribution import PERCENTILES, Distribution
from amcast.pipeline.measure.membership import Membership
from amcast.pipeline.measure.observation import CONVOY, ROLES, SCOPES, VIEWS, WAITS, RunObservation, RunScope, Span
from amcast.pipeline.measure.times import Times

Row = dict[str, Any]
Tables = dict[str, list[Row]]

_DISTRIBUTION: Final = (
    "count:long",
    *(f"latency_ns_{name}:double" for name in ("mean", "mean_low", "mean_high", "min")),
    *(f"latency_ns_p{share}{end}:double" for share in PERCENTILES for end in ("", "_low", "_high")),
    *("latency_ns_max:double", "method:string"),
)
_COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "spans": (
        *("first_ns:long", "last_ns:long", "low_ns:long", "high_ns:long", "multicasts:long", "deliveries:long"),
        *("completed:long", "throughput_per_s:double"),
    ),
    "latency": ("by:string", "place:int", *_DISTRIBUTION),
    "cdf": ("by:string", "place:int", "share:double", "latency_ns:double"),
    "routes": ("sender_region:string", "group:int", *_DISTRIBUTION),
    "throughput": (
        *("slice:int", "from_ns:long", "to_ns:long", "multicasts_per_s:double", "deliveries_per_s:double"),
        *("completions_per_s:double", "steady:bool"),
    ),
    "packets": (
        *("process:int", "group:int", "region:string", "sent:long", "received:long", "lost:long", "bytes_sent:long"),
        *("bytes_received:long", "sent_per_multicast:double", "bytes_sent_per_multicast:double", "sent_per_s:double"),
        "bytes_sent_per_s:double",
    ),
    "bodies": (
        *("body:string", "packets:long", "bytes:long", "packets_per_multicast:double", "bytes_per_multicast:double"),
        "bytes_per_packet:double",
    ),
    "overhead": ("group:int", "received:long", "delivered:long", "overhead:double"),
    "audit": (
        *("process:int", "group:int", "region:string", "worked:long", "worked_for_others:long"),
        *("share_for_others:double", "messages_of_others:long"),
    ),
    "work": ("group:int", "for_group:int", "worked:long", "worked_as_stranger:long"),
    "convoy": (
        *("group:int", "deliveries:long", "waited:long", "waited_share:double", "wait_ns_mean:double"),
        *("wait_ns_p99:long", "wait_ns_max:long", "wait_share_of_latency:double", "local:long", "local_waited:long"),
        "convoy_share_of_latency:double",
    ),
    "paths": (
        *("name:string", "notes:long", "processes:long", "messages:long", "messages_share:double"),
        *("latency_ns_mean_with:double", "latency_ns_mean_without:double"),
    ),
    "fairness": ("side:string", "region:string", *_DISTRIBUTION, "ratio_to_best:double", "jain_index:double"),
    "clients": ("wait:string", "scope:string", "role:string", "region:string", *_DISTRIBUTION),
    "traffic": (
        *("group:int", "to_group:int", "packets:long", "bytes:long", "packets_per_multicast:double"),
        "bytes_per_multicast:double",
    ),
    "recovery": (
        *("fault_ns:long", "fault:string", "process:int", "group:int", "next_delivery_after_ns:long"),
        *("new_message_after_ns:long", "longest_silence_ns:long"),
    ),
}
_TYPES: Final = {
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "string": pa.string(),
    "bool": pa.bool_(),
}
SCHEMAS: Final = {
    table: pa.schema([("run", pa.string()), *((c.split(":")[0], _TYPES[c.split(":")[1]]) for c in columns)])
    for table, columns in _COLUMNS.items()
}
"""Every table that comes from traces."""


def build_tables(
    run: str, seen: RunObservation, counts: Counts, scope: RunScope, edge: float, has_packets: bool
) -> Tables:
    """All tables of a run, except `recovery`. Of a run without multicasts there is little to tell."""
    span, members, method = scope.span, scope.members, "exact" if scope.is_exact else "sketch"
    by_view = seen.responses.find_distributions()
    routes = by_view.pop("route")
    tables = {
        "spans": [_build_span(span, seen, edge)],
        "latency": [
            {"by": by, "place": place, **found.summarize("latency_ns"), "method": method}
            for by in VIEWS
            for place, found in by_view[by].items()
        ],
        "cdf": list(_build_curves({by: by_view[by] for by in ("all", "rank", "response")})),
        "routes": [
            {"sender_region": region, "group": group, **found.summarize("latency_ns"), "method": method}
            for key, found in routes.items()
            for group, region in [_split_route(key, members)]
        ],
        "throughput": _build_throughput(span, seen),
        "convoy": _build_convoys(seen),
        "paths": _build_paths(span, seen, counts),
        "fairness": [
            *_build_side("sender", seen.senders.find_distributions()["region"], members, method),
            *_build_side("destination", seen.receivers.find_distributions()["region"], members, method),
        ],
        "clients": _build_clients(seen, members, method),
    }
    if has_packets:
        tables |= _build_packet_tables(span, seen, counts, members)
    if not span.multicasts:
        tables = {table: rows for table, rows in tables.items() if table in ("paths", "audit")}
    return {table: [{"run": run, **row} for row in rows] for table, rows in tables.items()}


def to_arrow(table: str, rows: Iterable[Row]) -> pa.Table:
    """Rows in the table's own types."""
    return pa.Table.from_pylist(list(rows), SCHEMAS[table])


def _build_span(span: Span, seen: RunObservation, edge: float) -> Row:
    done, rate = Times.join(seen.done), None
    if done.count:
        begun, ended = done.find_quantile(edge), done.find_quantile(1 - edge)
        if ended > begun:
            rate = (done.count_until(ended) - done.count_until(begun)) / ((ended - begun) / 1e9)
    return {
        "first_ns": span.first_ns,
        "last_ns": span.last_ns,
        "low_ns": span.low_ns,
        "high_ns": span.high_ns,
        "multicasts": span.multicasts,
        "deliveries": seen.deliveries,
        "completed": done.count,
        "throughput_per_s": rate,
    }


def _build_curves(views: Mapping[str, Mapping[int, Distribution]]) -> Iterable[Row]:
    for by, places in views.items():
        for place, found in places.items():
            for share, value in found.draw_curve():
                yield {"by": by, "place": place, "share": share, "latency_ns": value}


def _split_route(key: int, members: Membership) -> tuple[int, str]:
    group, region = divmod(key, len(members.region_names))
    return group, members.region_names[region]


def _build_throughput(span: Span, seen: RunObservation) -> list[Row]:
    rows, width = [], span.width_ns
    for number in sorted({number for slices in seen.slices.values() for number in slices}):
        begin = span.first_ns + number * width
        rates = [seen.slices[what].get(number, 0) * 1e9 / width for what in ("multicast", "delivery", "completion")]
        rows.append(
            {
                "slice": number,
                "from_ns": begin,
                "to_ns": begin + width,
                **dict(zip(("multicasts_per_s", "deliveries_per_s", "completions_per_s"), rates, strict=True)),
                "steady": begin >= span.low_ns and begin + width <= span.high_ns,
            }
        )
    return rows


def _build_convoys(seen: RunObservation) -> list[Row]:
    waits = seen.waits.find_distributions()["group"]
    rows = []
    for group, numbers in seen.convoy.items():
        sums = dict(zip(CONVOY, numbers, strict=True))
        waited = int(sums["waited"])
        p99 = waits[group].find_value(max(1, -(-99 * waited // 100))) if waited else None
        rows.append(
            {
                "group": group,
                "deliveries": int(sums["deliveries"]),
                "waited": waited,
                "waited_share": waited / sums["deliveries"],
                "wait_ns_mean": sums["wait_ns"] / waited if waited else None,
                "wait_ns_p99": round(p99) if p99 is not None else None,
                "wait_ns_max": int(sums["wait_ns_max"]) if waited else None,
                "wait_share_of_latency": _divide(sums["wait_ns"], sums["latency_ns"]),
                "local": int(sums["local"]),
                "local_waited": int(sums["local_waited"]),
                "convoy_share_of_latency": _divide(sums["behind_ns"], sums["local_ns"]),
            }
        )
    return rows


def _build_paths(span: Span, seen: RunObservation, counts: Counts) -> list[Row]:
    return [
        _build_path(name, counts, seen.paths.get(name, [0, 0, 0]), span.multicasts, seen.steady_done)
        for name in counts.notes
    ]


def _build_path(name: str, counts: Counts, marked: Sequence[int], multicasts: int, done: Sequence[int]) -> Row:
    messages, slow, slow_ns = marked
    return {
        "name": name,
        "notes": counts.notes[name],
        "processes": len(counts.noting[name]),
        "messages": messages,
        "messages_share": messages / multicasts if multicasts else None,
        "latency_ns_mean_with": slow_ns / slow if slow else None,
        "latency_ns_mean_without": (done[1] - slow_ns) / (done[0] - slow) if done[0] > slow else None,
    }


def _build_side(side: str, found: Mapping[int, Distribution], members: Membership, method: str) -> list[Row]:
    """The latency of each region, as a sender (until every destination delivered) or as a destination."""
    rows = [
        {"side": side, "region": members.region_names[code], **one.summarize("latency_ns"), "method": method}
        for code, one in found.items()
    ]
    means = [row["latency_ns_mean"] for row in rows]
    squares = sum(mean**2 for mean in means)
    for row in rows:
        row["ratio_to_best"] = _divide(row["latency_ns_mean"], min(means))
        row["jain_index"] = sum(means) ** 2 / (len(means) * squares) if squares else None
    return rows


def _build_clients(seen: RunObservation, members: Membership, method: str) -> list[Row]:
    """How long clients wait: of all of them, and by the role and the region of the sender."""
    rows, found = [], seen.clients.find_distributions()
    for view in ("scope", "place"):
        for key, one in found[view].items():
            rest, region = divmod(key, len(members.region_names)) if view == "place" else (key, None)
            rest, role = divmod(rest, len(ROLES)) if view == "place" else (rest, None)
            wait, scope = divmod(rest, len(SCOPES))
            rows.append(
                {
                    "wait": WAITS[wait],
                    "scope": SCOPES[scope],
                    "role": None if role is None else ROLES[role],
                    "region": None if region is None else members.region_names[region],
                    **one.summarize("latency_ns"),
                    "method": method,
                }
            )
    return rows


def _build_packet_tables(span: Span, seen: RunObservation, counts: Counts, members: Membership) -> Tables:
    return {
        "packets": _build_packets(span, counts, members),
        "bodies": [
            {
                "body": body,
                "packets": packets,
                "bytes": size,
                "packets_per_multicast": _divide(packets, span.multicasts),
                "bytes_per_multicast": _divide(size, span.multicasts),
                "bytes_per_packet": size / packets,
            }
            for body, (packets, size) in counts.bodies.items()
        ],
        "overhead": [
            {"group": group, "received": received, "delivered": delivered, "overhead": 1 - delivered / received}
            for group, (received, delivered) in seen.overhead.items()
        ],
        "audit": _build_audit(seen.worked, members),
        "work": [
            {"group": group, "for_group": other, "worked": worked, "worked_as_stranger": strange}
            for (group, other), (worked, strange) in seen.work.items()
        ],
        "traffic": [
            {
                "group": _name_group(source, members),
                "to_group": _name_group(target, members),
                "packets": packets,
                "bytes": size,
                "packets_per_multicast": _divide(packets, span.multicasts),
                "bytes_per_multicast": _divide(size, span.multicasts),
            }
            for (source, target), (packets, size) in counts.traffic.items()
        ],
    }


def _name_group(code: int, members: Membership) -> int | None:
    return None if code < 0 else int(members.group_ids[code])


def _build_packets(span: Span, counts: Counts, members: Membership) -> list[Row]:
    seconds, rows = (span.high_ns - span.low_ns) / 1e9, []
    for number, process in enumerate(members.ids.tolist()):
        sums = dict(zip(SENT, counts.processes[:, number].tolist(), strict=True))
        steady, steady_bytes = sums.pop("steady_sent"), sums.pop("steady_bytes")
        rows.append(
            {
                "process": process,
                "group": members.groups[number],
                "region": members.regions[number],
                **sums,
                "sent_per_multicast": _divide(sums["sent"], span.multicasts),
                "bytes_sent_per_multicast": _divide(sums["bytes_sent"], span.multicasts),
                "sent_per_s": _divide(steady, seconds),
                "bytes_sent_per_s": _divide(steady_bytes, seconds),
            }
        )
    return rows


def _build_audit(found: Mapping[int, Sequence[int]], members: Membership) -> list[Row]:
    rows = []
    for number, process in enumerate(members.ids.tolist()):
        worked, for_others, messages = found.get(number, (0, 0, 0))
        rows.append(
            {
                "process": process,
                "group": members.groups[number],
                "region": members.regions[number],
                "worked": worked,
                "worked_for_others": for_others,
                "share_for_others": for_others / worked if worked else None,
                "messages_of_others": messages,
            }
        )
    return rows


def _divide(part: float, whole: float) -> float | None:
    return part / whole if whole > 0 else None
