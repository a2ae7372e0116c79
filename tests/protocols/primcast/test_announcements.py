"""PrimCast: what a gateway may know of other groups by itself, who can wait, and incarnation without records."""

import pytest

from amcast.kernel.effects import Persist, Send
from amcast.kernel.ids import GroupId
from amcast.kernel.message import Message
from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.protocols.primcast.messages import Ack, DeliveredMessage, Propose
from amcast.protocols.primcast.process import PrimCast
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.world.actions import Arrive
from tests.protocols.gateway_stage import Gated

FROM_ONE_TO_ZERO = frozenset((source, target) for source in (3, 4, 5) for target in (0, 1, 2))


class Cocksure(PrimCast):
    """A mutant: whoever delivers believes that all other destinations will put later messages behind."""

    def _emit(
        self,
        past: DeliveredMessage,
        parts: list[Message] | None,
        committed_ns: int | None,
        sure: tuple[GroupId, ...] = (),
    ) -> None:
        super()._emit(past, parts, committed_ns, tuple(g for g in past.message.destinations if g != self.home))


def comes_before(stage: Gated) -> bool:
    """Group 1 is ahead, so a message's last timestamp is its. Group 0 has proposed and acknowledged, but hears nothing
    of that. Whether a client that is told now has its next message, to group 0 alone, delivered before this one."""
    stage.get_ahead()
    world = stage.world
    first = stage.multicast(1, 0, 1)
    stage.until(lambda: all(stage.protocol(process)._pending for process in (0, 1, 2)))
    world.blocked = set(FROM_ONE_TO_ZERO)
    stage.drain()
    assert world.history[3][-1] == first, "the gateway has delivered it"
    assert first not in world.history[0]
    if first not in world.resolved:
        stage.heal()
        stage.finish()
        stage.check()
        return False
    second = stage.multicast(1, 0)
    stage.drain()
    stage.heal()
    stage.end()
    return world.history[0].index(second) < world.history[0].index(first)


def test_who_is_acknowledged_comes_before_all_that_is_asked_for_later() -> None:
    stage = Gated()
    assert not comes_before(stage)
    assert stage.delivered(3)[-1].ordered_elsewhere == ()
    assert stage.delivered(3)[-1].ordered_here
    assert not stage.delivered(0)[-1].ordered_here, "its timestamp was lower: its leader must answer"


def test_the_mutant_that_is_always_sure_is_caught() -> None:
    assert comes_before(Gated(Cocksure))


def test_a_gateway_need_not_hear_from_a_group_whose_timestamp_is_as_high() -> None:
    stage = Gated()
    first = stage.multicast(1, 0, 1)
    stage.until(lambda: stage.said(0, Propose))
    stage.world.blocked = {(other, 0) for other in stage.topology.servers if other != 0}
    stage.until(lambda: first in stage.world.resolved)
    assert stage.delivered(3)[-1].ordered_elsewhere == (0,)
    assert first not in stage.world.history[0], "its leader has not even delivered it"
    stage.heal()
    stage.finish()
    stage.check()
    assert all(stage.delivered(process)[-1].ordered_here for process in stage.topology.servers)


def test_only_leaders_and_the_asker_are_in_a_hurry() -> None:
    stage = Gated()
    stage.multicast(1, 0, 1)
    stage.world.blocked = {(3, 0)}
    stage.until(lambda: len(stage.links.get((3, 0), ())) == 2)
    stage.heal()
    stage.apply(Arrive(0, ((3, 0), (3, 0))))
    stage.finish()
    assert [send.deferrable for send in stage.said(3, Propose)] == [()], (
        "clocks must rise, and nobody else has proposed"
    )
    assert [send.deferrable for send in stage.said(0, Propose)] == [(4, 5)], "as high as the other: nothing rises"
    assert [send.deferrable for send in stage.said(1, Ack)] == [(2, 4, 5)]
    assert [send.deferrable for send in stage.said(4, Ack)] == [(1, 2, 5)]
    stage.lead(0, 2)
    stage.drain()
    stage.multicast(1, 0)
    stage.finish()
    assert stage.said(1, Ack)[-1].deferrable == (), "process 0 asked as a gateway, and 2 leads"


def test_several_messages_at_once_are_said_to_each_group() -> None:
    stage = Gated()
    stage.get_ahead()
    for _ in range(4):
        stage.multicast(0, 0, 1)
        stage.multicast(1, 1)
    stage.finish()
    stage.check()
    for process in (4, 5):
        assert {send.deferrable for send in stage.said(process, Ack)} <= {
            (1, 2, 9 - process),
            (1, 2),
            (9 - process,),
            (),
        }


@pytest.mark.parametrize("seed", range(40))
def test_without_records_crashes_are_survived_and_nothing_is_written(seed: int) -> None:
    plan = {
        "protocol": "primcast",
        "options": {"records": False, "keep": 3},
        "gateways": bool(seed % 2),
        "nodes": True,
        "topology": {"groups": 2, "replicas": 3, "clients": 4},
        "workload": {"messages": 16, "outstanding": 2},
        "faults": {"profile": "crash"},
    }
    outcome = fuzz_seed(prepare_run(parse_plan(plan)), seed)
    assert outcome.status == "holds", f"seed {seed}: {outcome.story}"


def test_without_records_the_own_word_counts_at_once() -> None:
    stage = Gated(records=False)
    first = stage.multicast(1, 0, 1)
    stage.finish()
    stage.check()
    assert first in stage.world.history[5]
    assert not any(isinstance(effect, Persist) for _, effect in stage.did)
    assert not any(who in effect.targets for who, effect in stage.did if isinstance(effect, Send))


def test_without_records_who_comes_back_has_lost_its_memory_and_joins() -> None:
    stage = Gated(records=False)
    stage.multicast(1, 0, 1)
    stage.finish()
    stage.crash(1)
    stage.recover(1)
    stage.multicast(0, 0, 1)
    stage.finish()
    stage.check()
    stage.until(lambda: len(stage.world.history[1]) == 2, limit=2000)
