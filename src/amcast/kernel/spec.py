"""The specification of a protocol: its components and its claims, as data. Tests, documentation and figures read the
same claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from amcast.kernel.config import Config, parse_config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Record, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.statements import StatementTable
from amcast.kernel.topology import Topology

Genuine = Literal["strict", "run", "no"]
"""strict: every packet about m travels between m's sender and destinations; run: only senders and destinations of some
message of the run take part; no: neither."""

Links = Literal["fifo", "reordering", "raw"]
"""The weakest links that a protocol tolerates. fifo: ordered, exactly once; reordering: exactly once; raw: bodies
may be lost or duplicated."""

Contacts = Callable[[Topology, Message], tuple[ProcessId, ...]]
"""Computes the contacts of a message: the processes to which its sender must send it."""

FAULTS: Final = (
    "pause",
    "slow",
    "partition",
    "loss",
    "skew",
    "leaders",
    "suspects",
    "unreachable",
    "links",
    "crash",
    "leave",
    "recovery",
    "amnesia",
    "emptied",
    "rollback",
)
"""Kinds of faults, mildest first. partition and loss only delay bodies, because links repair them; unreachable: a
process is told, wrongly or not, that nobody is at a peer's address; links: a link overflows and is reset, so that
bodies in flight are lost (Skeen survives the former and not the latter). leave: a process says farewell, stops and
starts again. amnesia: a restarted process has lost its disk. The last two are faults of nodes that have data folders:
emptied without a replacement, or replaced by an older copy."""

FaultKind = Literal[
    "pause",
    "slow",
    "partition",
    "loss",
    "skew",
    "leaders",
    "suspects",
    "unreachable",
    "links",
    "crash",
    "leave",
    "recovery",
    "amnesia",
    "emptied",
    "rollback",
]


def majorities_survive(topology: Topology, crashed: frozenset[ProcessId]) -> bool:
    """Whether every group keeps a majority of members that do not crash for good."""
    return all(
        sum(member not in crashed for member in topology.members(group)) >= topology.quorum(group)
        for group in topology.groups
    )


def all_correct(topology: Topology, crashed: frozenset[ProcessId]) -> bool:
    """Whether all processes are correct."""
    return not crashed


@dataclass(frozen=True)
class Claims:
    """The promises of a protocol. Tests check each of them."""

    genuine: Genuine
    links: Links = "fifo"
    faults: frozenset[FaultKind] = frozenset()
    tolerates: Callable[[Topology, frozenset[ProcessId]], bool] = all_correct
    """Whether all messages are still delivered at the other processes if these crash for good. It is a function of the
    topology, because "a minority of each group" does not describe a protocol that survives the loss of whole groups."""
    single_replica: bool = False
    """Whether the protocol requires groups of one process."""
    fifo: bool = False
    exactly_once: bool = False
    real_time: bool = False
    """Whether a message that was answered before another was multicast precedes it, over all groups (P9)."""
    removes_groups: bool = False
    """Whether the protocol stops waiting for a group that it takes for lost (note "removed"). Real-time order does not
    hold across such a group if it is not lost."""
    ranked: bool = False
    """Whether deliveries carry a rank, an order key that all processes agree on."""
    members: bool = True
    """Whether groups can be reconfigured while it runs (`parts/membership/reconfigurable.py`)."""
    quiescent: bool = True
    """Whether no body is sent after everything is delivered, heartbeats apart."""
    world: Literal["unit", "intergroup"] = "unit"
    """How message delays are counted. unit: 1 on every link; intergroup: 1 between groups and 0 within a group."""
    delays: Callable[[str, int, int], int | None] = lambda role, destinations, replicas: None
    """(role, destinations, replicas): the message delays of a lone multicast at processes of a role ("max": at the
    slowest process), or None where nothing is claimed."""
    bound: Callable[[str, float], float | None] = lambda role, skew: None
    """(role, skew): an upper bound on message delays under any contention, while leaders are stable, every delay is at
    most 1 and every clock is within `skew` delays of real time; None where nothing is claimed."""
    packets: Callable[[int, int], int | None] = lambda destinations, replicas: None
    """(destinations, replicas): the packets of a lone multicast, including self-sends and the client's requests."""
    round_start_ns: Callable[[Any], int] = lambda config: 0
    """Where rounds follow the clock: the start of a round, in ns after boot, just before which the lone multicast is
    measured. 0: at boot."""

    def for_nodes(self) -> "Claims":
        """The claims of nodes with data folders: they notice a spoilt folder, if the protocol readmits members that
        lost their records."""
        return replace(self, faults=self.faults | {"emptied", "rollback"}) if "amnesia" in self.faults else self


@dataclass(frozen=True)
class Spec:
    """Everything that a driver needs to run a protocol, and the claims to judge it by."""

    name: str
    summary: str
    source: str
    process: Callable[[ProcessId, Topology, Any], Process]
    claims: Claims
    config: type[Config] = Config
    bodies: tuple[type[Body], ...] = ()
    records: tuple[type[Record], ...] = ()
    states: tuple[type[State], ...] = ()
    role_of: Callable[[Topology, ProcessId], str] = lambda topology, process: "member"
    contacts: Contacts = lambda topology, message: topology.processes_of(message.destinations)
    make_contacts: Callable[[Any], Contacts] | None = None
    """Makes `contacts` from the protocol's options, where they depend on these (overlays)."""
    unreplicated: Claims | None = None
    """The claims for groups of one process, if they differ: the bare protocol, without replication."""
    adapt_claims: Callable[[Claims, Any], Claims] | None = None
    """The claims under given options, from those under the default ones, where they differ."""
    farewell: Callable[[int], Body] | None = None
    """Makes the body that all peers get before a process shuts down, from its incarnation. The driver sends it: a
    process does not know which clients are connected."""
    admission_bodies: tuple[type[Body], ...] = ()
    """The bodies with which nodes admit each other's data folders; empty for processes without folders."""
    open_bundle: Callable[[Message], list[Message]] | None = None
    """How processes of the protocol open a bundle when they deliver it (`kernel/bundle.py`). None: they cannot, and
    nodes are no gateways."""
    states_accepted: bool = False
    """Whether processes state what they have accepted (`Process.accepted`), so that nodes can be read without ordering
    a message (`parts/node/read_index.py`)."""
    goals: tuple[str, ...] = ()
    """Names of notes that a thorough search must have seen."""
    recovery_goals: tuple[str, ...] = ()
    """Names of further notes that a fuzz campaign must have seen that draws every claimed fault and small limits."""
    statements: Callable[[Topology, Any], StatementTable] | None = None
    """What the bodies and records of the protocol state, for a topology and the options: a simulated world judges them.
    None: it judges deliveries only."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """The fixed options of a variant (primcast-hc is primcast with hybrid clocks)."""

    def configure(self, values: Mapping[str, Any] | None = None) -> Config:
        """The protocol's options from plain data, together with the variant's fixed options."""
        merged = {**self.options, **(values or {})}
        return parse_config(self.config, merged, f"options of protocol {self.name}")

    def contacts_for(self, config: Config) -> Contacts:
        """The function that computes contacts, for given options."""
        return self.contacts if self.make_contacts is None else self.make_contacts(config)

    def for_topology(self, topology: Topology) -> "Spec":
        """The same protocol with the claims for a topology."""
        if self.unreplicated is None or any(len(topology.members(group)) > 1 for group in topology.groups):
            return self
        return replace(self, claims=self.unreplicated, unreplicated=None)

    def for_config(self, config: Config) -> "Spec":
        """The same protocol with the claims under given options."""
        if self.adapt_claims is None:
            return self
        return replace(self, claims=self.adapt_claims(self.claims, config), adapt_claims=None)

    def check_topology(self, topology: Topology) -> None:
        """Raises UsageError if the protocol cannot run on a topology."""
        if self.claims.single_replica:
            for group in topology.groups:
                if len(topology.members(group)) != 1:
                    raise UsageError(
                        f"protocol {self.name}: group {group} has {len(topology.members(group))} replicas;"
                        f" expected 1 (the protocol assumes processes that do not crash)"
                    )

    def wire_bodies(self) -> tuple[type[Body], ...]:
        """All types of bodies that may be sent: those of the protocol and those of clients."""
        return (*self.bodies, Request, Reply)
