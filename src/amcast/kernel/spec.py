"""A protocol as data: what it is made of and what it claims. Tests, docs and figures read the same claims."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Final, Literal

from amcast.kernel.config import Config, parse_config
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Record, Reply, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology

Genuine = Literal["strict", "run", "no"]
"""strict: every packet about m runs between m's sender and destinations; run: only processes that some message of the
run concerns take part; no: neither."""

Links = Literal["fifo", "reordering", "raw"]
"""The weakest links a protocol works over: ordered and exactly-once; exactly-once; anything may be lost or doubled."""

Contacts = Callable[[Topology, Message], tuple[ProcessId, ...]]
"""Whom a client must tell of a message."""

FAULTS: Final = (
    "pause",
    "slow",
    "partition",
    "loss",
    "skew",
    "leaders",
    "suspects",
    "links",
    "crash",
    "recovery",
    "amnesia",
)
"""Kinds of faults, mildest first. amnesia: a restarted process finds its disk empty."""

FaultKind = Literal[
    "pause", "slow", "partition", "loss", "skew", "leaders", "suspects", "links", "crash", "recovery", "amnesia"
]


def majorities_survive(topology: Topology, crashed: frozenset[ProcessId]) -> bool:
    """Every group keeps a majority of members that do not stay down."""
    return all(
        sum(member not in crashed for member in topology.members(group)) >= topology.quorum(group)
        for group in topology.groups
    )


def nobody_crashes(topology: Topology, crashed: frozenset[ProcessId]) -> bool:
    """Every process is correct."""
    return not crashed


@dataclass(frozen=True)
class Claims:
    """What a protocol promises. Each promise is a test."""

    genuine: Genuine
    links: Links = "fifo"
    faults: frozenset[FaultKind] = frozenset()
    tolerates: Callable[[Topology, frozenset[ProcessId]], bool] = nobody_crashes
    """May these processes stay down for ever, and everything still be delivered at the others?"""
    single_replica: bool = False
    """Works only with groups of one process."""
    fifo: bool = False
    exactly_once: bool = False
    ranked: bool = False
    """Deliveries carry an order key that all processes agree on."""
    members: bool = True
    """Its groups' members can be changed while it runs (`parts/membership/reconfigurable.py`)."""
    quiescent: bool = True
    """Falls silent when everything is delivered (heartbeats apart)."""
    world: Literal["unit", "intergroup"] = "unit"
    """In which world the delays are counted: every link 1; or 1 between groups and 0 inside."""
    delays: Callable[[str, int, int], int | None] = lambda role, destinations, replicas: None
    """Message delays of a lone multicast at a role ("max": the slowest), or None where nothing is claimed."""
    bound: Callable[[str, float], float | None] = lambda role, skew: None
    """Message delays that no multicast exceeds at a role, whatever conflicts with it, if leaders are stable, every
    delay is at most 1 and every clock within `skew` delays of real time; None where nothing is claimed."""
    packets: Callable[[int, int], int | None] = lambda destinations, replicas: None
    """Packets of a lone multicast, self-sends and the client's requests included."""
    moment: Callable[[Any], int] = lambda config: 0
    """Nanoseconds after boot just before which the lone multicast is measured: where rounds go by the clock, when one
    begins; 0 is at boot."""


@dataclass(frozen=True)
class Spec:
    """Everything a driver needs in order to run a protocol, and a reader in order to judge it."""

    name: str
    summary: str
    source: str
    process: Callable[[ProcessId, Topology, Any], Process]
    claims: Claims
    config: type[Config] = Config
    bodies: tuple[type[Body], ...] = ()
    records: tuple[type[Record], ...] = ()
    states: tuple[type[State], ...] = ()
    roles: Callable[[Topology, ProcessId], str] = lambda topology, process: "member"
    contacts: Contacts = lambda topology, message: topology.processes_of(message.destinations)
    make_contacts: Callable[[Any], Contacts] | None = None
    """Where the contacts depend on the configuration (an overlay): from it, the function above."""
    alone: Claims | None = None
    """What is claimed where every group is one process, if it differs: the bare protocol, not replicated."""
    farewell: Callable[[int], Body] | None = None
    """What a process that leaves in good order, in its n-th incarnation, tells everybody that it is connected with."""
    open_bundle: Callable[[Message], list[Message]] | None = None
    """How its processes open bundles when they deliver them (`kernel/bundle.py`): nodes may be gateways for clients."""
    goals: tuple[str, ...] = ()
    """Names of notes that a search worth trusting must have seen."""
    options: Mapping[str, Any] = field(default_factory=dict)
    """Fixed options of a variant (primcast-hc is primcast with hybrid clocks)."""

    def configure(self, values: Mapping[str, Any] | None = None) -> Config:
        """The protocol's configuration from plain data, the variant's fixed options included."""
        merged = {**self.options, **(values or {})}
        return parse_config(self.config, merged, f"options of protocol {self.name}")

    def contacts_for(self, config: Config) -> Contacts:
        """Whom a client must tell, under a configuration."""
        return self.contacts if self.make_contacts is None else self.make_contacts(config)

    def for_topology(self, topology: Topology) -> "Spec":
        """The protocol with the claims that hold on a topology."""
        if self.alone is None or any(len(topology.members(group)) > 1 for group in topology.groups):
            return self
        return replace(self, claims=self.alone, alone=None)

    def check_topology(self, topology: Topology) -> None:
        """Refuse a topology this protocol cannot run on."""
        if self.claims.single_replica:
            for group in topology.groups:
                if len(topology.members(group)) != 1:
                    raise UsageError(
                        f"protocol {self.name}: group {group} has {len(topology.members(group))} replicas;"
                        f" expected groups of 1 process (it assumes processes that do not crash)"
                    )

    def wire_bodies(self) -> tuple[type[Body], ...]:
        """Every body that may travel: the protocol's own and those of clients."""
        return (*self.bodies, Request, Reply)
