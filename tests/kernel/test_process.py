"""The contract of `step`: one call, events in, effects out in order, nothing kept back."""

from collections.abc import Sequence

import pytest

from amcast.kernel.effects import CancelTimer, Deliver, Note, Persist, Resolve, Send, SetTimer
from amcast.kernel.events import Event, Leader, LinkReset, Receive, Started, Submit, Suspect, Timer
from amcast.kernel.ids import message_id, sender_of, sequence_of
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology


class Said(Body, frozen=True):
    text: str


class Kept(Record, frozen=True):
    text: str


class Nothing(State, frozen=True):
    pass


class Diary(Process):
    """Writes down what happens to it."""

    def __init__(self, me: int, topology: Topology) -> None:
        super().__init__(me, topology)
        self.pages: list[object] = []

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self.pages.append(("start", tuple(records), incarnation))

    def on_request(self, message: Message) -> None:
        self.pages.append(("submit", message.id))

    def on_receive(self, sender: int, body: Body) -> None:
        self.pages.append(("receive", sender, body))

    def on_timer(self, name: str) -> None:
        self.pages.append(("timer", name))

    def on_leader(self, group: int, leader: int) -> None:
        self.pages.append(("leader", group, leader))

    def on_suspect(self, group: int, up: bool) -> None:
        self.pages.append(("suspect", group, up))

    def on_link_reset(self, peer: int, incarnation: int) -> None:
        self.pages.append(("peer", peer, incarnation))

    def on_step_end(self) -> None:
        self.pages.append("end")

    def snapshot(self) -> Nothing:
        return Nothing()

    def restore(self, state: State) -> None:
        pass


@pytest.fixture
def diary() -> Diary:
    return Diary(0, Topology.grid(2, 1, 1))


def test_every_event_reaches_its_handler_once_and_a_burst_ends_once(diary: Diary) -> None:
    message = Message(message_id(2, 0), 2, (0, 1))
    events: list[Event] = [
        Started((Kept("a"),), 1), Receive(1, Said("hi")), Receive(2, Request(message)), Timer("t"),
        Leader(0, 1), Suspect(1, False), LinkReset(1, 2),
    ]  # fmt: skip
    assert diary.step(events, 7) == []
    assert diary.now == 7
    assert diary.pages == [
        ("start", (Kept("a"),), 1), ("receive", 1, Said("hi")), ("submit", message.id), ("timer", "t"),
        ("leader", 0, 1), ("suspect", 1, False), ("peer", 1, 2), "end",
    ]  # fmt: skip


def test_a_users_multicast_goes_to_every_destination_process(diary: Diary) -> None:
    message = Message(message_id(0, 0), 0, (0, 1))
    assert diary.step((Submit(message),), 0) == [Send((0, 1), Request(message), message.id)]


def test_verbs_become_effects_in_order_and_the_outbox_is_handed_over(diary: Diary) -> None:
    message = Message(message_id(2, 0), 2, (0,))
    diary.send(1, Said("x"))
    diary.set_timer("t", (1, 2))
    diary.cancel_timer("t")
    diary.persist(Kept("r"), replaces=True)
    diary.deliver(message, 3, 4)
    diary.deliver(message)
    diary.note("n", message.id, 1.0)
    diary.resolve(message.id)
    diary.install_position(9)
    effects = diary.step((), 0)
    assert effects == [
        Send((1,), Said("x")), SetTimer("t", 1, 2), CancelTimer("t"), Persist(Kept("r"), True),
        Deliver(message, 0, 3, 4), Deliver(message, 1), Note("n", message.id, 1.0), Resolve(message.id),
        Note("installed", None, 9.0),
    ]  # fmt: skip
    assert diary.position == 9
    assert diary.step((), 0) == []


def test_an_unknown_event_and_an_empty_timer_range_are_bugs(diary: Diary) -> None:
    with pytest.raises(AssertionError, match="unknown event"):
        diary.step((Event(),), 0)
    with pytest.raises(AssertionError, match="is empty"):
        diary.set_timer("t", (2, 1))


def test_message_ids_read_in_decimal() -> None:
    assert message_id(6, 3) == 6_000_000_003
    assert (sender_of(6_000_000_003), sequence_of(6_000_000_003)) == (6, 3)
    assert message_id(2**31 - 1, 10**9 - 1) < 2**63
    with pytest.raises(AssertionError):
        message_id(0, 10**9)
