"""Environments by name: who is where, and how long packets take between there.

The facts are in data/environments.toml, as their sources print them; this turns them into a topology with regions and
the plain form of a `NetworkConfig`. Clients that are farther from their region's replicas than those are from each
other get a region of their own, "R2/clients": as far from everything else as R2 is.
"""

import csv
import json
import tomllib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import msgspec
from msgspec import field

from amcast.kernel.config import Config, parse_config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology

Delays = dict[str, dict[str, int]]
"""Nanoseconds one way, by region of the source, then of the target."""
Placement = Literal["together", "replica-per-region", "listed", "group-per-region", "replica-per-site"]

MILLISECOND_NS = 1_000_000
SITES = "abcdefghijklmnopqrstuvwxyzABCDE"
CLIENTS = "/clients"


class EnvironmentFacts(Config, frozen=True):
    """One table of environments.toml, whose head explains the fields."""

    summary: str
    source: str
    delays: Literal["rtt", "one-way"]
    placement: Placement
    sd_percent: float
    notes: tuple[str, ...] = ()
    regions: tuple[str, ...] = ()
    groups: dict[str, tuple[int, ...]] = field(default_factory=dict)
    inside_ms: float = 0.0
    between_ms: tuple[tuple[str, str, float], ...] = ()
    across_ms: float = 0.0
    site_ms: float = 0.0
    client_ms: float | None = None
    matrix: str = ""
    leaders: str = ""
    clients: tuple[str, ...] = ()
    bandwidth: int = 0

    def ns(self, delay_ms: float) -> int:
        """A printed delay as nanoseconds one way."""
        return round(delay_ms * MILLISECOND_NS / (2 if self.delays == "rtt" else 1))


class EnvironmentOptions(Config, frozen=True):
    """What a plan may say differently."""

    inside_ms: float | None = None
    """Delay inside a region, as the environment prints it (RTT or one way)."""
    sd_percent: float | None = None
    bandwidth: int | None = None
    """Bytes per second between two regions, each way; 0 is unlimited."""
    leaders: str | None = None
    """Of replica-per-region: where the first replica of every group is, or "spread": in turn over the regions."""
    regions: tuple[str, ...] | None = None
    """Which of the environment's regions, in which order."""
    placement: Literal["replica-per-region", "group-per-region"] | None = None
    clients: tuple[str, ...] | None = None
    """The regions that clients are in, in turn."""

    def __post_init__(self) -> None:
        for name in ("inside_ms", "sd_percent", "bandwidth"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} = {value}; expected 0 or more")
        for name in ("regions", "clients"):
            chosen = getattr(self, name)
            if chosen is not None and (not chosen or len(set(chosen)) < len(chosen)):
                raise ValueError(f"{name} = {list(chosen)}; expected one or more different names")


@dataclass(frozen=True)
class Environment:
    """What a run needs of its surroundings."""

    name: str
    topology: Topology
    network: dict[str, Any]
    """The plain form of a `NetworkConfig`."""


@cache
def load_environments() -> dict[str, EnvironmentFacts]:
    """Every environment by its name."""
    tables = tomllib.loads(_read("environments.toml"))
    return {name: parse_config(EnvironmentFacts, table, f"environments.toml: {name}") for name, table in tables.items()}


def find_environment(
    name: str, groups: int, replicas: int, clients: int, options: dict[str, Any] | None = None
) -> Environment:
    """The environment of this name for these sizes, or a refusal that says what was expected."""
    known = load_environments()
    if name not in known:
        raise UsageError(f"environment {name!r} does not exist; expected one of: {', '.join(known)}")
    chosen = parse_config(EnvironmentOptions, dict(options or {}), f"options of environment {name}")
    facts = _with_options(name, known[name], chosen)
    plain = Topology.grid(groups, replicas, clients)
    regions = _servers(name, facts, plain)
    regions.update(_clients(name, facts, plain, regions))
    topology = Topology({g: plain.members(g) for g in plain.groups}, plain.clients, regions)
    network: dict[str, Any] = {
        "matrix_ns": _matrix(facts, sorted(set(regions.values()))),
        "distribution": "normal",
        "spread": facts.sd_percent / 100,
    }
    if facts.bandwidth:
        network.update(bandwidth=facts.bandwidth, pipe="region")
    return Environment(name, topology, network)


def _with_options(name: str, facts: EnvironmentFacts, options: EnvironmentOptions) -> EnvironmentFacts:
    where = f"options of environment {name}"
    changed: dict[str, Any] = {
        key: value for key in options.__struct_fields__ if (value := getattr(options, key)) is not None
    }
    if "inside_ms" in changed and facts.matrix:
        raise UsageError(f"{where}: inside_ms = {options.inside_ms}; the matrix says it; expected no such option")
    if "bandwidth" in changed and len(facts.regions) == 1:
        raise UsageError(f"{where}: bandwidth = {options.bandwidth}; there is one region; expected no such option")
    if ("regions" in changed or "placement" in changed) and not facts.matrix:
        field_name = "regions" if "regions" in changed else "placement"
        raise UsageError(f"{where}: {field_name} = {changed[field_name]!r}; expected it for aws-12 and aws-2025 only")
    for region in options.regions or ():
        if region not in facts.regions:
            raise UsageError(f"{where}: regions: {region!r} is none of: {', '.join(facts.regions)}")
    facts = msgspec.structs.replace(facts, **changed)
    if options.leaders is not None:
        allowed = (*facts.regions, "spread")
        if facts.placement != "replica-per-region" or options.leaders not in allowed:
            expected = f"one of: {', '.join(allowed)}" if facts.placement == "replica-per-region" else "no such option"
            raise UsageError(f"{where}: leaders = {options.leaders!r}; expected {expected}")
    return facts


def _servers(name: str, facts: EnvironmentFacts, topology: Topology) -> dict[ProcessId, str]:
    """The region of every replica."""
    rooms = facts.regions or tuple(f"r{n + 1}" for n in range(len(topology.groups)))
    replicas = len(topology.members(topology.groups[0]))
    if facts.placement == "replica-per-region" and replicas > len(rooms):
        raise UsageError(f"environment {name}: {replicas} replicas, one per region; expected 1 to {len(rooms)}")
    if facts.placement == "group-per-region" and len(topology.groups) > len(rooms):
        raise UsageError(
            f"environment {name}: {len(topology.groups)} groups, one per region; expected 1 to {len(rooms)}"
        )
    listed = {number: region for region, numbers in facts.groups.items() for number in numbers}
    if facts.placement == "listed" and len(topology.groups) > len(listed):
        raise UsageError(f"environment {name}: {len(topology.groups)} groups; it places 1 to {len(listed)}")
    regions = {}
    for place, group in enumerate(topology.groups):
        first = _first(facts, rooms, place)
        for replica, member in enumerate(topology.members(group)):
            match facts.placement:
                case "together":
                    regions[member] = rooms[0]
                case "replica-per-region":
                    regions[member] = rooms[(first + replica) % len(rooms)]
                case "listed":
                    regions[member] = listed[place + 1]
                case "group-per-region":
                    regions[member] = rooms[place]
                case "replica-per-site":
                    regions[member] = f"{rooms[place]}/{SITES[replica]}"
    return regions


def _first(facts: EnvironmentFacts, rooms: tuple[str, ...], place: int) -> int:
    """Which region has the first replica, the usual leader, of the group in this place."""
    if facts.leaders == "spread":
        return place % len(rooms)
    return rooms.index(facts.leaders) if facts.leaders in rooms else 0


def _clients(
    name: str, facts: EnvironmentFacts, topology: Topology, servers: dict[ProcessId, str]
) -> dict[ProcessId, str]:
    """The region of every client."""
    used = sorted(set(servers.values()))
    for region in facts.clients:
        if region not in used and region not in facts.regions:
            raise UsageError(f"environment {name}: clients in {region!r}; expected some of: {', '.join(used)}")
    everywhere = used if facts.matrix else facts.regions
    regions = {}
    for turn, client in enumerate(topology.clients):
        if facts.clients:
            region = facts.clients[turn % len(facts.clients)]
        elif facts.placement == "replica-per-region":
            region = everywhere[turn % len(everywhere)]
        else:
            region = servers[_beside(topology, turn)]
        regions[client] = region if facts.client_ms is None else region + CLIENTS
    return regions


def _beside(topology: Topology, turn: int) -> ProcessId:
    """The replica beside which a client incarnations: first one at every group, then one at every second replica ..."""
    group: GroupId = topology.groups[turn % len(topology.groups)]
    members = topology.members(group)
    return members[turn // len(topology.groups) % len(members)]


def _matrix(facts: EnvironmentFacts, regions: list[str]) -> Delays:
    """One-way delays between all the regions that are used."""
    printed = _printed(facts.matrix, facts.regions) if facts.matrix else {}
    for one, other, delay in facts.between_ms:
        printed.setdefault(one, {})[other] = delay
        printed.setdefault(other, {})[one] = delay
    return {
        source: {target: facts.ns(_delay_ms(facts, printed, source, target)) for target in regions}
        for source in regions
    }


def _delay_ms(facts: EnvironmentFacts, printed: dict[str, dict[str, float]], source: str, target: str) -> float:
    here, there = source.removesuffix(CLIENTS), target.removesuffix(CLIENTS)
    if here == there and source != target and facts.client_ms is not None:
        return facts.client_ms
    if there in printed.get(here, {}):
        return printed[here][there]
    if here == there:
        return facts.inside_ms
    same_region = here.partition("/")[0] == there.partition("/")[0]
    return facts.site_ms if same_region else facts.across_ms


@cache
def _printed_file(name: str) -> list[dict[str, float]] | dict[str, dict[str, float]]:
    text = _read(name)
    if name.endswith(".json"):
        rows: dict[str, dict[str, float]] = json.loads(text)["rtt_ms"]
        return rows
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [{key: float(cell) for key, cell in row.items()} for row in csv.DictReader(lines)]


def _printed(name: str, regions: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """A file's delays by region. The CSV numbers its nodes; their names are in environments.toml in that order."""
    rows = _printed_file(name)
    if isinstance(rows, dict):
        return {source: dict(rows[source]) for source in regions}
    names = {number + 1: region for number, region in enumerate(load_environments()["aws-12"].regions)}
    return {
        names[int(row["node"])]: {names[int(key)]: delay for key, delay in row.items() if key != "node"} for row in rows
    }


def _read(name: str) -> str:
    return files("amcast").joinpath("data", name).read_text(encoding="utf-8")
