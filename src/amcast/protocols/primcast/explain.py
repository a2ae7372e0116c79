"""What a message waits for at a PrimCast process, phase by phase, and which processes are late; for operators.

    text       the message itself is here
    proposed   the primary of every destination group has proposed a timestamp
    decided    a majority of each of these groups has acknowledged its timestamp: the final timestamp is known
    clocks     no later message can get a lower timestamp: the primary's clock and a majority's have passed it
    epoch      (only while it is open) a majority holds the log of the current epoch
    first      no undelivered message can come before it
    delivered

The answer holds what one process knows; another member may know more.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from amcast.kernel.bundle import bundle_messages, is_bundle
from amcast.kernel.diagnostics import Phase
from amcast.kernel.ids import MessageId, ProcessId
from amcast.parts.consensus.quorum import place_of
from amcast.protocols.primcast.progress import GroupProgress, PendingMulticast


class Destination(NamedTuple):
    """What a process knows of one destination group of a message."""

    progress: GroupProgress
    epoch: int
    """The group's current epoch."""
    log_index: int
    """The message's index in the group's log; -1 if unknown."""
    has_proposed: bool


def find_bundle(pending: Iterable[PendingMulticast], message: MessageId) -> PendingMulticast | None:
    """The pending bundle that contains a message."""
    for one in pending:
        bundle = one.message
        if bundle is not None and is_bundle(one.id) and any(part.id == message for part in bundle_messages(bundle)):
            return one
    return None


def explain_text(pending: PendingMulticast, message: MessageId) -> list[Phase]:
    phases: list[Phase] = []
    if pending.id != message:
        phases.append(Phase("bundle", True, f"it travels in bundle {pending.id}"))
    if pending.message is None:
        groups = sorted(pending.proposing_groups)
        phases.append(Phase("text", False, f"groups {groups} have proposed timestamps; the message has not arrived"))
    else:
        groups = list(pending.message.destinations)
        phases.append(Phase("text", True, f"the message has arrived; its destinations are groups {groups}"))
    return phases


def explain_timestamps(pending: PendingMulticast, destinations: Sequence[Destination]) -> list[Phase]:
    missing = [one for one in destinations if not one.has_proposed]
    proposed = Phase("proposed", True, "the primary of every destination has proposed a timestamp")
    if missing:
        late = tuple([one.progress.members[place_of(one.epoch)] for one in missing])
        groups = [one.progress.group for one in missing]
        proposed = Phase("proposed", False, f"no timestamp has arrived from the primaries of groups {groups}", late)
    undecided = [one for one in destinations if one.progress.group not in pending.decided]
    if not undecided:
        return [proposed, Phase("decided", True, f"its final timestamp is {pending.final}")]
    lagging = tuple([member for one in undecided if one.has_proposed for member in _list_unacknowledged(one)])
    groups = [one.progress.group for one in undecided]
    return [
        proposed,
        Phase("decided", False, f"no majority of groups {groups} has acknowledged its timestamp", lagging),
    ]


def _list_unacknowledged(destination: Destination) -> list[ProcessId]:
    """Members whose acknowledgement of the timestamp has not arrived."""
    progress, epoch, index, _ = destination
    if index < 0:
        return []
    return [
        member
        for member, at, length in zip(progress.members, progress.epochs, progress.lengths, strict=True)
        if at != epoch or length <= index
    ]


def explain_clocks(final: int, stable: int, lagging: tuple[ProcessId, ...]) -> Phase:
    """Whether clocks have passed a final timestamp; they have passed `stable`."""
    if stable >= final:
        return Phase("clocks", True, f"clocks have passed {final}")
    return Phase("clocks", False, f"clocks have reached {stable}, not {final}", lagging)


def explain_order(pending: PendingMulticast, others: Iterable[PendingMulticast]) -> Phase:
    """Whether something else may have to be delivered before a message whose final timestamp is known."""
    rank = (pending.final, pending.id)
    older = sorted([one.id for one in others if one is not pending and one.index >= 0 and (one.bound, one.id) < rank])
    if not older:
        return Phase("first", True, "no known message comes before it")
    listed = ", ".join(str(id) for id in older[:5])
    return Phase("first", False, f"{len(older)} undelivered messages may come before it: {listed}")
