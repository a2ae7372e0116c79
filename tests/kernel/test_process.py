"""The contract of `Process.step`: every event reaches its handler, and effects are returned in order."""

from collections.abc import Sequence

import pytest

from amcast.kernel.effects import CancelTimer, Deliver, Note, Persist, Resolve, Send, SetTimer
from amcast.kernel.events import Event, Leader, LinkReset, Receive, Started, Submit, Suspect, Timer
from amcast.kernel.ids import message_id, sender_of, sequence_of
from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology


class Text(Body, frozen=True):
    text: str


class TextRecord(Record, frozen=True):
    text: str


class EmptyState(State, frozen=True):
    pass


class LoggingProcess(Process):
    """Logs the calls of its handlers."""

    def __init__(self, me: int, topology: Topology) -> None:
        super().__init__(me, topology)
        self.calls: list[object] = []

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self.calls.append(("start", tuple(records), incarnation))

    def on_request(self, message: Message) -> None:
        self.calls.append(("request", message.id))

    def on_receive(self, sender: int, body: Body) -> None:
        self.calls.append(("receive", sender, body))

    def on_timer(self, name: str) -> None:
        self.calls.append(("timer", name))

    def on_leader(self, group: int, leader: int) -> None:
        self.calls.append(("leader", group, leader))

    def on_suspect(self, group: int, up: bool) -> None:
        self.calls.append(("suspect", group, up))

    def on_link_reset(self, peer: int, incarnation: int) -> None:
        self.calls.append(("link reset", peer, incarnation))

    def on_step_end(self) -> None:
        self.calls.append("end")

    def snapshot(self) -> EmptyState:
        return EmptyState()

    def restore(self, state: State) -> None:
        pass


@pytest.fixture
def process() -> LoggingProcess:
    return LoggingProcess(0, Topology.grid(2, 1, 1))


def test_step_calls_each_handler_once_and_ends_once(process: LoggingProcess) -> None:
    message = Message(message_id(2, 0), 2, (0, 1))
    events: list[Event] = [
        Started((TextRecord("a"),), 1), Receive(1, Text("hi")), Receive(2, Request(message)), Timer("t"),
        Leader(0, 1), Suspect(1, False), LinkReset(1, 2),
    ]  # fmt: skip
    assert process.step(events, 7) == []
    assert process.now == 7
    assert process.calls == [
        ("start", (TextRecord("a"),), 1), ("receive", 1, Text("hi")), ("request", message.id), ("timer", "t"),
        ("leader", 0, 1), ("suspect", 1, False), ("link reset", 1, 2), "end",
    ]  # fmt: skip


def test_submit_sends_a_request_to_all_destination_processes(process: LoggingProcess) -> None:
    message = Message(message_id(0, 0), 0, (0, 1))
    assert process.step((Submit(message),), 0) == [Send((0, 1), Request(message), message.id)]


def test_verbs_become_effects_in_order(process: LoggingProcess) -> None:
    message = Message(message_id(2, 0), 2, (0,))
    process.send(1, Text("x"))
    process.set_timer("t", (1, 2))
    process.cancel_timer("t")
    process.persist(TextRecord("r"), replaces=True)
    process.deliver(message, 3, 4)
    process.deliver(message)
    process.note("n", message.id, 1.0)
    process.resolve(message.id)
    process.install_position(9)
    effects = process.step((), 0)
    assert effects == [
        Send((1,), Text("x")), SetTimer("t", 1, 2), CancelTimer("t"), Persist(TextRecord("r"), True),
        Deliver(message, 0, 3, 4), Deliver(message, 1), Note("n", message.id, 1.0), Resolve(message.id),
        Note("installed", None, 9.0),
    ]  # fmt: skip
    assert process.position == 9
    assert process.step((), 0) == []


def test_unknown_event_and_empty_timer_range_fail(process: LoggingProcess) -> None:
    with pytest.raises(AssertionError, match="unknown event"):
        process.step((Event(),), 0)
    with pytest.raises(AssertionError, match="is empty"):
        process.set_timer("t", (2, 1))


def test_message_ids_are_readable_in_decimal() -> None:
    assert message_id(6, 3) == 6_000_000_003
    assert (sender_of(6_000_000_003), sequence_of(6_000_000_003)) == (6, 3)
    assert message_id(2**31 - 1, 10**9 - 1) < 2**63
    with pytest.raises(AssertionError):
        message_id(0, 10**9)
