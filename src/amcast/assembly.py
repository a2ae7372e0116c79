"""The composition root: what a node, a client session and a simulated process are made of.

    protocol                          the bare process of one protocol, from its Spec
      -> reconfigurable               an instance per configuration, where groups may change their members
        -> node                       a leader oracle (Omega), a gateway for clients, replies to senders

The live cluster, the simulator and the tests build their processes here, so that all of them run the same nodes. They
differ in options alone: a cluster waits for seconds (`assemble_cluster`), a simulated run for multiples of its message
delay (`assemble_simulation`), and a lone multicast is measured on bare processes (`assemble_bare`).
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Literal

from msgspec import structs

from amcast.kernel.bundle import MAX_GATEWAYS
from amcast.kernel.config import Config, parse_config
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Record, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.statements import Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.client.messages import Done, Farewell, LeaderHint, SessionConfig
from amcast.parts.client.one_shot import OneShotClient
from amcast.parts.client.session import ClientSession
from amcast.parts.membership.messages import ReconfigurableConfig
from amcast.parts.membership.reconfigurable import build_reconfigurable_spec
from amcast.parts.membership.statements import build_membership_table
from amcast.parts.node.messages import (
    AcceptedReport,
    AcceptedRequest,
    AdmissionConfig,
    AdmissionReply,
    AdmissionRequest,
    ChainRecord,
    GatewayConfig,
    Heartbeat,
    NodeConfig,
    NodeState,
    OmegaConfig,
    OrderReport,
    OrderRequest,
    ReadIndexState,
    RealTimeCheckpoint,
    RealTimeConfig,
    make_checkpoint_type,
)
from amcast.parts.node.node import Node

Order = Literal["acyclic", "real-time"]
"""What answers promise. acyclic: the message has its place in an order without cycles; real-time: no message that is
multicast after the answer precedes it, in any group (docs/real-time.md)."""


@dataclass(frozen=True)
class Assembly:
    """The processes of one deployment: a protocol, its configuration, and what is built around it."""

    protocol: Spec
    config: Config
    node: NodeConfig | None
    """None: servers are bare protocol processes, and clients send each message once."""
    session: SessionConfig = field(default_factory=SessionConfig)
    """Settings of clients. `gateways` selects whether they send to the gateway of a node or to the protocol's contacts.
    """
    reconfiguration: ReconfigurableConfig | None = None
    """None: the members of groups are fixed."""

    @cached_property
    def spec(self) -> Spec:
        """The protocol as servers run it: every body, record and state that may occur, and the process to build."""
        return self._inner_spec if self.node is None else build_node_spec(self._inner_spec, self.node)

    @cached_property
    def _inner_spec(self) -> Spec:
        """The protocol, or its instances, without the node around it."""
        spec = replace(self.protocol, contacts=self.protocol.contacts_for(self.config), make_contacts=None)
        return spec if self.reconfiguration is None else build_reconfigurable_spec(spec, self.reconfiguration)

    def make_statements(self, topologies: Sequence[Topology]) -> StatementTable | None:
        """What bodies and records state, those in the envelopes of nodes as well; None if the protocol says nothing.
        `topologies` are those of all configurations of a run, in order."""
        protocol = self.protocol
        if protocol.statements is None:
            return None
        tables = [protocol.statements(topology, self.config) for topology in topologies]
        table = tables[0] if len(tables) == 1 else build_membership_table(tables, protocol.bodies, protocol.records)

        def state_checkpoint(listener: Listener, process: ProcessId, record: RealTimeCheckpoint) -> None:
            state = table.records.get(type(record.record))
            if state is not None:
                state(listener, process, record.record)

        return replace(
            table, records={**table.records, make_checkpoint_type(self._inner_spec.records): state_checkpoint}
        )

    def make_server(self, process: ProcessId, topology: Topology) -> Process:
        """A replica, as a whole node or bare."""
        return self.spec.process(process, topology, self.config)

    def make_client(self, process: ProcessId, topology: Topology) -> Process:
        """A client: a session with retries, or (of bare servers) one that sends each message once."""
        if self.node is None:
            return OneShotClient(process, topology, self.spec.contacts)
        return ClientSession(process, topology, self.spec.contacts, self.session)

    def make(self, process: ProcessId, topology: Topology) -> Process:
        """The process of this id: a server if it is a member of a group, else a client."""
        if topology.group_of(process) is None:
            return self.make_client(process, topology)
        return self.make_server(process, topology)


def build_node_spec(spec: Spec, node: NodeConfig) -> Spec:
    """The Spec whose processes are nodes that run the given protocol; their gateways send to `spec.contacts`."""

    checkpoint_type = make_checkpoint_type(spec.records)

    def make(me: ProcessId, topology: Topology, config: Any) -> Process:
        return Node(spec.process(me, topology, config), node, spec.contacts, checkpoint_type, spec.states_accepted)

    admission: tuple[type[Body], ...] = (AdmissionRequest, AdmissionReply)
    bodies: tuple[type[Body], ...] = (*spec.bodies, *admission, Heartbeat, Farewell, LeaderHint, Done)
    if not spec.claims.real_time:
        bodies = (*bodies, OrderReport, OrderRequest)
    if spec.states_accepted:
        bodies = (*bodies, AcceptedReport, AcceptedRequest)
    states: tuple[type[State], ...] = (*spec.states, NodeState, ReadIndexState)
    records: tuple[type[Record], ...] = (*spec.records, ChainRecord, checkpoint_type) if spec.records else ()
    return replace(
        spec,
        process=make,
        bodies=bodies,
        records=records,
        states=states,
        farewell=Farewell,
        admission_bodies=admission,
    )


def keeps_order(protocol: Spec, order: Order) -> bool:
    """Whether the protocol has the promised order by itself."""
    return order == "acyclic" or protocol.claims.real_time


def choose_gateway(spec: Spec, topology: Topology) -> GatewayConfig | None:
    """The gateway of every node, if the protocol opens bundles and process ids leave room for the gateways' own."""
    return GatewayConfig() if spec.open_bundle and max(topology.servers) < MAX_GATEWAYS else None


def assemble_cluster(
    protocol: Spec, topology: Topology, options: Mapping[str, Any], changes: bool, order: Order = "acyclic"
) -> Assembly:
    """The nodes and clients of a live cluster. `changes`: the members of its groups may change, if the protocol can."""
    protocol = protocol.for_topology(topology)
    changes = changes and protocol.claims.members
    lone = not changes and all(len(topology.members(group)) == 1 for group in topology.groups)
    gateway = choose_gateway(protocol, topology)
    return Assembly(
        protocol,
        protocol.configure(options),
        # A group of one process that stays alone needs no election.
        NodeConfig(
            omega=None if lone else OmegaConfig(),
            gateway=gateway,
            admission=AdmissionConfig(readmits="amnesia" in protocol.claims.faults),
            real_time=None if keeps_order(protocol, order) else RealTimeConfig(),
        ),
        SessionConfig(gateways=gateway is not None),
        ReconfigurableConfig() if changes else None,
    )


def assemble_simulation(
    protocol: Spec,
    config: Config,
    scale_ns: int,
    *,
    gateways: bool = False,
    changes: bool = False,
    heartbeats: bool = True,
    gateway_options: Mapping[str, Any] = MappingProxyType({}),
    membership_options: Mapping[str, Any] = MappingProxyType({}),
    order: Order = "acyclic",
    order_options: Mapping[str, Any] = MappingProxyType({}),
    replies: Literal["leader", "all"] = "leader",
) -> Assembly:
    """The nodes and clients of a simulated run, with timeouts in proportion to the longest message delay, unless
    options say otherwise."""
    retry_ns = (60 * scale_ns, 120 * scale_ns)
    gateway, membership, real_time = None, None, None
    if gateways:
        defaults = {"retry_ns": retry_ns, "gather_ns": (8 * scale_ns, 12 * scale_ns)}
        gateway = parse_config(GatewayConfig, {**defaults, **gateway_options}, "gateway")
    if changes:
        defaults = {"retry_ns": (30 * scale_ns, 60 * scale_ns)}
        membership = parse_config(ReconfigurableConfig, {**defaults, **membership_options}, "membership")
    if not keeps_order(protocol, order):
        scaled: dict[str, Any] = {"retry_ns": (30 * scale_ns, 60 * scale_ns)}
        scaled |= {"follow_after_ns": scale_ns // 2, "follow_ns": 200 * scale_ns}
        real_time = parse_config(RealTimeConfig, {**scaled, **order_options}, "order_options")
    node = scale_node(scale_ns, gateway, heartbeats, readmits="amnesia" in protocol.claims.faults)
    return Assembly(
        protocol,
        config,
        structs.replace(node, real_time=real_time, replies=replies),
        SessionConfig(retry_ns=retry_ns, gateways=gateways, silence_ns=15 * scale_ns),
        membership,
    )


def scale_node(
    scale_ns: int, gateway: GatewayConfig | None = None, heartbeats: bool = True, readmits: bool = False
) -> NodeConfig:
    """A node's options with heartbeats, suspicion and admission in proportion to the longest message delay."""
    omega = OmegaConfig(heartbeat_ns=8 * scale_ns, suspect_after_ns=(32 * scale_ns, 48 * scale_ns))
    retry_ns = (6 * scale_ns, 10 * scale_ns)
    admission = AdmissionConfig(grace_ns=8 * scale_ns, retry_ns=retry_ns, remember_ns=0, readmits=readmits)
    return NodeConfig(
        omega=omega if heartbeats else None,
        gateway=gateway,
        admission=admission,
        read_retry_ns=(8 * scale_ns, 12 * scale_ns),
    )


def assemble_bare(protocol: Spec, config: Config) -> Assembly:
    """Protocol processes without nodes, and clients that send each message once: no oracle, reply or retry."""
    return Assembly(protocol, config, None)
