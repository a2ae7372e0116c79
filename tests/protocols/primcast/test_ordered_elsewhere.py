"""What a gateway knows of the order in other groups without asking them (`Deliver.ordered_elsewhere`)."""

from amcast.kernel.ids import GroupId
from amcast.protocols.primcast.messages import DeliveredMessage, Propose
from amcast.protocols.primcast.process import PrimCast
from tests.protocols.gateway_stage import GatewayStage

FROM_ONE_TO_ZERO = frozenset((source, target) for source in (3, 4, 5) for target in (0, 1, 2))


class Overconfident(PrimCast):
    """A mutant: every delivery claims that all other destinations order later messages behind it."""

    def _emit_delivery(
        self,
        delivery: DeliveredMessage,
        count: int,
        committed_ns: int | None,
        ordered_elsewhere: tuple[GroupId, ...] = (),
        is_ahead: bool = False,
    ) -> None:
        others = tuple(group for group in delivery.message.destinations if group != self.home)
        super()._emit_delivery(delivery, count, committed_ns, others, is_ahead)


def next_message_overtakes(stage: GatewayStage) -> bool:
    """Group 1 is ahead, so its timestamp of a message is the final one. Group 0 has proposed and acknowledged, but
    receives nothing of that. Whether the client gets its reply now, and its next message, to group 0 alone, is
    delivered before this one."""
    stage.raise_remote_clocks()
    world = stage.world
    first = stage.multicast(1, 0, 1)
    stage.step_until(lambda: all(stage.protocol(process)._pending for process in (0, 1, 2)))
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
    stage.run_until_blocked()
    return world.history[0].index(second) < world.history[0].index(first)


def test_acknowledged_message_is_delivered_before_later_requests() -> None:
    stage = GatewayStage()
    assert not next_message_overtakes(stage)
    assert stage.deliveries_of(3)[-1].ordered_elsewhere == ()
    assert stage.deliveries_of(3)[-1].ordered_here
    assert not stage.deliveries_of(0)[-1].ordered_here, "its group's timestamp was lower: its primary must reply"


def test_overconfident_mutant_is_caught() -> None:
    assert next_message_overtakes(GatewayStage(Overconfident, small_bundle_bytes=0))


def test_gateway_needs_no_reply_of_a_group_with_the_final_timestamp() -> None:
    stage = GatewayStage()
    first = stage.multicast(1, 0, 1)
    stage.step_until(lambda: stage.sends_of(0, Propose))
    stage.world.blocked = {(other, 0) for other in stage.topology.servers if other != 0}
    stage.step_until(lambda: first in stage.world.resolved)
    assert stage.deliveries_of(3)[-1].ordered_elsewhere == (0,)
    assert first not in stage.world.history[0], "its primary has not even delivered it"
    stage.heal()
    stage.finish()
    stage.check()
    assert all(stage.deliveries_of(process)[-1].ordered_here for process in stage.topology.servers)
