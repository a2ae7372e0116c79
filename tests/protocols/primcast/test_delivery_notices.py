"""PrimCast: followers deliver by their primary's word, in the same order, and whatever happens to the word.

Nodes of most scenes keep back what can wait, as live hosts do (`protocols/patient.py`): who did not take the word would
deliver when patience ends, and not before.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from amcast import assembly
from amcast.kernel.bundle import gateway_process, gateway_sender, make_bundle
from amcast.kernel.effects import Deliver, Effect, Send, SetTimer
from amcast.kernel.events import Event, Receive, Started, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id
from amcast.kernel.message import Body, Message, Record
from amcast.kernel.topology import Topology
from amcast.lab import runs
from amcast.parts.consensus.quorum import next_ballot
from amcast.parts.groups.messages import Entry
from amcast.protocols.catalogue import CATALOGUE
from amcast.protocols.primcast.messages import Ack, Install, NewState, Progress, Propose, Start, Sync
from amcast.protocols.primcast.process import MANY_WORDS, MOST_TOLD, STREAM_NS, WORD, WORD_NS, PrimCast
from amcast.protocols.primcast.progress import Item, Word
from amcast.simulation.inputs.plan import parse_plan
from tests.protocols.deferring_nodes import PATIENCE_NS, Patient, Talkative
from tests.protocols.gateway_stage import Gated

BIRTHS = (0, 0, 0)
MS = 1_000_000


def bundle(number: int, *destinations: GroupId, asker: ProcessId = 3) -> Message:
    """A bundle of two messages, for which some process asks."""
    parts = [Message(message_id(9, 2 * number + place), 9, destinations) for place in range(2)]
    return make_bundle(gateway_sender(asker, 0), number, destinations, parts)


class Alone:
    """One process of two groups of three, which hears what a test tells it and nothing else."""

    def __init__(self, me: ProcessId, groups: int = 2, memory: tuple[Record, ...] = (), **options: Any) -> None:
        spec = CATALOGUE["primcast"]
        self.process = PrimCast(me, Topology.grid(groups, 3), spec.configure(options))  # type: ignore[arg-type]
        self.now = 0
        self.effects: list[Effect] = []
        self.take(Started(memory, int(bool(memory))))

    def take(self, *events: Event) -> list[Effect]:
        told = self.process.step(events, self.now)
        self.effects += told
        return told

    def hear(self, sender: ProcessId, *bodies: Body) -> list[Effect]:
        return self.take(*[Receive(sender, body) for body in bodies])

    def propose(self, *proposals: tuple[Message, int], first: int = 0, word: tuple[Word, ...] = ()) -> list[Effect]:
        """Process 0 has texts and proposals for it, from a place in the log on."""
        listed = tuple((place, text.id, stamp) for place, (text, stamp) in enumerate(proposals, first))
        clock = max((stamp for _, stamp in proposals), default=0)
        ack = Ack(0, first + len(proposals), clock, 0, 0, 0, BIRTHS)
        return self.hear(0, *[Start(text) for text, _ in proposals], Propose(listed, ack, word))

    def say(self, *word: Word, epoch: int = 0, sender: ProcessId = 0) -> list[Effect]:
        """Process 0, or another one, has nothing to say but its word."""
        return self.hear(sender, Propose((), Ack(epoch, 0, 0, 0, 0, 0, BIRTHS), word))

    @property
    def delivered(self) -> list[tuple[int, MessageId, int | None]]:
        return [(e.position, e.message.id, e.rank_time) for e in self.effects if isinstance(e, Deliver)]


ONE, TWO, THREE = (bundle(number, 0, 1) for number in range(3))


# A follower


def test_who_hears_nothing_but_its_primary_delivers_by_its_word() -> None:
    follower = Alone(1)
    follower.propose((ONE, 1), (TWO, 2), (THREE, 3))
    assert follower.delivered == [], "nobody of the other group has spoken"
    follower.say((0, TWO.id, 2), (1, ONE.id, 7))
    assert follower.delivered == [(0, TWO.id, 2), (2, ONE.id, 7)], "a bundle of two messages takes two positions"
    assert follower.process.position == 2
    follower.say((1, ONE.id, 7), (2, THREE.id, 8))
    assert follower.delivered[2:] == [(4, THREE.id, 8)], "what is told again is delivered once"


def test_what_is_delivered_by_word_is_durable_before_it_is_told() -> None:
    follower = Alone(1)
    follower.propose((ONE, 1))
    follower.say((0, ONE.id, 7))
    follower.propose((TWO, 8), first=1)
    records = [effect.record for effect in follower.effects if hasattr(effect, "record")]
    handed = [one for record in records if isinstance(record, Progress) for one in record.delivered]
    assert [(one.id, one.timestamp, one.final) for one in handed] == [(ONE.id, 1, 7)]
    again = Alone(1, memory=tuple(records))
    assert again.delivered == follower.delivered
    assert again.process.position == 1


@pytest.mark.parametrize("position", [1, 5])
def test_a_word_with_a_gap_is_not_taken(position: int) -> None:
    follower = Alone(1)
    follower.propose((ONE, 1), (TWO, 2))
    follower.say((position, TWO.id, 2), (position + 1, ONE.id, 7))
    assert follower.delivered == []


def test_a_word_of_what_is_not_here_ends_there() -> None:
    follower = Alone(1)
    follower.propose((ONE, 1))
    ack = Ack(0, 3, 3, 0, 0, 0, BIRTHS)
    word = ((0, ONE.id, 1), (1, TWO.id, 2), (2, THREE.id, 3))
    follower.hear(0, Start(THREE), Propose(((1, TWO.id, 2), (2, THREE.id, 3)), ack, word))
    assert [id for _, id, _ in follower.delivered] == [ONE.id], "the text of the second is missing"
    follower.hear(3, Start(TWO))
    assert [id for _, id, _ in follower.delivered] == [ONE.id, TWO.id, THREE.id]


def test_a_word_of_what_has_no_place_in_the_log_is_not_taken() -> None:
    follower = Alone(1)
    follower.hear(3, Start(ONE))
    follower.say((0, ONE.id, 1))
    assert follower.delivered == []


EPOCH = next_ballot(0, 0, 2)
"""The first in which process 2 is the primary."""


def adopted(follower: Alone, *entries: Entry, base: int = 0, floor: int = 0) -> None:
    follower.hear(2, NewState(EPOCH, 5, base, floor, entries, BIRTHS))


def test_the_word_of_another_epoch_is_not_taken() -> None:
    follower = Alone(1)
    follower.propose((ONE, 1))
    follower.say((0, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == [], "of a later one, whose log is not here"
    adopted(follower, Entry(ONE, 1))
    ack = Ack(EPOCH, 1, 5, 0, 0, 0, BIRTHS)
    follower.say((0, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == [], "nobody is known to hold that log: an earlier one might come to incarnation again"
    follower.hear(2, ack)
    follower.hear(1, ack)
    assert follower.delivered == [(0, ONE.id, 7)], "somebody is"


def test_what_is_told_is_remembered_up_to_a_limit_and_until_it_is_passed() -> None:
    follower = Alone(1)
    follower.say((1, TWO.id, 2), (MOST_TOLD - 1, THREE.id, 3), (MOST_TOLD, ONE.id, 7))
    assert [position for position, _, _ in follower.process.snapshot().told] == [1, MOST_TOLD - 1]
    follower.propose((ONE, 1), (TWO, 2))
    follower.say((0, ONE.id, 1))
    assert [id for _, id, _ in follower.delivered] == [ONE.id, TWO.id]
    assert [position for position, _, _ in follower.process.snapshot().told] == [MOST_TOLD - 1]


def test_the_word_of_an_earlier_epoch_is_not_taken() -> None:
    follower = Alone(1)
    follower.propose((ONE, 1))
    adopted(follower, Entry(ONE, 1))
    ack = Ack(EPOCH, 1, 5, 0, 0, 0, BIRTHS)
    follower.hear(2, ack)
    follower.hear(1, ack)
    follower.say((0, ONE.id, 7))
    assert follower.delivered == []
    follower.say((0, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == [(0, ONE.id, 7)]


def test_who_misses_deliveries_below_its_log_takes_no_word() -> None:
    follower = Alone(1)
    adopted(follower, Entry(ONE, 6), base=3, floor=3)
    for member in (1, 2):
        follower.hear(member, Ack(EPOCH, 4, 6, 0, 0, 0, BIRTHS))
    for position in (0, 3):
        follower.say((position, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == []
    follower.hear(2, Install(3, 5, 1, (), (), 30))
    follower.say((3, ONE.id, 7), epoch=EPOCH, sender=2)
    assert follower.delivered == [(30, ONE.id, 7)]


@pytest.mark.parametrize(("asked", "asks", "helps"), [(1, 2, False), (1, 0, True), (0, 1, True)])
def test_a_follower_that_took_a_snapshot_over_does_not_hand_it_on_to_one_that_is_a_little_behind(
    asked: ProcessId, asks: ProcessId, helps: bool
) -> None:
    """That one has the messages, and its leader will let it deliver them; after a snapshot nobody here would."""
    fellow = Alone(asked)
    fellow.hear(2, Install(3, 5, 1, (), (), 30))
    told = fellow.hear(asks, Sync(0, 0, 1, True))
    assert any(isinstance(one, Send) and isinstance(one.body, Install) for one in told) == helps


def test_what_it_knows_and_what_it_is_told_must_agree() -> None:
    follower = Alone(1, groups=1)
    for number, place in ((5, 0), (6, 1)):
        text = bundle(number, 0, asker=0)
        follower.propose((text, 9 - place), first=place)
    mine = bundle(7, 0, asker=0)
    item = follower.process._item(mine.id)
    item.message, item.index, item.final = mine, 2, 4
    with pytest.raises(AssertionError, match=f"message {mine.id} has rank 4, and 5 too"):
        follower.say((follower.process.position, mine.id, 5))


# The gateway


def test_a_gateway_waits_until_it_knows_what_its_clients_hang_on() -> None:
    asker = Alone(1)
    mine, other = bundle(0, 0, 1, asker=1), bundle(1, 0, 1)
    asker.propose((mine, 1), (other, 2))
    word = ((0, mine.id, 7), (1, other.id, 8))
    asker.say(*word)
    assert asker.delivered == []
    asker.hear(1, Ack(0, 2, 2, 0, 0, 0, BIRTHS))
    asker.hear(3, Propose(((0, mine.id, 7),), Ack(0, 1, 7, 0, 0, 0, BIRTHS)))
    assert asker.delivered == [], "nobody else has acknowledged that"
    asker.hear(4, Ack(0, 1, 7, 0, 0, 0, BIRTHS))
    assert asker.delivered == [(0, mine.id, 7), (2, other.id, 8)], "it knows its final timestamp"
    assert next(effect for effect in asker.effects if isinstance(effect, Deliver)).ordered_elsewhere == (1,)


def test_a_gateway_that_follows_answers_its_client_soon() -> None:
    stage = Gated(node=Patient)
    stage.lead(1, 4)
    stage.drain()
    began = stage.world.now
    first = stage.multicast(0, 0, 1)
    stage.until(lambda: first in stage.world.resolved)
    assert {gateway_process(effect.message.sender) for effect in stage.delivered(3)} == {3}, (
        "process 3 asks, and 4 leads"
    )
    assert stage.world.now - began < WORD_NS
    stage.finish()
    stage.check()
    assert stage.world.now - began < PATIENCE_NS


def test_a_gateway_that_follows_does_not_wait_for_what_others_asked_for() -> None:
    stage = Gated(node=Patient, groups=3)
    stage.lead(1, 4)
    stage.drain()
    for steps in range(0, 30, 5):
        began = stage.world.now
        first = stage.multicast(0, 1, 2)
        stage.steps(steps)
        second = stage.multicast(1, 0, 1)
        stage.until(lambda: second in stage.world.resolved)  # noqa: B023
        assert stage.world.history[3][-2:] == [first, second], "process 3 asked for the second"
        assert stage.world.now - began < WORD_NS
        stage.finish()
        stage.world.now += PATIENCE_NS
    stage.check()


# The primary


def words(effects: Sequence[Effect]) -> list[Word]:
    """All that was told, one after the other."""
    bodies = [effect.body for effect in effects if isinstance(effect, Send)]
    return [word for body in bodies if isinstance(body, Propose) for word in body.word]


def test_the_word_goes_by_itself_if_nothing_follows() -> None:
    stage = Gated()
    stage.multicast(0, 0, 1)
    stage.finish()
    began = stage.world.now
    assert not words(stage.said(0, Propose))
    stage.until(lambda: words(stage.said(0, Propose)) and words(stage.said(3, Propose)))
    assert WORD_NS - MS < stage.world.now - began < WORD_NS + MS
    for primary in (0, 3):
        proposal, told = stage.said(primary, Propose)
        made = stage.delivered(primary)[0]
        assert told.targets == tuple(range(primary + 1, primary + 3))
        assert told.deferrable == ()
        assert told.body.proposals == ()
        assert told.body.word == ((0, made.message.id, made.rank_time),)
        assert proposal.body.word == ()
    assert WORD not in [name for _, name in stage.list_timers()], "there is nothing more to tell"


def stream(count: int, apart_ns: int) -> list[tuple[int, int]]:
    """A primary delivers and proposes bundles, one after the other: with which of them it told of how many."""
    primary = Alone(0, groups=1, records=False)
    primary.now = 1000 * MS
    told: list[tuple[int, int]] = []
    for number in range(count):
        listed = words(primary.hear(0, Start(bundle(number, 0))))
        if listed:
            told.append((number, len(listed)))
        primary.hear(1, Ack(0, number + 1, number + 1, number, 0, 0, BIRTHS))
        assert primary.process.position == number + 1
        primary.now += apart_ns
    heard = words(primary.effects)
    assert heard == [(place, bundle(place, 0).id, place + 1) for place in range(len(heard))], "one by one"
    return told


def test_in_a_stream_the_word_goes_with_a_proposal_when_it_is_old() -> None:
    assert stream(20, 5 * MS) == [(5, 5), (10, 5), (15, 5)]
    assert stream(9, STREAM_NS // 2) == [(number, 1) for number in range(1, 9)]


def test_in_a_stream_the_word_goes_with_a_proposal_when_there_is_much_to_tell() -> None:
    assert stream(100, MS // 10) == [(MANY_WORDS * times, MANY_WORDS) for times in (1, 2, 3)]


def test_in_a_stream_the_timer_lets_proposals_tell_first_and_ends_what_they_do_not() -> None:
    primary = Alone(0, groups=1, records=False)
    primary.now = 1000 * MS
    for number in range(2):
        primary.now += 5 * MS
        primary.hear(0, Start(bundle(number, 0)))
        primary.hear(1, Ack(0, number + 1, number + 1, number, 0, 0, BIRTHS))
    began = primary.now - 5 * MS
    primary.now = began + WORD_NS
    assert [e.low_ns for e in primary.take(Timer(WORD)) if isinstance(e, SetTimer)] == [STREAM_NS - WORD_NS]
    assert not words(primary.effects)
    primary.now = began + STREAM_NS
    assert [place for place, _, _ in words(primary.take(Timer(WORD)))] == [0, 1]
    assert not primary.take(Timer(WORD))


def test_who_no_longer_leads_says_no_word() -> None:
    primary = Alone(0)
    primary.hear(0, Start(bundle(0, 0, asker=0)))
    primary.hear(0, Ack(0, 1, 1, 0, 0, 0, BIRTHS))
    primary.hear(1, Ack(0, 1, 1, 0, 0, 0, BIRTHS))
    assert len(primary.delivered) == 1
    primary.hear(2, NewState(EPOCH, 5, 0, 0, (), BIRTHS))
    primary.now = 1000 * MS
    primary.take(Timer(WORD))
    assert not words(primary.effects)


def test_outside_bundles_there_is_no_word() -> None:
    primary = Alone(0, groups=1, records=False)
    text = Message(message_id(9, 1), 9, (0,))
    primary.hear(9, Start(text))
    primary.hear(1, Ack(0, 1, 1, 0, 0, 0, BIRTHS))
    assert [id for _, id, _ in primary.delivered] == [text.id]
    assert not [effect for effect in primary.effects if isinstance(effect, SetTimer) and effect.name == WORD]


def test_a_gateway_hears_at_once_what_comes_before_what_it_asked_for() -> None:
    primary = Alone(0, groups=1, records=False)

    def told(number: int, asker: ProcessId) -> list[tuple[tuple[ProcessId, ...], list[int]]]:
        """A bundle is delivered: who hears of which positions."""
        primary.hear(0, Start(bundle(number, 0, asker=asker)))
        effects = primary.hear(1, Ack(0, number + 1, number + 1, number, 0, 0, BIRTHS))
        sends = [effect for effect in effects if isinstance(effect, Send) and isinstance(effect.body, Propose)]
        return [(send.targets, [place for place, _, _ in send.body.word]) for send in sends]

    assert told(0, asker=1) == told(1, asker=1) == [], "it hears of its own by itself"
    assert told(2, asker=0) == [], "I asked"
    assert told(3, asker=1) == [((1,), [0, 1, 2, 3])]
    assert told(4, asker=2) == [((2,), [0, 1, 2, 3, 4])]
    assert told(5, asker=9) == [], "somebody of another group asked"


# All of them


class Deaf(PrimCast):
    """Nobody takes the primary's word."""

    def _hear_word(self, word: tuple[Word, ...]) -> None:
        pass


def lasted(kind: type[PrimCast], messages: int = 12) -> int:
    """How long it takes until everybody has delivered some messages, where patience is long."""
    stage = Gated(kind, Patient)
    for number in range(messages):
        stage.multicast(number % 2, 0, 1)
        stage.steps(3 * number)
    stage.finish()
    stage.check()
    return stage.world.now


def test_followers_need_not_wait_until_patience_ends() -> None:
    assert lasted(PrimCast) < PATIENCE_NS <= lasted(Deaf)


class Twinned(PrimCast):
    """Before each step a twin is made from a snapshot, and must do the same."""

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        twin = PrimCast(self.me, self.topology, self._config)  # type: ignore[arg-type]
        twin.restore(self.snapshot())
        does = twin.step(events, now)
        effects: list[Effect] = super().step(events, now)
        assert does == effects, f"process {self.me} does {effects}, its twin {does}"
        assert twin.snapshot() == self.snapshot()
        return effects


def test_a_snapshot_has_the_word_in_it() -> None:
    stage = Gated(Twinned, Patient)
    for number in range(8):
        stage.multicast(number % 2, 0, 1)
        stage.steps(30)
        stage.world.now += 12 * MS
    stage.finish()
    stage.steps(100)
    stage.check()
    told = words([send for primary in (0, 3) for send in stage.said(primary, Propose)])
    assert len(told) == len(stage.delivered(0)) + len(stage.delivered(3))
    assert any(send.body.word and send.body.proposals for send in stage.said(0, Propose)), "with a proposal, too"


# Another group's new primary


def test_a_new_primary_of_another_group_is_acknowledged_at_once() -> None:
    member = Alone(1)
    epoch = next_ballot(0, 0, 1)
    propose = Propose(((0, ONE.id, 3),), Ack(epoch, 1, 3, 0, 0, 0, BIRTHS))
    member.hear(3, Start(ONE))
    told = [e for e in member.hear(4, propose) if isinstance(e, Send) and e.targets == (4,)]
    assert [(type(send.body), send.about, send.deferrable) for send in told] == [(Ack, (ONE.id,), ())]
    told = [e for e in member.hear(4, propose) if isinstance(e, Send) and e.targets == (4,)]
    assert told == [], "once"
    first = Propose(((0, TWO.id, 3),), Ack(0, 1, 3, 0, 0, 0, BIRTHS))
    calm = [e for e in Alone(1).hear(3, Start(TWO), first) if isinstance(e, Send) and e.targets == (3,)]
    assert calm == [], "the primary that everybody knows hears no more than it did"


class Unwelcoming(PrimCast):
    """What was kept back from a follower is not said when it becomes the primary."""

    def _welcome(self, primary: ProcessId, proposals: Any) -> None:
        pass


def taken_over(kind: type[PrimCast]) -> int:
    """Group 1's primary has told everybody of a message and dies; when the next has delivered it."""
    stage = Gated(kind, Patient)
    first = stage.multicast(0, 0, 1)
    stage.until(lambda: all(stage.protocol(process)._length for process in stage.topology.servers))
    stage.drain()
    assert first in stage.world.history[0]
    assert first not in stage.world.history[4]
    stage.crash(3)
    stage.lead(1, 4)
    stage.until(lambda: first in stage.world.history[4])
    return stage.world.now


def test_a_new_primary_hears_what_was_kept_back_from_it() -> None:
    assert taken_over(PrimCast) < WORD_NS
    assert taken_over(Unwelcoming) >= PATIENCE_NS


# Whatever happens


def patient_plan(seed: int, **options: Any) -> dict[str, Any]:
    """Five members each: followers hear from no majority by themselves, and most deliveries are by word."""
    return {
        "protocol": "primcast",
        "options": {"keep": 3, **options},
        "gateways": True,
        "nodes": True,
        "topology": {"groups": 2, "replicas": 5, "clients": 4},
        "workload": {"messages": 16, "outstanding": 2, "destinations": [1, 2]},
        "faults": {"profile": "all" if seed % 2 else "none"},
    }


def fuzzed(kind: type[PrimCast], seed: int) -> str | None:
    """What goes wrong in a random world with patient nodes; None if nothing does."""
    spec = replace(CATALOGUE["primcast"], process=kind)
    outcome = runs.fuzz_seed(runs.prepare_run(parse_plan(patient_plan(seed)), spec), seed)
    return None if outcome.status == "holds" else f"seed {seed}, {outcome.status}: {outcome.story}"


@pytest.fixture
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "Node", Patient)


@pytest.mark.parametrize("seed", range(24))
@pytest.mark.usefixtures("patient")
def test_followers_deliver_the_same_by_word(seed: int) -> None:
    assert fuzzed(Talkative, seed) is None


class Overhearing(Talkative):
    """A follower takes its primary's word without a look at the position."""

    def _hear_word(self, word: tuple[Word, ...]) -> None:
        for _, id, final in word:
            super()._hear_word(((self.position, id, final),))


class Boastful(Talkative):
    """A primary says its word as soon as it knows a final timestamp: something may still come before."""

    def _commit(self, item: Item) -> None:
        before = item.final
        super()._commit(item)
        if before < 0 <= item.final and self._role == "primary":
            self._word.append((self.position + sum(1 for _ in self._word), item.id, item.final))


@pytest.mark.parametrize("kind", [Overhearing, Boastful])
@pytest.mark.usefixtures("patient")
def test_who_takes_or_gives_its_word_too_easily_is_caught(kind: type[PrimCast]) -> None:
    seeds = range(60)
    assert any(fuzzed(kind, seed) for seed in seeds), f"nothing showed in {seeds} that {kind.__doc__}"
