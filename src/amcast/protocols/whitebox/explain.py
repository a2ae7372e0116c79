"""Diagnostics of White-Box: the phases of a pending message, and the processes it waits for.

    text       the message itself has arrived
    proposed   the leader of every destination group has proposed a timestamp
    accepted   a majority of each of these groups has accepted the timestamps (leaders count that)
    first      no message that the leader proposed can come before it
    delivered  a follower delivers when its leader orders it to

A process reports what it knows; the leader of its group knows more.
"""

from collections.abc import Sequence

from amcast.kernel.diagnostics import Phase
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.topology import Topology
from amcast.protocols.whitebox.pending_multicast import PendingMulticast

MAX_LISTED = 5
"""Earlier messages that are listed by id."""


def explain_timestamps(message: PendingMulticast, topology: Topology) -> list[Phase]:
    """Phases up to the timestamps of all leaders."""
    groups = message.message.destinations
    text = Phase("text", True, f"the message is here, for groups {list(groups)}")
    missing = [group for group in groups if group not in message.accepts]
    if not missing:
        return [text, Phase("proposed", True, "the leader of every group has proposed a timestamp")]
    late = tuple(member for group in missing for member in topology.members(group))
    return [text, Phase("proposed", False, f"no timestamp has come from the leaders of groups {missing}", late)]


def explain_follower(leader: ProcessId) -> Phase:
    """The last phase at a follower."""
    return Phase("delivered", False, f"process {leader} leads and has not ordered the delivery", (leader,))


def explain_commit(
    message: PendingMulticast, topology: Topology, queue: Sequence[tuple[int, MessageId]]
) -> list[Phase]:
    """The last phases at a leader; `queue` holds a lower bound of the rank of each pending message that it proposed."""
    if not message.is_committed:
        if message.final >= 0:
            sentence = f"its final timestamp is {message.final}, which no majority of this group has accepted"
            return [Phase("accepted", False, sentence)]
        sentence = "no majority of every group has accepted the timestamps"
        return [Phase("accepted", False, sentence, message.missing_acks(topology))]
    accepted = Phase("accepted", True, f"its final timestamp is {message.final}")
    rank = (message.final, message.id)
    earlier = sorted(id for bound, id in queue if id != message.id and (bound, id) < rank)
    if not earlier:
        return [accepted, Phase("first", True, "nothing that is known comes before it")]
    some = ", ".join(str(id) for id in earlier[:MAX_LISTED])
    sentence = f"{len(earlier)} messages may come before it and are not delivered: {some}"
    return [accepted, Phase("first", False, sentence)]
