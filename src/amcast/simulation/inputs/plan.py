"""A plan: everything that a simulated run is made of, as one TOML file. Same plan and seed, same run.

protocol = "skeen"
seed = 7

[topology]                 # or: environment = "aws-12", which also sets the network; or environment = "own" with
                           # options = { latencies = "mine.csv", placement = [["eu", "us", "ap"], ...], leaders = "us" }
groups = 3
replicas = 1
clients = 4

[network]                  # simulation/inputs/network.py lists every field
delay_ns = 1_000_000

[workload]
name = "micro"
messages = 1000            # in all; or seconds = 60.0, after which clients stop
outstanding = 1            # per client
destinations = 2           # further fields belong to the workload of that name

[faults]
profile = "pause+partition"
count = 8
until_ns = 200_000_000
events = [{ at_ns = 5_000_000, do = "pause", process = 1 }]
"""

import tomllib
from pathlib import Path
from typing import Any, Literal

import msgspec
from msgspec import field

from amcast.kernel.config import MILLISECOND, Config, parse_config
from amcast.kernel.errors import UsageError
from amcast.simulation.inputs.latencies import load_latencies
from amcast.simulation.inputs.network import NetworkConfig
from amcast.simulation.world.actions import Fault

MAX_MESSAGES = 1_000_000_000
MAX_SECONDS = 1_000_000


class TopologyPlan(Config, frozen=True):
    """Numbers of groups, replicas and clients; or the sizes of an environment."""

    groups: int = 3
    replicas: int = 1
    clients: int = 4
    environment: str = ""
    """Name of an environment, see `amcast environments`; "" is one region with equal delays."""
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the environment."""


class FaultEvent(Config, frozen=True):
    """A fault at a point in time."""

    at_ns: int
    fault: Fault


class FaultPlan(Config, frozen=True):
    """Faults of a run: drawn from a profile, listed one by one, or both."""

    profile: str = "none"
    count: int = 8
    until_ns: int = 0
    """When all faults heal; 0 chooses a hundred message delays (or the time of the last listed event)."""
    events: tuple[FaultEvent, ...] = ()

    def __post_init__(self) -> None:
        if not 0 <= self.count <= 100_000:
            raise ValueError(f"count = {self.count}; expected 0 to 100000")
        if self.until_ns < 0:
            raise ValueError(f"until_ns = {self.until_ns}; expected 0 or more")


class Plan(Config, frozen=True):
    """The plan of one run. A sweep spans many plans."""

    protocol: str
    seed: int = 0
    options: dict[str, Any] = field(default_factory=dict)
    """Options of the protocol."""
    topology: TopologyPlan = TopologyPlan()
    network: dict[str, Any] = field(default_factory=dict)
    """Fields of `NetworkConfig`, over those of the environment."""
    workload: dict[str, Any] = field(default_factory=dict)
    """`name`, `messages`, and the fields of that workload."""
    faults: FaultPlan = FaultPlan()
    nodes: bool | None = None
    """Whether processes are whole nodes (leader election, client sessions with retries and replies) or bare. Default:
    nodes if the protocol claims to survive crashes."""
    heartbeats: bool = True
    """Whether nodes elect leaders by heartbeats. Without them only the scheduler suggests leaders, as an exploration
    needs."""
    senders: Literal["clients", "all"] = "clients"
    """Who multicasts: the clients, or servers as well, as applications beside a node do."""
    answers: Literal["", "leader", "all", "everywhere", "nearest", "first", "groups"] = ""
    """Who answers a client. Nodes: the "leader" of each destination (the default), or "all" members. Bare processes:
    delivery "everywhere" ends a message at once (the default), or an answer arrives from the "nearest" destination
    process, from the "first" one, or from the first of each of its "groups"."""
    order: Literal["acyclic", "real-time"] = "acyclic"
    """What answers promise: a place in an order without cycles, or that nothing multicast later comes before."""
    order_options: dict[str, Any] = field(default_factory=dict)
    """Options of real-time order, over those that fit the network."""
    gateways: bool = False
    """Whether nodes bundle the messages of their clients, as in a live cluster; clients then ask one node."""
    gateway: dict[str, Any] = field(default_factory=dict)
    """Options of gateways, over those that fit the network."""
    membership: dict[str, Any] = field(default_factory=dict)
    """Options of reconfiguration, over those that fit the network."""
    until_ns: int = 0
    """Ends the run at this time, finished or not; 0 lets it finish."""
    settle_ns: int = 0
    """The liveness bound: a run is stuck if nothing is delivered for this long after healing while deliveries are due.
    0 chooses."""

    def __post_init__(self) -> None:
        if not -(2**63) <= self.seed < 2**63:
            raise ValueError(f"seed = {self.seed}; expected a 64-bit integer")
        if self.until_ns < 0 or self.settle_ns < 0:
            raise ValueError("until_ns and settle_ns: expected 0 or more")

    @property
    def messages(self) -> int:
        return int(self.workload.get("messages", MAX_MESSAGES if self.seconds else 100))

    @property
    def seconds(self) -> float:
        """How long clients multicast, in simulated time; 0: until all messages are multicast."""
        return float(self.workload.get("seconds", 0))

    @property
    def workload_name(self) -> str:
        return str(self.workload.get("name", "micro"))

    @property
    def workload_options(self) -> dict[str, Any]:
        return {key: value for key, value in self.workload.items() if key not in ("name", "messages", "seconds")}

    def network_config(self, environment: dict[str, Any] | None = None) -> NetworkConfig:
        """The network of the environment, with the plan's fields on top."""
        return parse_config(NetworkConfig, {**(environment or {}), **self.network}, "network")


def read_plan(file: Path) -> dict[str, Any]:
    """Reads a plan file as plain data, before command-line options are laid over it. The file of latencies that it
    names is looked for beside it."""
    try:
        text = file.read_bytes().decode()
    except OSError as error:
        raise UsageError(f"plan {file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise UsageError(f"plan {file}: not UTF-8 text; expected TOML") from None
    try:
        values = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise UsageError(f"plan {file}: not TOML: {error}") from None
    match values:
        case {"topology": {"options": {"latencies": str(name)} as options}}:
            options["latencies"] = str(file.parent / name)
    return values


def parse_plan(values: dict[str, Any], where: str = "plan") -> Plan:
    """Parses plain data as a plan; errors name the place, the field, the value and what was expected."""
    if "protocol" not in values:
        raise UsageError(f"{where}: protocol is missing; expected a name of `amcast protocols`")
    values = {**values, "faults": _nest_events(values.get("faults", {}), where)}
    values = _load_latencies(values, where)
    plan = parse_config(Plan, values, where)
    messages = plan.workload.get("messages", 0)
    if type(messages) is not int or not 0 <= messages <= MAX_MESSAGES:
        raise UsageError(f"{where}: workload.messages = {messages!r}; expected a whole number from 0 to {MAX_MESSAGES}")
    seconds = plan.workload.get("seconds", 0)
    if type(seconds) not in (int, float) or not 0 <= seconds <= MAX_SECONDS:
        raise UsageError(f"{where}: workload.seconds = {seconds!r}; expected a number from 0 to {MAX_SECONDS}")
    if not isinstance(plan.workload.get("name", ""), str):
        raise UsageError(f"{where}: workload.name = {plan.workload['name']!r}; expected a name of `amcast workloads`")
    return plan


def _load_latencies(values: dict[str, Any], where: str) -> dict[str, Any]:
    """Reads a file of latencies into the plan, which then needs the file no more: it may run on another machine."""
    topology = values.get("topology")
    options = topology.get("options") if isinstance(topology, dict) else None
    if not isinstance(topology, dict) or not isinstance(options, dict):
        return values
    return {**values, "topology": {**topology, "options": load_latencies(options, f"{where}: topology.options")}}


def _nest_events(faults: Any, where: str) -> Any:
    """Nests the fields of an event: users write `{ at_ns = 5, do = "pause", process = 1 }` in one table."""
    if not isinstance(faults, dict) or not isinstance(faults.get("events"), list):
        return faults
    events = []
    for place, event in enumerate(faults["events"]):
        if not isinstance(event, dict) or "at_ns" not in event:
            raise UsageError(f"{where}: faults.events[{place}] = {event!r}; expected a table with at_ns and do")
        events.append({"at_ns": event["at_ns"], "fault": {k: v for k, v in event.items() if k != "at_ns"}})
    return {**faults, "events": events}


def describe_plan(plan: Plan) -> dict[str, Any]:
    """A plan as plain data that `parse_plan` reads back."""
    plain: dict[str, Any] = msgspec.to_builtins(plan)
    plain["faults"]["events"] = [{"at_ns": e["at_ns"], **e["fault"]} for e in plain["faults"]["events"]]
    return plain


def scale_ns(network: NetworkConfig) -> int:
    """About the longest message delay: the unit of durations that a plan leaves open."""
    longest = max([network.delay_ns, *(ns for row in network.matrix_ns.values() for ns in row.values())])
    return max(longest, MILLISECOND // 1000)
