"""A process takes part only when its group has confirmed its data folder."""

from collections import deque
from collections.abc import Callable

import pytest

from amcast.kernel.effects import Effect, Note, Remember, Restart, Send
from amcast.kernel.events import Event, LinkReset, Receive, Started, Timer
from amcast.kernel.folder import FolderState, KnownFolder
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import change_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.membership.messages import ConfigurationRecord, ConfigurationStart
from amcast.parts.membership.reconfigurable import build_reconfigurable_spec
from amcast.parts.node import admission
from amcast.parts.node.admission import GRACE_TIMER, RETRY_TIMER
from amcast.parts.node.leader_oracle import HEARTBEAT_TIMER
from amcast.parts.node.messages import (
    AdmissionConfig,
    AdmissionReply,
    AdmissionRequest,
    Heartbeat,
    NodeConfig,
    NodeState,
    RealTimeCheckpoint,
)
from amcast.parts.node.node import Node
from amcast.parts.ordering.consistent_cut import GroupOrderState
from amcast.protocols.catalogue import CATALOGUE


class Mute(Process):
    """A protocol that notes its start, and the bodies that it gets."""

    def __init__(self, me: ProcessId, topology: Topology) -> None:
        super().__init__(me, topology)
        self.started: list[tuple[int, int]] = []
        """(records, incarnation) of every start."""
        self.received: list[Body] = []

    def on_start(self, records: object, incarnation: int) -> None:
        self.started.append((len(records), incarnation))  # type: ignore[arg-type]

    def on_request(self, message: Message) -> None:
        raise AssertionError("no requests")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        self.received.append(body)

    def snapshot(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        pass


class Whisper(Body, frozen=True):
    """A body of the protocol."""


class Scene:
    """Nodes with data folders that this class keeps; packets are passed on when `run` is called."""

    def __init__(self, groups: tuple[int, ...] = (3,), readmits: bool = True) -> None:
        first = iter(range(100))
        self.topology = Topology({group: [next(first) for _ in range(size)] for group, size in enumerate(groups)})
        self.config = NodeConfig(omega=None, admission=AdmissionConfig(readmits=readmits))
        self.folders: dict[ProcessId, FolderState] = {}
        self.nodes: dict[ProcessId, Node] = {}
        self.packets: deque[tuple[ProcessId, ProcessId, Body]] = deque()
        self.restarts: list[tuple[ProcessId, Restart]] = []
        self.starts = 0

    def start(self, process: ProcessId, **changes: object) -> Node:
        """Starts a process with the folder that it left, or a new one; `changes` are made to it before."""
        old = self.folders.get(process)
        self.starts += 1
        if old is None:
            state = FolderState(100 + self.starts, 0, 0, "fresh", start=self.starts)
        else:
            fields = {name: getattr(old, name) for name in FolderState.__struct_fields__}
            condition = "sound" if old.admitted else old.condition
            state = FolderState(**{**fields, "incarnation": old.incarnation + 1, "condition": condition})
        fields = {name: getattr(state, name) for name in FolderState.__struct_fields__}
        starts = (*state.starts, (state.incarnation, self.starts))
        state = FolderState(**{**fields, "start": self.starts, "starts": starts, **changes})  # type: ignore[arg-type]
        self.folders[process] = state
        node = self.nodes[process] = Node(Mute(process, self.topology), self.config)
        self.step(process, Started((), state.incarnation, state))
        return node

    def boot(self) -> None:
        for process in self.topology.servers:
            self.start(process)
        self.run()
        assert all(node.admission.takes_part for node in self.nodes.values())

    def stop(self, process: ProcessId) -> None:
        del self.nodes[process]

    def step(self, process: ProcessId, *events: Event) -> list[Effect]:
        effects = self.nodes[process].step(events, 0)
        for effect in effects:
            match effect:
                case Send(targets, body):
                    self.packets += [(process, target, body) for target in targets]
                case Remember(peers, admitted, doubt):
                    fields = {name: getattr(self.folders[process], name) for name in FolderState.__struct_fields__}
                    condition = "doubtful" if doubt else fields["condition"]
                    fields |= {"peers": peers, "admitted": admitted, "reason": doubt, "condition": condition}
                    self.folders[process] = FolderState(**fields)
                case Restart():
                    self.restarts.append((process, effect))
                case _:
                    pass
        return effects

    def run(self, lost: Callable[[ProcessId, ProcessId, Body], bool] = lambda *_: False) -> None:
        while self.packets:
            source, target, body = self.packets.popleft()
            if target in self.nodes and not lost(source, target, body):
                self.step(target, Receive(source, body))

    def expire_grace(self, process: ProcessId) -> None:
        self.step(process, Timer(GRACE_TIMER))

    def standing(self, process: ProcessId) -> str:
        return self.nodes[process].admission.standing

    def started(self, process: ProcessId) -> list[tuple[int, int]]:
        protocol = self.nodes[process].protocol
        assert isinstance(protocol, Mute)
        return protocol.started


def test_group_that_boots_together_takes_part_after_one_round_trip() -> None:
    scene = Scene((3, 3))
    for process in scene.topology.servers:
        scene.start(process)
        assert scene.standing(process) == "waiting"
    scene.run()
    for process in scene.topology.servers:
        assert scene.started(process) == [(0, 0)]
        assert scene.folders[process].admitted
        assert [known.process for known in scene.folders[process].peers] == [p for p in range(6) if p != process]


def test_new_folder_waits_for_all_members_at_the_first_boot() -> None:
    scene = Scene()
    scene.start(0)
    scene.start(1)
    scene.run()
    scene.expire_grace(0)
    assert scene.standing(0) == "waiting"
    assert "1 of 2 other members have answered; process 2 must answer, too" in scene.nodes[0].admission.reason
    scene.start(2)
    for process in (0, 1):
        scene.step(process, LinkReset(2, 0))
    scene.run()
    assert [scene.started(process) for process in (0, 1, 2)] == [[(0, 0)]] * 3


def test_memory_of_others_is_durable_before_the_reply_leaves() -> None:
    scene = Scene()
    scene.start(0)
    effects = scene.step(0, Receive(1, AdmissionRequest(7, 0, 70, 0, "fresh")))
    kinds = [type(effect) for effect in effects if type(effect) in (Remember, Send)]
    assert kinds == [Remember, Send]


def test_lone_process_takes_part_at_once_and_remembers_it_first() -> None:
    scene = Scene((1,))
    node = scene.start(0)
    assert node.admission.takes_part, "nobody else is there"
    assert scene.folders[0].admitted


def test_emptied_folder_is_refused() -> None:
    scene = Scene()
    scene.boot()
    scene.stop(1)
    del scene.folders[1]
    scene.start(1)
    scene.run()
    scene.expire_grace(1)
    assert scene.standing(1) == "refused"
    assert scene.started(1) == []
    assert scene.nodes[1].status()["admission_remedy"] == "replace"
    assert "remembers data folder 0000000000000066 of this process" in scene.nodes[1].admission.reason


def test_emptied_folder_is_refused_although_all_members_were_restarted() -> None:
    scene = Scene()
    scene.boot()
    del scene.folders[1]
    scene.nodes.clear()
    for process in (0, 1, 2):
        scene.start(process)
    scene.run()
    assert [scene.standing(process) for process in (0, 1, 2)] == ["admitted", "refused", "admitted"]


def test_emptied_folder_waits_when_the_only_member_that_knows_it_is_silent() -> None:
    """Process 1 was admitted by process 2 alone, which is down: that process 0 knows nothing proves nothing."""
    scene = Scene()
    scene.boot()
    fields = {name: getattr(scene.folders[0], name) for name in FolderState.__struct_fields__}
    peers = tuple(known for known in scene.folders[0].peers if known.process != 1)
    scene.folders[0] = FolderState(**{**fields, "peers": peers})
    scene.nodes.clear()
    del scene.folders[1]
    scene.start(0)
    scene.start(1)
    scene.run()
    scene.expire_grace(1)
    assert scene.standing(1) == "waiting"


def test_replacement_by_an_operator_is_accepted() -> None:
    scene = Scene()
    scene.boot()
    scene.stop(1)
    scene.start(1, folder=55, incarnation=16, condition="lost", admitted=False, peers=())
    scene.run()
    assert scene.started(1) == [(0, 16)]
    assert KnownFolder(1, 55, 16, 0, 4) in scene.folders[0].peers
    assert KnownFolder(1, 55, 16, 0, 4) in scene.folders[2].peers


def test_replacement_below_a_known_incarnation_is_refused() -> None:
    scene = Scene()
    scene.boot()
    scene.stop(1)
    scene.start(1)
    scene.run()
    scene.stop(1)
    scene.start(1, folder=55, incarnation=1, condition="lost", admitted=False, peers=())
    scene.run()
    assert scene.standing(1) == "refused"


def test_server_that_missed_a_replacement_does_not_keep_the_new_folder_out() -> None:
    scene = Scene((3, 3))
    scene.boot()
    scene.stop(5)
    scene.stop(1)
    scene.start(1, folder=55, incarnation=16, condition="lost", admitted=False, peers=())
    scene.run()
    scene.expire_grace(1)
    assert scene.standing(1) == "admitted"
    scene.stop(1)
    scene.start(5)
    scene.run()
    scene.start(1)
    scene.run()
    assert scene.standing(1) == "admitted"
    assert scene.restarts == []


def test_server_that_missed_a_replacement_does_not_keep_an_older_copy_from_being_readmitted() -> None:
    """All members remember more of the folder than its older copy has; process 0 remembers the folder before it."""
    scene = Scene((3, 3))
    scene.boot()
    scene.stop(0)
    scene.stop(4)
    scene.start(4, folder=55, incarnation=16, condition="lost", admitted=False, peers=())
    scene.run()
    scene.expire_grace(4)
    assert scene.standing(4) == "admitted"
    old = scene.folders[4]
    scene.stop(4)
    scene.start(4)
    scene.run()
    scene.expire_grace(4)
    scene.stop(4)
    scene.folders[4] = old
    scene.start(0)
    scene.run()
    scene.start(4, incarnation=18)
    scene.run()
    scene.expire_grace(4)
    assert {process for process, _ in scene.restarts} == {4}, "it starts again without records"


def test_process_that_joined_before_a_replacement_does_not_keep_the_new_folder_out() -> None:
    """Process 0 was replaced and took part while it did not know process 3, which remembers its first folder. Of the
    members of configuration 1 only process 2 knows the new one; of those of configuration 0 that is enough."""
    scene = Scene()
    scene.boot()
    before = scene.topology
    scene.topology = change_topology(before, 0, add=3)
    scene.start(3)
    scene.run()
    assert scene.standing(3) == "admitted"
    scene.topology = before
    scene.start(0, folder=55, incarnation=16, condition="lost", admitted=False, peers=())
    scene.run()
    assert scene.standing(0) == "admitted"
    scene.stop(1)
    node = scene.start(0)
    node._learn_topology(encode_topology(change_topology(before, 0, add=3)))
    copy = Node(Mute(0, scene.topology), scene.config)
    scene.run()
    scene.expire_grace(0)
    for _ in range(2):
        scene.step(0, Timer(RETRY_TIMER))
        scene.run()
    copy.restore(node.snapshot())
    assert copy.snapshot() == node.snapshot()
    assert scene.standing(0) == "admitted"
    assert scene.nodes[3].admission.known_folders()[0].folder == 55


def test_old_folder_that_comes_back_after_a_replacement_is_refused() -> None:
    scene = Scene()
    scene.boot()
    old = scene.folders[1]
    scene.stop(1)
    scene.start(1, folder=55, incarnation=16, condition="lost", admitted=False, peers=())
    scene.run()
    scene.stop(1)
    scene.folders[1] = old
    scene.start(1, incarnation=30)
    scene.run()
    assert scene.standing(1) == "refused"


def test_sound_folder_needs_a_majority_and_waits_a_moment_for_the_rest() -> None:
    scene = Scene()
    scene.boot()
    scene.stop(1)
    scene.stop(2)
    scene.start(1)
    scene.run()
    assert scene.standing(1) == "waiting", "process 2 may know more"
    scene.expire_grace(1)
    assert scene.started(1) == [(0, 1)]


def test_repeated_request_is_not_taken_for_another_start() -> None:
    scene = Scene()
    scene.boot()
    scene.stop(1)
    scene.start(1)
    scene.run(lost=lambda source, target, body: type(body) is AdmissionReply)
    assert scene.standing(1) == "waiting"
    scene.step(1, Timer(RETRY_TIMER))
    scene.run()
    assert scene.started(1) == [(0, 1)]


def test_older_copy_with_fewer_records_restarts_without_them() -> None:
    scene = Scene()
    scene.boot()
    for process in (0, 2):
        scene.step(process, Receive(1, Heartbeat(0, 0, 9)))
    scene.stop(1)
    scene.start(1, records=8)
    scene.run()
    assert scene.started(1) == []
    assert scene.restarts == [(1, Restart(2, 9))]
    assert scene.folders[1].reason.startswith("it is an older copy: process 0 remembers incarnation 0 and 9 records")


def test_older_copy_with_a_used_incarnation_is_noticed() -> None:
    scene = Scene()
    scene.boot()
    copy = scene.folders[1]
    for _ in range(2):
        scene.stop(1)
        scene.start(1)
        scene.run()
    scene.stop(1)
    scene.folders[1] = copy
    scene.start(1)
    scene.run()
    assert scene.started(1) == []
    assert scene.restarts == [(1, Restart(3, 0))]


def test_older_copy_that_had_more_starts_than_the_original_is_noticed() -> None:
    """It crashed in each of them before anybody had answered; its incarnation and records say nothing."""
    scene = Scene()
    scene.boot()
    copy = scene.folders[1]
    scene.stop(1)
    scene.start(1)
    scene.run()
    scene.folders[1] = copy
    for _ in range(3):
        scene.stop(1)
        scene.packets.clear()
        scene.start(1)
    assert scene.folders[1].incarnation > 1
    scene.run()
    assert scene.started(1) == []
    assert scene.restarts == [(1, Restart(4, 0))]
    assert scene.folders[1].reason.startswith("it is an older copy: process 0 remembers a start in incarnation 1 that")


def test_folder_that_crashed_in_its_first_starts_is_admitted() -> None:
    """Some members have heard of these starts, and some have not."""
    scene = Scene()
    scene.boot()
    for reached in (0, 2):
        scene.stop(1)
        scene.packets.clear()
        scene.start(1)
        scene.run(lost=lambda source, target, body, reached=reached: target != reached)  # type: ignore[misc]
    scene.stop(1)
    scene.packets.clear()
    scene.start(1)
    scene.run()
    assert scene.standing(1) == "admitted"
    assert scene.restarts == []


def test_starts_that_do_not_reach_back_to_a_remembered_one_say_nothing() -> None:
    """A member was down while a folder had more starts than it keeps."""
    scene = Scene()
    scene.boot()
    scene.stop(1)
    scene.start(1, incarnation=200, starts=((199, 7), (200, 8)))
    scene.run()
    assert scene.standing(1) == "admitted"
    assert scene.restarts == []


def test_older_copy_that_asks_again_does_not_use_an_incarnation_again() -> None:
    """While too few members take part, it repeats its request: each reply must state the incarnations that it lacks."""
    scene = Scene()
    scene.boot()
    copy = scene.folders[1]
    for _ in range(2):
        scene.stop(1)
        scene.start(1)
        scene.run()
    scene.nodes.clear()
    scene.folders[1] = copy
    for process in (0, 2, 1):
        scene.start(process)
    scene.run(lost=lambda source, target, body: target != 1 and type(body) is AdmissionReply)
    assert scene.restarts == [], "no member takes part that could send it its group's state"
    for process in (1, 0, 2, 1):
        scene.step(process, Timer(RETRY_TIMER))
        scene.run()
    assert scene.restarts == [(1, Restart(3, 0))]


def test_late_news_of_an_older_copy_restart_a_process_that_takes_part() -> None:
    scene = Scene()
    scene.boot()
    scene.step(2, Receive(1, Heartbeat(0, 0, 9)))
    scene.stop(1)
    node2 = scene.nodes.pop(2)
    scene.start(1, records=8)
    scene.run()
    scene.expire_grace(1)
    assert scene.standing(1) == "admitted"
    scene.nodes[2] = node2
    scene.step(1, LinkReset(2, 0))
    scene.run()
    assert scene.restarts == [(1, Restart())]
    assert scene.folders[1].condition == "doubtful"


def test_heartbeats_that_overtake_the_request_of_a_restart_do_not_contradict_it() -> None:
    scene = Scene()
    scene.boot()
    scene.stop(1)
    scene.start(1, records=8)
    scene.run(lost=lambda source, target, body: target == 2)
    scene.expire_grace(1)
    assert scene.standing(1) == "admitted"
    scene.step(2, Receive(1, Heartbeat(1, 0, 24)))
    scene.step(1, LinkReset(2, 0))
    scene.run()
    assert scene.restarts == []


def test_doubtful_folder_without_enough_members_waits_for_an_operator() -> None:
    scene = Scene()
    scene.boot()
    scene.nodes.clear()
    scene.start(0)
    scene.start(1, condition="doubtful", reason="a sector is rotten")
    scene.run()
    scene.expire_grace(1)
    scene.step(1, Timer(RETRY_TIMER))
    scene.run()
    assert scene.standing(1) == "doubtful"
    assert scene.nodes[1].status()["admission_remedy"] == "accept"
    assert "a sector is rotten; 0 of 2 members" in scene.nodes[1].admission.reason
    scene.stop(1)
    scene.start(1, condition="doubtful", accepts_loss=True)
    assert scene.started(1) == [(0, 2)], "the operator has accepted the loss"


def test_doubtful_folder_of_a_protocol_without_readmission_is_refused() -> None:
    scene = Scene(readmits=False)
    scene.boot()
    scene.stop(1)
    scene.start(1, condition="doubtful", reason="a sector is rotten")
    scene.run()
    assert scene.standing(1) == "refused"


def test_group_of_one_asks_the_servers_of_other_groups() -> None:
    scene = Scene((1, 1))
    scene.boot()
    scene.stop(0)
    del scene.folders[0]
    scene.start(0)
    assert scene.standing(0) == "waiting"
    scene.run()
    assert scene.standing(0) == "refused"


# Members that changed


def test_process_learns_from_a_reply_which_members_must_confirm_its_folder() -> None:
    """Both other members that it knows were removed; a server of another group tells it so."""
    scene = Scene((3, 1))
    scene.boot()
    before, moved = scene.topology, scene.topology
    for add, remove in ((10, None), (None, 1), (11, None), (None, 2)):
        moved = change_topology(moved, 0, add=add, remove=remove)
    scene.topology = moved
    scene.nodes[3] = Node(Mute(3, moved), scene.config)
    scene.step(3, Started((), 1, scene.folders[3]))
    for process in (10, 11):
        scene.start(process)
    scene.run()
    for process in (0, 1, 2):
        scene.stop(process)
    scene.topology = before
    node = scene.start(0)
    scene.run()
    assert node.topology == moved
    scene.step(0, Timer(RETRY_TIMER))
    scene.run()
    scene.expire_grace(0)
    assert scene.standing(0) == "admitted"


@pytest.mark.parametrize("is_wrapped", [False, True])
def test_process_finds_in_its_records_which_members_must_confirm_its_folder(is_wrapped: bool) -> None:
    """Also where real-time order has put an envelope around the record."""
    first = Topology.grid(1, 3)
    moved = change_topology(change_topology(first, 0, add=10), 0, remove=2)
    spec = build_reconfigurable_spec(CATALOGUE["primcast"])
    node = Node(spec.process(0, first, spec.configure()), NodeConfig(omega=None))
    record: Record = ConfigurationRecord(ConfigurationStart(2, encode_topology(moved)), encode_topology(first), 0)
    if is_wrapped:
        record = RealTimeCheckpoint(record, GroupOrderState(0, ()))
    effects = node.step((Started((record,), 1, FolderState(7, 1, 1, admitted=True, start=5)),), 0)
    asked = [effect.targets for effect in effects if type(effect) is Send]
    assert asked == [(1, 10)]
    copy = Node(spec.process(0, first, spec.configure()), NodeConfig(omega=None))
    copy.restore(node.snapshot())
    assert copy.topology == moved
    known = KnownFolder(0, 7, 1, 1)
    for sender in (1, 10):
        node.step((Receive(sender, AdmissionReply(5, "known", None, True, known)),), 0)
    assert node.admission.standing == "admitted"


def test_bodies_for_the_protocol_wait_until_it_takes_part() -> None:
    scene = Scene()
    scene.boot()
    scene.stop(1)
    node = scene.start(1)
    scene.step(1, Receive(0, Whisper()))
    protocol = node.protocol
    assert isinstance(protocol, Mute)
    assert protocol.received == []
    scene.run()
    assert protocol.started == [(0, 1)]
    assert protocol.received == [Whisper()]


def test_process_that_dropped_held_bodies_restarts_when_it_is_admitted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admission, "MAX_HELD", 3)
    scene = Scene()
    scene.boot()
    scene.stop(1)
    scene.start(1)
    for _ in range(5):
        scene.step(1, Receive(0, Whisper()))
    scene.run()
    assert scene.started(1) == []
    assert scene.restarts == [(1, Restart())]


def test_snapshot_of_a_waiting_node_is_complete() -> None:
    scene = Scene()
    scene.boot()
    scene.stop(1)
    node = scene.start(1)
    scene.step(1, Receive(0, Whisper()))
    state = node.snapshot()
    assert isinstance(state, NodeState)
    copy = Node(Mute(1, scene.topology), scene.config)
    copy.restore(state)
    assert copy.snapshot() == state
    scene.nodes[1] = copy
    scene.run()
    assert scene.started(1) == [(0, 1)]


def test_admission_is_noted() -> None:
    scene = Scene((1,))
    node = Node(Mute(0, scene.topology), scene.config)
    effects = node.step((Started((), 0, FolderState(7, 0, start=1, condition="fresh")),), 0)
    assert Note("admitted", None, 0.0) in effects


def test_new_folder_waits_for_members_of_its_own_group() -> None:
    """Those of other groups that take part prove nothing: they need not have known an earlier folder."""
    scene = Scene((3, 3))
    for process in (3, 4, 5):
        scene.start(process)
    scene.run()
    for process in (3, 4, 5):
        scene.expire_grace(process)
    scene.start(0)
    scene.run()
    scene.expire_grace(0)
    assert [scene.standing(process) for process in (3, 4, 5)] == ["admitted"] * 3
    assert scene.started(0) == []


def test_counts_that_heartbeats_state_become_durable_with_the_own_heartbeat() -> None:
    scene = Scene()
    scene.config = NodeConfig(admission=AdmissionConfig())
    scene.boot()
    scene.step(2, Receive(1, Heartbeat(0, 0, 9)))
    effects = scene.nodes[2].step((Timer(HEARTBEAT_TIMER),), 10**12)
    written = [effect.peers for effect in effects if isinstance(effect, Remember)]
    assert [folder.records for peers in written for folder in peers if folder.process == 1] == [9]
