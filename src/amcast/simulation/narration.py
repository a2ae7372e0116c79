"""Narrates runs: one sentence for each action, with its effects."""

from collections.abc import Sequence
from typing import Any, Final

import msgspec

from amcast.kernel.diagnostics import ProcessStatus
from amcast.kernel.effects import (
    CancelTimer,
    Close,
    Deliver,
    Effect,
    Note,
    Persist,
    ReadReady,
    Resolve,
    Send,
    SendEach,
    SetTimer,
)
from amcast.kernel.events import (
    Event,
    Leader,
    LinkReset,
    PeerDown,
    Read,
    Receive,
    Requests,
    Started,
    StateTaken,
    Submit,
    Suspect,
    Timer,
)
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Message, State
from amcast.kernel.process import Process
from amcast.kernel.topology import Topology
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    BeginRead,
    Block,
    Change,
    Collect,
    Crash,
    Differ,
    DiskFault,
    Drop,
    ExpectRefusal,
    Fire,
    Heal,
    Leave,
    Lossy,
    Multicast,
    Pause,
    Recover,
    Renew,
    Repeat,
    Restore,
    Resume,
    Skew,
    Slow,
    Suggest,
    Suspicion,
    Sync,
    Unreachable,
)
from amcast.simulation.world.failure import ProcessFailedError

ObservedStep = tuple[ProcessId, Sequence[Event], Sequence[Effect]]
MAX_CHARACTERS = 400
"""Most characters of one description; a longer one ends in "..."."""


class NarratedProcess:
    """Wraps a process and records its steps."""

    def __init__(self, process: Process, log: list[ObservedStep]) -> None:
        self._process = process
        self._log = log

    def step(self, events: Sequence[Event], now: int) -> list[Effect]:
        self._log.append((self._process.me, events, []))
        effects = self._process.step(events, now)
        self._log[-1] = (self._process.me, events, effects)
        return effects

    def attribute_to_messages(self, effects: list[Effect]) -> list[Effect]:
        return self._process.attribute_to_messages(effects)

    def status(self) -> ProcessStatus:
        return self._process.status()

    def stored_message(self, message: MessageId) -> Message | None:
        return self._process.stored_message(message)

    @property
    def is_leader(self) -> bool:
        return self._process.is_leader

    @property
    def awaits_answers(self) -> bool:
        return self._process.awaits_answers

    @property
    def states_closings(self) -> bool:
        return self._process.states_closings

    @property
    def is_readable(self) -> bool:
        return self._process.is_readable

    @property
    def topology(self) -> Topology:
        return self._process.topology

    def snapshot(self) -> State:
        return self._process.snapshot()

    def restore(self, state: State) -> None:
        self._process.restore(state)


def narrate_action(action: AnyAction, steps: Sequence[ObservedStep]) -> str:
    """An action and the steps that it caused, as one line."""
    head = "; then ".join(
        _describe_events(process, events) for process, events, _ in steps if _is_clearer_by_events(action)
    )
    results = "; ".join(text for _, _, effects in steps for text in _describe_effects(effects))
    return (head or describe_action(action)) + (f" -> {results}" if results else "")


def _is_clearer_by_events(action: AnyAction) -> bool:
    """Whether the events say more than the action."""
    return isinstance(action, Arrive)


_DISK_FAULTS: Final = {
    "short": "the next writes and reads do only a part of what they are asked",
    "lost": "it claims to have done the next writes, and has not",
    "rot": "a bit flips, or a sector is zero",
    "fail": "its next sync fails",
    "cut": "its power will be cut during the next start",
    "full": "it is full",
    "space": "it has space again",
    "copy": "the operator copies the data folder",
    "old": "the operator puts the copy of the data folder back",
}


def describe_action(action: AnyAction) -> str:
    """An action, without its effects."""
    match action:
        case Multicast(sender, message, destinations):
            return f"process {sender} multicasts message {message} to {_groups(destinations)}"
        case Arrive(target, packets):
            return f"process {target} receives packets in flight from {_list(source for source, _ in packets)}"
        case Fire(process, timer):
            return f"timer {timer!r} of process {process} fires"
        case Sync(process, count):
            return f"the disk of process {process} makes {_records(count)} durable; effects that waited for it happen"
        case Drop(source, target, place):
            return f"packet {place} on the link from {source} to {target} is lost"
        case Repeat(source, target, place):
            return f"packet {place} on the link from {source} to {target} is duplicated"
        case Crash(process, kept, torn) if torn:
            return f"the power of process {process} is cut while {kept} of the records that wait are written"
        case Crash(process, kept):
            return f"process {process} crashes; {kept} of the records that were not yet durable survive"
        case Recover(process, amnesia):
            return f"process {process} restarts, with {'an empty' if amnesia else 'its'} disk"
        case Block(pairs):
            return "links are blocked: " + _list(f"{source} to {target}" for source, target in pairs)
        case _:
            return _describe_other_action(action)


def _describe_other_action(action: AnyAction) -> str:
    match action:
        case Heal(()):
            return "all links are unblocked"
        case Heal(pairs):
            return "links are unblocked: " + _list(f"{source} to {target}" for source, target in pairs)
        case Pause(process):
            return f"process {process} pauses"
        case Resume(process):
            return f"process {process} resumes"
        case Slow(process, extra_ns):
            return f"process {process} is slow: {extra_ns} ns more for each packet"
        case Lossy(loss):
            return f"links lose {loss:.0%} of packets"
        case Renew(one, other):
            return f"the link between {one} and {other} is reset"
        case Suggest(process, group, leader):
            return f"the leader oracle of process {process} suggests {leader} for group {group}"
        case Suspicion(process, group, up):
            return f"the failure detector of process {process} reports group {group} {'up' if up else 'down'}"
        case Unreachable(process, peer):
            return f"process {process} learns that process {peer} is unreachable"
        case DiskFault(process, kind):
            return f"the disk of process {process}: {_DISK_FAULTS[kind]}"
        case Leave(process):
            return f"process {process} announces to all others that it leaves"
        case Restore(process):
            return f"process {process} continues from its snapshot"
        case Differ(process):
            return f"the applications of the group of process {process} take their states, and its own differs"
        case ExpectRefusal(process):
            return f"process {process} must have stopped by now, because its state differs from those of its group"
        case BeginRead(process):
            return f"the user of process {process} reads"
        case Collect(process, on):
            return f"process {process} receives requests of clients " + ("in batches" if on else "one by one again")
        case Skew(process, offset_ns, drift):
            return f"the clock of process {process} is off by {offset_ns} ns and {drift:+.0%}"
        case Change(group, add, remove):
            change = f"adds member {add} to" if add is not None else f"removes member {remove} from"
            return f"the operator {change} group {group}"
        case _:
            raise AssertionError(f"unknown action {action!r}")


def _describe_events(process: ProcessId, events: Sequence[Event]) -> str:
    return f"process {process} " + " and ".join(_describe_event(event) for event in events)


def describe_failure(failure: ProcessFailedError) -> str:
    """The story of a process that raised: what it says, and the step in which it did."""
    return f"{failure} (step {failure.step}, in which {_describe_events(failure.process, failure.events)})"


def _describe_event(event: Event) -> str:
    match event:
        case Receive(sender, body):
            return f"receives {describe_value(body)} from {sender}"
        case LinkReset(peer, incarnation):
            return f"learns that the link with {peer} (incarnation {incarnation}) was reset"
        case Submit(message):
            return f"multicasts message {message.id}"
        case Timer(name):
            return f"handles timer {name!r}"
        case Leader(group, leader):
            return f"gets {leader} suggested as leader of group {group}"
        case Suspect(group, up):
            return f"gets group {group} reported {'up' if up else 'down'}"
        case PeerDown(peer):
            return f"learns that process {peer} is unreachable"
        case Requests(messages):
            return f"receives requests for messages {_list(message.id for message in messages)}"
        case Read(number):
            return f"begins read {number}"
        case StateTaken(position, digest):
            return f"gets the digest {digest:08x} of its application's state at position {position}"
        case Started(records, incarnation):
            return f"starts (incarnation {incarnation}, {len(records)} records)"
        case _:
            return repr(event)


def _describe_effects(effects: Sequence[Effect]) -> list[str]:
    texts = []
    waits = False
    for effect in effects:
        text = _describe_effect(effect)
        if text:
            held = waits and not isinstance(effect, SetTimer | CancelTimer | Persist)
            texts.append(text + (" (once that is durable)" if held else ""))
        waits = waits or isinstance(effect, Persist)
    return texts


def _describe_effect(effect: Effect) -> str:
    match effect:
        case Send(targets, body):
            return f"sends {describe_value(body)} to {_list(targets)}"
        case SendEach(targets, bodies):
            return f"sends {describe_value(bodies[0])} and the like to {_list(targets)}"
        case Deliver(message, position):
            return f"DELIVERS message {message.id} at position {position}"
        case Resolve(message):
            return f"resolves message {message} for its user"
        case ReadReady(number):
            return f"may answer read {number}"
        case Close(position):
            return f"states that everything before position {position} is closed"
        case SetTimer(name):
            return f"sets timer {name!r}"
        case CancelTimer(name):
            return f"cancels timer {name!r}"
        case Persist(record, replaces, ends):
            how = " in place of all earlier records" if replaces else " after the deliveries before it" if ends else ""
            return f"persists {describe_value(record)}{how}"
        case Note(name, message):
            return f"notes {name!r}" + (f" of {message}" if message is not None else "")
        case _:
            return repr(effect)


def describe_value(value: Any) -> str:
    """A body, record or field for people: field names, messages by id, long values cut."""
    match value:
        case Message():
            text = str(value.id)
        case msgspec.Struct():
            fields = ", ".join(f"{name}={describe_value(getattr(value, name))}" for name in value.__struct_fields__)
            text = f"{type(value).__name__}({fields})"
        case tuple() | list():
            text = (
                "["
                + ", ".join(describe_value(item) for item in value[:20])
                + (", ..." if len(value) > 20 else "")
                + "]"
            )
        case bytes():
            text = f"{len(value)} bytes"
        case _:
            text = repr(value)
    return text if len(text) <= MAX_CHARACTERS else text[:MAX_CHARACTERS] + "..."


def _groups(groups: Sequence[int]) -> str:
    return ("group " if len(groups) == 1 else "groups ") + _list(groups)


def _records(count: int) -> str:
    return "all records" if count == 0 else f"{count} record" + ("s" if count > 1 else "")


def _list(items: Any) -> str:
    return ", ".join(str(item) for item in items)
