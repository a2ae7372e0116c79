"""The leader oracle: it may be wrong for a while, and all members agree eventually."""

from random import Random

import pytest

from amcast.assembly import scale_node
from amcast.kernel.config import MILLISECOND
from amcast.kernel.effects import Persist, Send, SetTimer
from amcast.kernel.events import Leader, PeerDown, Receive, Started, Timer
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.parts.groups.leader_group import REPAIR_TIMER
from amcast.parts.node.leader_oracle import FORGIVE_NS, HEARTBEAT_TIMER, Omega
from amcast.parts.node.messages import Heartbeat, NodeConfig, OmegaConfig
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.primcast.messages import NewEpoch
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.inputs.network import Network, NetworkConfig
from amcast.simulation.schedulers.discrete_event import DiscreteEventScheduler
from amcast.simulation.world.world import World

TOPOLOGY = Topology.grid(1, 3)


class Owner(Process):
    """A process whose verbs the oracle uses."""

    def on_request(self, message: Message) -> None:
        """No message is multicast in these tests."""

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        """No body is sent in these tests."""

    def snapshot(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        """There is no state."""


def make_oracle(me: ProcessId = 1) -> tuple[Owner, Omega]:
    owner = Owner(me, TOPOLOGY)
    return owner, Omega(owner, TOPOLOGY.members(0), OmegaConfig())


def test_member_sends_heartbeats_and_watches_all_others() -> None:
    owner, omega = make_oracle()
    omega.start(0)
    effects = owner.step((), 0)
    assert Send((0, 2), Heartbeat(0)) in effects
    assert {e.name for e in effects if isinstance(e, SetTimer)} == {HEARTBEAT_TIMER, "omega-0", "omega-2"}


def test_silent_leader_is_suspected_and_the_next_member_leads() -> None:
    _, omega = make_oracle()
    omega.start(0)
    assert omega.handle_timer("omega-2") is None, "process 2 does not lead"
    assert omega.handle_timer("omega-0") == 1
    assert omega.handle_heartbeat(0, Heartbeat(0)) == 0, "the suspicion was wrong"


def test_wrong_suspicion_doubles_the_timeout() -> None:
    owner, omega = make_oracle()
    omega.start(0)
    omega.handle_heartbeat(0, Heartbeat(0))
    for doublings in (1, 2):
        assert timeout_after_wrong_suspicion(owner, omega, 0) == OmegaConfig().suspect_after_ns[0] << doublings


def timeout_after_wrong_suspicion(owner: Owner, omega: Omega, now: int) -> int:
    """The shortest timeout of member 0 after it was suspected and sent a heartbeat."""
    owner.step((), now)
    omega.handle_timer("omega-0")
    omega.handle_heartbeat(0, Heartbeat(0))
    return {e.name: e.low_ns for e in owner.step((), now) if isinstance(e, SetTimer)}["omega-0"]


def test_wrong_suspicions_are_forgiven_one_after_the_other() -> None:
    owner, omega = make_oracle()
    omega.start(0)
    omega.handle_heartbeat(0, Heartbeat(0))
    for _ in range(3):
        timeout_after_wrong_suspicion(owner, omega, 0)
    low_ns = OmegaConfig().suspect_after_ns[0]
    assert timeout_after_wrong_suspicion(owner, omega, 2 * FORGIVE_NS) == low_ns << 2, "of three, one was left"


def test_member_that_starts_later_is_not_suspected_wrongly() -> None:
    owner, omega = make_oracle()
    omega.start(0)
    assert timeout_after_wrong_suspicion(owner, omega, 0) == OmegaConfig().suspect_after_ns[0]
    copy_owner, copy = make_oracle()
    copy.restore(omega.snapshot())
    assert copy.snapshot() == omega.snapshot()
    assert timeout_after_wrong_suspicion(copy_owner, copy, 0) == OmegaConfig().suspect_after_ns[0] << 1


def test_restarted_member_does_not_take_the_lead_back() -> None:
    _, omega = make_oracle()
    omega.start(0)
    assert omega.handle_timer("omega-0") == 1
    assert omega.handle_heartbeat(0, Heartbeat(1)) is None
    assert omega.leader == 1


def test_restarted_first_member_does_not_campaign_before_it_hears_a_heartbeat() -> None:
    spec = CATALOGUE["primcast"]
    node = Node(spec.process(0, TOPOLOGY, spec.configure()), NodeConfig(omega=OmegaConfig()))
    records = [effect.record for effect in node.step((Started(),), 0) if isinstance(effect, Persist)]
    restarted = Node(spec.process(0, TOPOLOGY, spec.configure()), NodeConfig(omega=OmegaConfig()))
    restarted.step((Started(tuple(records), 1),), 5 * MILLISECOND)
    assert restarted.omega is not None
    assert restarted.omega.leader == 1
    assert restarted.protocol._suggested_leader == 1
    effects = restarted.step((Timer(REPAIR_TIMER),), 1500 * MILLISECOND)
    assert not [e for e in effects if isinstance(e, Send) and isinstance(e.body, NewEpoch)]


def test_heartbeat_interval_above_the_timeout_is_rejected() -> None:
    with pytest.raises(ValueError, match="heartbeat_ns = 5"):
        OmegaConfig(heartbeat_ns=5, suspect_after_ns=(5, 5))


@pytest.mark.parametrize("seed", range(5))
def test_all_members_eventually_name_the_same_correct_leader(seed: int) -> None:
    random = Random(seed)
    topology = Topology.grid(1, 5, 1)
    network = NetworkConfig(distribution="exponential", spread=5.0)
    scheduler = DiscreteEventScheduler(Network(network, topology, random), random)
    spec = CATALOGUE["multipaxos"]

    def make(process: ProcessId) -> Process:
        return (
            Node(spec.process(process, topology, spec.configure()), scale_node(MILLISECOND))
            if topology.group_of(process) is not None
            else Owner(process, topology)
        )

    world = World(topology, make, scheduler)
    scheduler.world = world
    world.start()
    no_load = ClientLoad(topology, lambda client: ((0,), 0, 0), 0, 1)
    for victim in random.sample(range(5), 2):
        scheduler.run(no_load, world.now + 300 * MILLISECOND)
        world.crash(victim)
    # Each wrong suspicion doubles the timeout, so wrong suspicions end at some time.
    for _ in range(100):
        scheduler.run(no_load, world.now + 1000 * MILLISECOND)
        nodes = [process for process in world.processes.values() if isinstance(process, Node)]
        leaders = {node.omega.leader for node in nodes if node.omega is not None}
        roles = {node.me: node.protocol._paxos.role for node in nodes}
        if len(leaders) == 1 and roles.get(min(leaders)) == "leading":
            break
    assert len(leaders) == 1, leaders
    assert leaders <= set(world.processes)
    assert roles[leaders.pop()] == "leading", "the protocol follows the oracle"


def test_oracle_overrides_other_suggestions() -> None:
    spec = CATALOGUE["multipaxos"]
    node = Node(spec.process(0, TOPOLOGY, spec.configure()), NodeConfig())
    node.step((Started(),), 0)
    node.step((Leader(0, 2),), 0)
    assert node.protocol._paxos.suggested_leader == 2
    node.step((Timer(HEARTBEAT_TIMER),), 0)
    assert node.protocol._paxos.suggested_leader == 0


def test_member_that_is_down_is_suspected_until_its_next_heartbeat() -> None:
    spec = CATALOGUE["primcast"]
    node = Node(spec.process(1, TOPOLOGY, spec.configure()), NodeConfig(omega=OmegaConfig()))
    node.step((Started(),), 0)
    assert node.omega is not None
    node.step((PeerDown(2),), 0)
    assert node.omega.leader == 0, "process 2 does not lead"
    node.step((PeerDown(7),), 0)
    node.step((PeerDown(0),), 0)
    assert node.omega.leader == 1
    node.step((Receive(0, Heartbeat(0)),), 0)
    assert node.omega.leader == 0, "the suspicion was wrong"
