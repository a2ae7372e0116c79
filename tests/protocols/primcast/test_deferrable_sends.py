"""For whom proposals and acknowledgements are urgent."""

from amcast.protocols.primcast.messages import Ack, Propose
from amcast.simulation.world.actions import Arrive
from tests.protocols.gateway_stage import GatewayStage


def test_only_primaries_and_the_gateway_are_urgent_targets() -> None:
    stage = GatewayStage(small_bundle_bytes=0)
    stage.multicast(1, 0, 1)
    stage.world.blocked = {(3, 0)}
    stage.step_until(lambda: len(stage.links.get((3, 0), ())) == 2)
    stage.heal()
    stage.apply(Arrive(0, ((3, 0), (3, 0))))
    stage.finish()
    assert [send.deferrable for send in stage.sends_of(3, Propose)] == [()], (
        "clocks must rise, and no other group has proposed"
    )
    assert [send.deferrable for send in stage.sends_of(0, Propose)] == [(4, 5)], (
        "the other proposal is as high: no clock rises"
    )
    assert [send.deferrable for send in stage.sends_of(1, Ack)] == [(2, 4, 5)]
    assert [send.deferrable for send in stage.sends_of(4, Ack)] == [(1, 2, 5)]
    stage.suggest_leader(0, 2)
    stage.drain()
    stage.multicast(1, 0)
    stage.finish()
    assert stage.sends_of(1, Ack)[-1].deferrable == (), "process 0 is the gateway, and 2 is the primary"


def test_acknowledgements_of_several_messages_are_deferrable_per_group() -> None:
    stage = GatewayStage()
    stage.raise_remote_clocks()
    for _ in range(4):
        stage.multicast(0, 0, 1)
        stage.multicast(1, 1)
    stage.finish()
    stage.check()
    for process in (4, 5):
        assert {send.deferrable for send in stage.sends_of(process, Ack)} <= {
            (1, 2, 9 - process),
            (1, 2),
            (9 - process,),
            (),
        }
