"""Environments by name: the region of every process, and the delays between regions.

The facts are in data/environments.toml, as their sources print them; this module turns them into a topology with
regions and the plain form of a `NetworkConfig`. Clients that are farther from the replicas of their region than these
are from each other get a region of their own, "R2/clients", at the distance of R2 from all others.
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
    """One table of environments.toml; the comment at the top of that file explains the fields."""

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
    pipe: Literal["region", "uplink"] = "region"

    def ns(self, delay_ms: float) -> int:
        """Converts a printed delay to nanoseconds one way."""
        return round(delay_ms * MILLISECOND_NS / (2 if self.delays == "rtt" else 1))


class EnvironmentOptions(Config, frozen=True):
    """Options of an environment that a plan may change."""

    inside_ms: float | None = None
    """Delay inside a region, as the environment prints it (RTT or one way)."""
    sd_percent: float | None = None
    bandwidth: int | None = None
    """Bytes per second of each pipe, each way; 0 is unlimited."""
    pipe: Literal["region", "uplink"] | None = None
    """What a pipe is: the way from one region to another, or all ways out of a region together."""
    leaders: str | None = None
    """Of replica-per-region: the region of the first replica of every group, or "spread": round-robin over the
    regions."""
    regions: tuple[str, ...] | None = None
    """The regions to use, in this order."""
    placement: Literal["replica-per-region", "group-per-region"] | None = None
    clients: tuple[str, ...] | None = None
    """The regions of clients, round-robin."""

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
    """A topology with regions, and its network."""

    name: str
    topology: Topology
    network: dict[str, Any]
    """The plain form of a `NetworkConfig`."""


@cache
def load_environments() -> dict[str, EnvironmentFacts]:
    """All environments, by name."""
    tables = tomllib.loads(_read("environments.toml"))
    return {name: parse_config(EnvironmentFacts, table, f"environments.toml: {name}") for name, table in tables.items()}


def find_environment(
    name: str, groups: int, replicas: int, clients: int, options: dict[str, Any] | None = None
) -> Environment:
    """Builds the environment of this name for these sizes, or raises an error that says what was expected."""
    known = load_environments()
    if name not in known:
        raise UsageError(f"environment {name!r} does not exist; `amcast environments` lists them: {', '.join(known)}")
    chosen = parse_config(EnvironmentOptions, dict(options or {}), f"options of environment {name}")
    facts = _with_options(name, known[name], chosen)
    plain = Topology.grid(groups, replicas, clients)
    regions = _place_servers(name, facts, plain)
    regions.update(_place_clients(name, facts, plain, regions))
    topology = Topology({g: plain.members(g) for g in plain.groups}, plain.clients, regions)
    network: dict[str, Any] = {
        "matrix_ns": _matrix(facts, sorted(set(regions.values()))),
        "distribution": "normal",
        "spread": facts.sd_percent / 100,
    }
    if facts.bandwidth:
        network.update(bandwidth=facts.bandwidth, pipe=facts.pipe)
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
    if "pipe" in changed and not facts.bandwidth and not options.bandwidth:
        raise UsageError(f"{where}: pipe = {options.pipe!r}, without a bandwidth; expected one of both or none")
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


def _place_servers(name: str, facts: EnvironmentFacts, topology: Topology) -> dict[ProcessId, str]:
    """The region of every replica."""
    regions_used = facts.regions or tuple(f"r{n + 1}" for n in range(len(topology.groups)))
    replicas = len(topology.members(topology.groups[0]))
    if facts.placement == "replica-per-region" and replicas > len(regions_used):
        raise UsageError(f"environment {name}: {replicas} replicas, one per region; expected 1 to {len(regions_used)}")
    if facts.placement == "group-per-region" and len(topology.groups) > len(regions_used):
        raise UsageError(
            f"environment {name}: {len(topology.groups)} groups, one per region; expected 1 to {len(regions_used)}"
        )
    listed = {number: region for region, numbers in facts.groups.items() for number in numbers}
    if facts.placement == "listed" and len(topology.groups) > len(listed):
        raise UsageError(f"environment {name}: {len(topology.groups)} groups; it places 1 to {len(listed)}")
    regions = {}
    for place, group in enumerate(topology.groups):
        first = _leader_region(facts, regions_used, place)
        for replica, member in enumerate(topology.members(group)):
            match facts.placement:
                case "together":
                    regions[member] = regions_used[0]
                case "replica-per-region":
                    regions[member] = regions_used[(first + replica) % len(regions_used)]
                case "listed":
                    regions[member] = listed[place + 1]
                case "group-per-region":
                    regions[member] = regions_used[place]
                case "replica-per-site":
                    regions[member] = f"{regions_used[place]}/{SITES[replica]}"
    return regions


def _leader_region(facts: EnvironmentFacts, regions_used: tuple[str, ...], place: int) -> int:
    """The index of the region with the first replica, the usual leader, of the n-th group."""
    if facts.leaders == "spread":
        return place % len(regions_used)
    return regions_used.index(facts.leaders) if facts.leaders in regions_used else 0


def _place_clients(
    name: str, facts: EnvironmentFacts, topology: Topology, servers: dict[ProcessId, str]
) -> dict[ProcessId, str]:
    """The region of every client."""
    used = sorted(set(servers.values()))
    for region in facts.clients:
        if region not in used and region not in facts.regions:
            raise UsageError(f"environment {name}: clients in {region!r}; expected some of: {', '.join(used)}")
    everywhere = used if facts.matrix else facts.regions
    regions = {}
    for index, client in enumerate(topology.clients):
        if facts.clients:
            region = facts.clients[index % len(facts.clients)]
        elif facts.placement == "replica-per-region":
            region = everywhere[index % len(everywhere)]
        else:
            region = servers[_nearest_replica(topology, index)]
        regions[client] = region if facts.client_ms is None else region + CLIENTS
    return regions


def _nearest_replica(topology: Topology, index: int) -> ProcessId:
    """The replica next to which the n-th client is placed: first one at every group, then one at every second replica,
    and so on."""
    group: GroupId = topology.groups[index % len(topology.groups)]
    members = topology.members(group)
    return members[index // len(topology.groups) % len(members)]


def _matrix(facts: EnvironmentFacts, regions: list[str]) -> Delays:
    """One-way delays between the regions in use."""
    delays = _read_delays(facts.matrix, facts.regions) if facts.matrix else {}
    for one, other, delay in facts.between_ms:
        delays.setdefault(one, {})[other] = delay
        delays.setdefault(other, {})[one] = delay
    return {
        source: {target: facts.ns(_delay_ms(facts, delays, source, target)) for target in regions} for source in regions
    }


def _delay_ms(facts: EnvironmentFacts, delays: dict[str, dict[str, float]], source: str, target: str) -> float:
    here, there = source.removesuffix(CLIENTS), target.removesuffix(CLIENTS)
    if here == there and source != target and facts.client_ms is not None:
        return facts.client_ms
    if there in delays.get(here, {}):
        return delays[here][there]
    if here == there:
        return facts.inside_ms
    same_region = here.partition("/")[0] == there.partition("/")[0]
    return facts.site_ms if same_region else facts.across_ms


@cache
def _read_delay_file(name: str) -> list[dict[str, float]] | dict[str, dict[str, float]]:
    text = _read(name)
    if name.endswith(".json"):
        rows: dict[str, dict[str, float]] = json.loads(text)["rtt_ms"]
        return rows
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    return [{key: float(cell) for key, cell in row.items()} for row in csv.DictReader(lines)]


def _read_delays(name: str, regions: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Delays by region from a data file. The CSV numbers its nodes; environments.toml names them in that order."""
    rows = _read_delay_file(name)
    if isinstance(rows, dict):
        return {source: dict(rows[source]) for source in regions}
    names = {number + 1: region for number, region in enumerate(load_environments()["aws-12"].regions)}
    return {
        names[int(row["node"])]: {names[int(key)]: delay for key, delay in row.items() if key != "node"} for row in rows
    }


def _read(name: str) -> str:
    return files("amcast").joinpath("data", name).read_text(encoding="utf-8")
