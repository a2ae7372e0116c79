"""Processes that do what a test tells them, and write down all that they hear."""

from collections.abc import Callable, Sequence

from amcast.kernel.events import Event, Leader, LinkReset, Receive, Started, Submit, Suspect, Timer
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Body, Message, Record, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology

MS = 1_000_000


class Number(Body, frozen=True):
    value: int
    pad: bytes = b""


class Fact(Record, frozen=True):
    value: int


class PuppetState(State, frozen=True):
    position: int
    received: int


React = Callable[["Puppet", Event], None]
Log = dict[ProcessId, list[tuple[int, Event]]]


class Puppet(Process):
    """Tells `react` everything, which may use the verbs; what it hears goes to the log with its local time."""

    def __init__(self, me: ProcessId, topology: Topology, react: React, log: Log) -> None:
        super().__init__(me, topology)
        self._react = react
        self._log = log
        self.bursts = 0
        self.done = 0
        self.received = 0

    @property
    def work(self) -> int:
        return self.done

    def step(self, events: Sequence[Event], now: int) -> list:  # type: ignore[type-arg]
        self.bursts += len(events) > 1
        return super().step(events, now)

    def _hear(self, event: Event) -> None:
        self.received += 1
        self._log.setdefault(self.me, []).append((self.now, event))
        self._react(self, event)

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self._hear(Started(tuple(records), incarnation))

    def on_submit(self, message: Message) -> None:
        self._hear(Submit(message))

    def on_request(self, message: Message) -> None:
        raise AssertionError("puppets are no contacts")

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        self._hear(Receive(sender, body))

    def on_timer(self, name: str) -> None:
        self._hear(Timer(name))

    def on_leader(self, group: GroupId, leader: ProcessId) -> None:
        self._hear(Leader(group, leader))

    def on_suspect(self, group: GroupId, up: bool) -> None:
        self._hear(Suspect(group, up))

    def on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self._hear(LinkReset(peer, incarnation))

    def snapshot(self) -> PuppetState:
        return PuppetState(self.position, self.received)

    def restore(self, state: State) -> None:
        assert isinstance(state, PuppetState)
        self.position, self.received = state.position, state.received


def numbers(log: Log, process: ProcessId, source: ProcessId) -> list[int]:
    """The values that a process heard from another, in order."""
    received = [event for _, event in log.get(process, []) if isinstance(event, Receive) and event.sender == source]
    return [event.body.value for event in received if isinstance(event.body, Number)]


def times(log: Log, process: ProcessId) -> list[int]:
    """When a process received something."""
    return [at for at, event in log.get(process, []) if isinstance(event, Receive)]
