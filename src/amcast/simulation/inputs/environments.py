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
from amcast.simulation.inputs.latencies import check_latencies, load_latencies

Delays = dict[str, dict[str, int]]
"""Nanoseconds one way, by region of the source, then of the target."""
Placement = Literal["together", "replica-per-region", "listed", "group-per-region", "replica-per-site"]

MILLISECOND_NS = 1_000_000
SITES = "abcdefghijklmnopqrstuvwxyzABCDE"
CLIENTS = "/clients"
OWN = "own"
"""The environment whose latencies the plan brings."""


class EnvironmentFacts(Config, frozen=True):
    """One table of environments.toml; the comment at the top of that file explains the fields."""

    summary: str
    source: str
    delays: Literal["rtt", "one-way"]
    placement: Placement | tuple[tuple[str, ...], ...]
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
    latencies: dict[str, dict[str, float]] = field(default_factory=dict)
    """A matrix that a plan brings with it, in place of a file of package data."""
    leaders: str | tuple[str, ...] = ""
    clients: tuple[str, ...] = ()
    bandwidth: int = 0
    pipe: Literal["region", "uplink"] = "region"

    @property
    def has_matrix(self) -> bool:
        """Whether every pair of regions has a delay of its own."""
        return bool(self.matrix or self.latencies)

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
    leaders: str | tuple[str, ...] | None = None
    """The region of the first replica, the usual leader: of every group, or one per group; or "spread": round-robin
    over the regions. Of replica-per-region and of placements by list."""
    regions: tuple[str, ...] | None = None
    """The regions to use, in this order."""
    placement: Literal["replica-per-region", "group-per-region"] | tuple[tuple[str, ...], ...] | None = None
    """Where replicas are; or, for each group, the region of each of its replicas, the usual leader first."""
    clients: tuple[str, ...] | None = None
    """The regions of clients, round-robin."""
    latencies: str | dict[str, dict[str, float]] | None = None
    """Of the environment own: a CSV file of milliseconds (first row and first column: regions), or the same as a
    table. A plan holds the table once it was read."""
    delays: Literal["rtt", "one-way"] | None = None
    """Of the environment own: what the latencies are."""

    def __post_init__(self) -> None:
        for name in ("inside_ms", "sd_percent", "bandwidth"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise ValueError(f"{name} = {value}; expected 0 or more")
        for name in ("regions", "clients"):
            chosen = getattr(self, name)
            if chosen is not None and (not chosen or len(set(chosen)) < len(chosen)):
                raise ValueError(f"{name} = {list(chosen)}; expected one or more different names")
        if isinstance(self.latencies, dict):
            check_latencies(self.latencies, "latencies")


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
    given = load_latencies(dict(options or {}), f"options of environment {name}")
    chosen = parse_config(EnvironmentOptions, given, f"options of environment {name}")
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
    _check_own(name, where, options)
    if isinstance(options.latencies, dict):
        changed.setdefault("regions", tuple(options.latencies))
        facts = msgspec.structs.replace(facts, regions=tuple(options.latencies), latencies=options.latencies)
    if "inside_ms" in changed and facts.has_matrix:
        raise UsageError(f"{where}: inside_ms = {options.inside_ms}; the matrix says it; expected no such option")
    if "bandwidth" in changed and len(facts.regions) == 1:
        raise UsageError(f"{where}: bandwidth = {options.bandwidth}; there is one region; expected no such option")
    if "pipe" in changed and not facts.bandwidth and not options.bandwidth:
        raise UsageError(f"{where}: pipe = {options.pipe!r}, without a bandwidth; expected one of both or none")
    if ("regions" in changed or "placement" in changed) and not facts.has_matrix:
        field_name = "regions" if "regions" in changed else "placement"
        shown = list(changed[field_name]) if isinstance(changed[field_name], tuple) else changed[field_name]
        raise UsageError(f"{where}: {field_name} = {shown!r}; expected it for own, aws-12 and aws-2025 only")
    placed = options.placement if isinstance(options.placement, tuple) else ()
    for field_name, names in (("regions", options.regions or ()), ("placement", [r for row in placed for r in row])):
        for region in names:
            if region not in facts.regions:
                raise UsageError(f"{where}: {field_name}: {region!r} is none of: {', '.join(facts.regions)}")
    facts = msgspec.structs.replace(facts, **changed)
    if options.leaders is not None:
        _check_leaders(where, facts, options.leaders)
    return facts


def _check_own(name: str, where: str, options: EnvironmentOptions) -> None:
    """Only the environment own brings latencies, and it needs them."""
    if name == OWN:
        if options.latencies is None:
            raise UsageError(f"{where}: latencies is missing; expected a CSV file of milliseconds between regions")
        return
    for field_name in ("latencies", "delays"):
        if getattr(options, field_name) is not None:
            raise UsageError(f"{where}: {field_name} is given; expected it for the environment {OWN} only")


def _check_leaders(where: str, facts: EnvironmentFacts, leaders: str | tuple[str, ...]) -> None:
    has_choice = isinstance(facts.placement, tuple) or facts.placement == "replica-per-region"
    allowed = (*facts.regions, "spread") if isinstance(leaders, str) else facts.regions
    wrong = [one for one in ((leaders,) if isinstance(leaders, str) else leaders) if one not in allowed]
    if wrong or not has_choice:
        expected = f"one of: {', '.join(allowed)}" if has_choice else "no such option"
        shown = leaders if isinstance(leaders, str) else list(leaders)
        raise UsageError(f"{where}: leaders = {shown!r}; expected {expected}")


def _place_servers(name: str, facts: EnvironmentFacts, topology: Topology) -> dict[ProcessId, str]:
    """The region of every replica."""
    if isinstance(facts.placement, tuple):
        return _place_listed(name, facts, facts.placement, topology)
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
    _check_count_of_leaders(name, facts, topology)
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


def _place_listed(
    name: str, facts: EnvironmentFacts, placement: tuple[tuple[str, ...], ...], topology: Topology
) -> dict[ProcessId, str]:
    """The region of every replica as the plan lists them; the replica in the leaders' region comes first."""
    where = f"options of environment {name}"
    if len(placement) != len(topology.groups):
        raise UsageError(f"{where}: placement lists {len(placement)} groups; expected {len(topology.groups)}")
    _check_count_of_leaders(name, facts, topology)
    regions: dict[ProcessId, str] = {}
    for place, group in enumerate(topology.groups):
        row, members = list(placement[place]), topology.members(group)
        if len(row) != len(members):
            raise UsageError(f"{where}: placement[{place}] lists {len(row)} replicas; expected {len(members)}")
        wanted = facts.leaders if isinstance(facts.leaders, str) else facts.leaders[place]
        if wanted == "spread":
            wanted = facts.regions[place % len(facts.regions)]
        if wanted:
            if wanted not in row:
                raise UsageError(f"{where}: leaders: {wanted!r}, and placement[{place}] = {row}; expected one of these")
            row.remove(wanted)
            row.insert(0, wanted)
        regions.update(zip(members, row, strict=True))
    return regions


def _check_count_of_leaders(name: str, facts: EnvironmentFacts, topology: Topology) -> None:
    if isinstance(facts.leaders, tuple) and len(facts.leaders) != len(topology.groups):
        raise UsageError(
            f"options of environment {name}: leaders lists {len(facts.leaders)} regions;"
            f" expected one, or one for each of the {len(topology.groups)} groups"
        )


def _leader_region(facts: EnvironmentFacts, regions_used: tuple[str, ...], place: int) -> int:
    """The index of the region with the first replica, the usual leader, of the n-th group."""
    wanted = facts.leaders if isinstance(facts.leaders, str) else facts.leaders[place]
    if wanted == "spread":
        return place % len(regions_used)
    return regions_used.index(wanted) if wanted in regions_used else 0


def _place_clients(
    name: str, facts: EnvironmentFacts, topology: Topology, servers: dict[ProcessId, str]
) -> dict[ProcessId, str]:
    """The region of every client."""
    used = sorted(set(servers.values()))
    for region in facts.clients:
        if region not in used and region not in facts.regions:
            raise UsageError(f"environment {name}: clients in {region!r}; expected some of: {', '.join(used)}")
    everywhere = used if facts.has_matrix else facts.regions
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
    delays = facts.latencies or (_read_delays(facts.matrix, facts.regions) if facts.matrix else {})
    if facts.latencies:
        delays = {source: dict(row) for source, row in delays.items()}
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
