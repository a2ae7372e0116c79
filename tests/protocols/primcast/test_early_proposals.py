"""A primary proposes before its own disk has the entries, and acknowledges them only when it has."""

from dataclasses import replace

from amcast.kernel.effects import Persist, Send
from amcast.kernel.events import Receive
from amcast.kernel.message import Message, Request
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.primcast.messages import Ack, Offer, Propose
from amcast.protocols.primcast.process import PrimCast
from amcast.simulation.world.actions import Sync
from tests.protocols.stage import Stage

EARLY = {"proposes_early": True}


class SlowDiskStage(Stage):
    """The disk of process 0 writes nothing while it is slow."""

    is_slow = True

    def step(self) -> bool:
        if not self.is_slow:
            return super().step()
        disks = self.world.disks
        busy = [process for process, disk in sorted(disks.items()) if disk.busy and process != 0]
        if busy:
            return self.apply(Sync(busy[0]))
        was_busy, disks[0].busy = disks[0].busy, False
        try:
            return super().step()
        finally:
            disks[0].busy = disks[0].busy or was_busy


def test_proposal_leaves_before_the_record_and_the_acknowledgement_behind_it() -> None:
    stage = Stage("primcast", options=EARLY)
    message = Message(9_000_000_000, 9, (0, 1))
    effects = stage.protocol(0).step([Receive(9, Request(message))], 1)
    kinds = [type(e.body) if isinstance(e, Send) else type(e) for e in effects if isinstance(e, Send | Persist)]
    assert kinds == [Offer, Persist, Ack]
    offer, ack = (effect for effect in effects if isinstance(effect, Send))
    assert offer.targets == (1, 2, 3, 4, 5)
    assert offer.body == Offer(0, ((0, message.id, 1),), 1)
    assert ack.targets == (0, 1, 2, 3, 4, 5)


def decide_without_the_primarys_disk(kind: type[PrimCast]) -> tuple[Stage, int]:
    """The message of a primary whose disk is slow, when the followers have done what they can."""
    stage = SlowDiskStage(replace(CATALOGUE["primcast"], process=kind), 1, options=EARLY)
    message = stage.multicast(0, 0)
    stage.drain()
    return stage, message


def test_followers_are_a_majority_without_the_primary() -> None:
    stage, message = decide_without_the_primarys_disk(PrimCast)
    assert stage.protocol(1)._log.decided == 1, "two followers have acknowledged"
    assert message not in stage.world.history[0], "a delivery waits for the record before it"
    stage.check()


class AcknowledgesEarly(PrimCast):
    """The proposal states that the primary holds what it proposes, before it does."""

    def _propose_early(self) -> bool:
        self._send_entries(self._appended, self._build_ack(), True)
        return True


def lose_an_early_proposal(kind: type[PrimCast]) -> Stage:
    """Only process 1 receives the proposal of a primary that crashes before it is durable; the others go on."""
    stage = SlowDiskStage(replace(CATALOGUE["primcast"], process=kind), 1, options=EARLY)
    stage.world.blocked = {(0, 2), (1, 2), (3, 2)}
    stage.multicast(0, 0)
    stage.drain()
    stage.crash(0)
    stage.isolate(1)
    stage.recover(0)
    stage.is_slow = False
    stage.world.blocked -= {(0, 2)}
    stage.suggest_leader(0, 2)
    stage.multicast(1, 0)
    stage.steps(300)
    stage.heal()
    stage.run_until_blocked()
    return stage


def test_lost_early_proposal_binds_nobody() -> None:
    stage = lose_an_early_proposal(PrimCast)
    stage.check()
    assert not stage.world.violations


def test_early_acknowledgement_is_caught() -> None:
    stage = lose_an_early_proposal(AcknowledgesEarly)
    assert stage.world.violations or stage.world.history[1] != stage.world.history[2]


def test_offer_of_an_old_epoch_is_ignored() -> None:
    stage = Stage("primcast", options=EARLY)
    stage.suggest_leader(0, 1)
    stage.drain()
    follower = stage.protocol(2)
    assert follower._epoch > 0
    length = follower._log.length
    follower.step([Receive(0, Offer(0, ((length, 9_000_000_000, 5),), 50))], 1)
    assert (follower._log.length, len(follower._waiting_proposals), follower._clock < 50) == (length, 0, True)
    assert not any(isinstance(effect, Propose) for effect in follower.step([], 1))
