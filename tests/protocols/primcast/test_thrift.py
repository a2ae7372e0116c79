"""Small bundles go to a majority of each group first, and to everybody when that does not answer."""

import pytest

from amcast.kernel.effects import Send
from amcast.kernel.events import LinkReset, PeerDown
from amcast.kernel.ids import ProcessId
from amcast.protocols.primcast.messages import Ack, Propose, Start
from amcast.protocols.primcast.process import PrimCast
from amcast.protocols.primcast.thrift import HURRY_NS, PATIENCE
from tests.protocols.deferring_nodes import DEFER_NS, DeferringNode
from tests.protocols.gateway_stage import GatewayStage

LATEST_NS = PATIENCE * HURRY_NS
"""When a waiting bundle has been sent to every member."""


def time_to_resolve(stage: GatewayStage, *destinations: int) -> int:
    """How long one message takes."""
    began = stage.world.now
    message = stage.multicast(0, *destinations)
    stage.step_until(lambda: message in stage.world.resolved, 2_000)
    return stage.world.now - began


def processes_with_pending(stage: GatewayStage) -> set[ProcessId]:
    return {process for process in stage.topology.servers if stage.protocol(process)._log.length}


@pytest.mark.parametrize("ahead", [False, True])
def test_lone_message_reaches_a_majority_of_each_group(ahead: bool) -> None:
    """Also where the other group's clocks are ahead: followers follow their primary's clock."""
    stage = GatewayStage(node=DeferringNode)
    if ahead:
        stage.raise_remote_clocks(0)
    before = {process: stage.protocol(process)._log.length for process in stage.topology.servers}
    assert time_to_resolve(stage, 0, 1) < HURRY_NS
    reached = {process for process in before if stage.protocol(process)._log.length > before[process]}
    assert reached - {2} == {0, 1, 3, 4}, "primaries, and one follower of each group"
    assert ahead or 2 not in reached, "a follower that is sent a higher clock is sent what was deferred before it"
    stage.finish()
    stage.check()
    assert stage.world.now < DEFER_NS, "notices bring what was deferred"


def test_others_vote_when_a_voter_is_silent() -> None:
    stage = GatewayStage(node=DeferringNode)
    assert time_to_resolve(stage, 0, 1) < HURRY_NS
    stage.isolate(4)
    took_ns = time_to_resolve(stage, 0, 1)
    assert HURRY_NS <= took_ns <= LATEST_NS + HURRY_NS
    for _ in range(3):
        assert time_to_resolve(stage, 0, 1) < HURRY_NS, "process 5 has acknowledged more than 4"
    stage.heal()
    stage.finish()
    stage.check()


class Patient(PrimCast):
    """Nobody is sent what only a majority was sent, until it is asked for."""

    def _send_overdue(self, overdue: object) -> None:
        pass


def test_patient_mutant_is_caught() -> None:
    stage = GatewayStage(Patient, DeferringNode)
    stage.isolate(4)
    assert time_to_resolve(stage, 0, 1) > LATEST_NS + HURRY_NS


def test_everybody_is_sent_what_a_crashed_primary_was_sent() -> None:
    stage = GatewayStage(node=DeferringNode)
    message = stage.multicast(0, 0, 1)
    stage.step_until(lambda: stage.protocol(3)._pending)
    stage.crash(0)
    gateway = stage.world.processes[3]
    effects = gateway.step([PeerDown(0)], stage.world.now)
    starts = [(e.targets, e.body.message) for e in effects if isinstance(e, Send) and isinstance(e.body, Start)]
    bundle = stage.protocol(3)._pending[starts[-1][1].id].message
    assert starts[-1] == ((0, 1, 2, 4, 5), bundle)
    assert message not in stage.world.resolved
    assert stage.protocol(3).bundle_contacts(bundle) == (), "nobody knows the next primary: everybody is sent bundles"
    gateway.step([LinkReset(0, 1)], stage.world.now)
    assert stage.protocol(3).bundle_contacts(bundle) == (3, 0)


def test_large_bundles_go_to_everybody() -> None:
    stage = GatewayStage(node=DeferringNode, small_bundle_bytes=0)
    stage.multicast(0, 0, 1)
    stage.drain()
    assert processes_with_pending(stage) == set(stage.topology.servers)


def test_followers_follow_the_clock_of_their_primary_alone() -> None:
    stage = GatewayStage()
    primary, other = Ack(0, 0, 7, 0, 0, 0, (0, 0, 0)), Ack(0, 0, 9, 0, 0, 0, (0, 0, 0))
    follower = stage.protocol(1)
    follower.on_receive(0, Propose((), primary))
    assert follower._clock == 7
    follower.on_receive(2, other)
    assert follower._clock == 7
