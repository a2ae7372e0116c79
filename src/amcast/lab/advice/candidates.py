"""What the adviser compares: protocols with options, placements of replicas, and regions of leaders."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId
from amcast.lab.advice.request import AdviceRequest
from amcast.lab.protocol_lookup import find_protocol

DEFAULT_PROTOCOLS: Final = (
    "primcast",
    "whitebox",
    "fastcast",
    "fastcast:stamps=all",
    "basecast",
    "multipaxos",
    "a-ge-star",
    "treecast",
    "flexcast",
    "skeen",
)
"""Those that survive crashes of a minority in live clusters. Hybrid clocks and detectors of lost groups, which
primcast-hc and a-dt assume, are not everywhere; a-ng sends all the time."""
MAX_CANDIDATES: Final = 1000
CLIENTS_PER_REGION: Final = 2

Rows = tuple[tuple[str, ...], ...]
"""For each group, the region of each of its replicas, the usual leader first."""


@dataclass(frozen=True)
class ReplicaPlacement:
    """Where replicas and leaders are."""

    name: str
    rows: Rows

    def leaders(self) -> tuple[str, ...]:
        return tuple(row[0] for row in self.rows)


@dataclass(frozen=True)
class ProtocolChoice:
    """A protocol with options, written as fastcast:stamps=all."""

    name: str
    protocol: str
    options: tuple[tuple[str, Any], ...] = ()


@dataclass(frozen=True)
class Candidate:
    """One answer that the adviser may give."""

    choice: ProtocolChoice
    placement: ReplicaPlacement


def parse_choice(text: str) -> ProtocolChoice:
    """A protocol with options behind a colon, each checked."""
    name, _, tail = text.partition(":")
    spec = find_protocol(name)
    options: dict[str, Any] = {}
    for part in filter(None, tail.split(";")):
        key, separator, value = part.partition("=")
        if not separator:
            raise UsageError(f"--protocol {text!r}: {part!r}; expected OPTION=VALUE")
        options[key] = int(value) if value.isdigit() else {"true": True, "false": False}.get(value, value)
    spec.configure(options)
    return ProtocolChoice(text, name, tuple(options.items()))


def list_placements(request: AdviceRequest) -> list[ReplicaPlacement]:
    """All placements that are compared; those that are equal appear once."""
    groups = sorted(request.home_of)
    found: dict[Rows, ReplicaPlacement] = {}
    for name, rows in _list_rows(request, groups):
        found.setdefault(rows, ReplicaPlacement(name, rows))
    return list(found.values())


def _list_rows(request: AdviceRequest, groups: Sequence[GroupId]) -> Iterator[tuple[str, Rows]]:
    homes, count = request.home_of, request.replicas
    majority = count // 2 + 1
    yield "replicas in different regions, leaders at home", tuple(_spread(request, homes[g], count) for g in groups)
    for region in request.regions:
        rows = tuple(_spread_led(request, region, homes[g], count) for g in groups)
        yield f"replicas in different regions, leaders in {region}", rows
    near = tuple((homes[g],) * majority + _spread(request, homes[g], count - majority + 1)[1:] for g in groups)
    yield "a majority of replicas at home", near
    yield "whole groups at home", tuple((homes[g],) * count for g in groups)
    for region in request.regions:
        yield f"whole groups in {region}", tuple((region,) * count for _ in groups)


def _rank_regions(request: AdviceRequest, here: str) -> list[str]:
    """All regions by their round trip from one of them, which comes first."""
    others = [region for region in request.regions if region != here]
    return [here, *sorted(others, key=lambda other: request.round_trip_ms(here, other))]


def _spread(request: AdviceRequest, first: str, count: int) -> tuple[str, ...]:
    """The nearest regions from the first one on, in turn if there are fewer than replicas."""
    ranked = _rank_regions(request, first)
    return tuple(ranked[place % len(ranked)] for place in range(count))


def _spread_led(request: AdviceRequest, leader: str, home: str, count: int) -> tuple[str, ...]:
    """As `_spread`, with a replica at home in any case if there are two or more."""
    row = list(_spread(request, leader, count))
    if home not in row and count > 1:
        row[-1] = home
    return tuple(row)


def list_candidates(choices: Sequence[ProtocolChoice], placements: Sequence[ReplicaPlacement]) -> list[Candidate]:
    """Every protocol with every placement."""
    if len(choices) * len(placements) > MAX_CANDIDATES:
        raise UsageError(
            f"{len(choices)} protocols in {len(placements)} placements; expected at most {MAX_CANDIDATES} candidates:"
            " name fewer --regions, or a --protocol"
        )
    return [Candidate(choice, placement) for choice in choices for placement in placements]


def make_plan(request: AdviceRequest, candidate: Candidate, messages: int, seed: int) -> dict[str, Any]:
    """The plan of a candidate: whole nodes as in a live cluster, clients in all regions, messages of the request. An
    open loop, so that clients that are answered sooner do not send more and count more."""
    choice, rows = candidate.choice, candidate.placement.rows
    used = sorted({*request.clients, *(region for row in rows for region in row), *request.homes})
    table = {source: {target: request.latencies[source][target] for target in used} for source in used}
    workload: dict[str, Any] = {"name": "mix", "mix": request.mix, "payload": request.payload, "messages": messages}
    workload |= {"homes": {region: list(groups) for region, groups in request.homes.items()}}
    workload["rate_per_s"] = request.rate_per_s
    if request.by_region:
        workload["by_region"] = dict(request.by_region)
    return {
        "protocol": choice.protocol,
        "seed": seed,
        "options": dict(choice.options),
        "nodes": True,
        "gateways": find_protocol(choice.protocol).open_bundle is not None,
        "topology": {
            "environment": "own",
            "groups": len(rows),
            "replicas": len(rows[0]),
            "clients": CLIENTS_PER_REGION * len(request.clients),
            "options": {
                "latencies": table,
                "delays": "one-way",
                "placement": [list(row) for row in rows],
                "clients": list(request.clients),
            },
        },
        "workload": workload,
    }
