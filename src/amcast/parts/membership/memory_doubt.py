"""The doubt of a process that lost its memory: in which configurations did an earlier life of it take part?

A process that lost its memory may have voted, led and stated timestamps in any configuration that it does not remember.
In such a configuration it must be a member without memory, whom the others readmit; in one that it never took part in,
it must not be counted as one, or the next members that lose theirs would be too many. What its group knows does not
tell: other groups may hold what it said in a configuration that no other member of its own group has reached.

While in doubt, it starts every configuration as a process without memory. It multicasts a marker to its own group, a
message that no life before the loss can have seen, and goes on until the marker is delivered:

    configuration k:      m1   M   m2   B         M before B: k + 1 is started with memory
    configuration k:      m1   m2   B   (M)       M behind B is discarded: k + 1 is started without, M requested again

**Rule.** The doubt ends when the process has delivered M in its current configuration, or starts a configuration whose
start has M among the messages that its group delivered before (`ConfigurationStart.delivered`).

*Proof* that no life before the loss took part in a configuration that the process starts with memory. Let k + 1 be that
configuration. All members of a group start k + 1 with the same set of delivered messages, that before the barrier of k
(docs/membership.md, 1), and M is in it: by the rule, or because the process has delivered M in k or earlier, before the
barrier of k. A life takes part in k + 1 only after some member of its group has delivered the barrier, and M before it.
M is first multicast after the loss, so no life before the loss had begun k + 1 then. The configurations behind k + 1
start later still, and their starts contain M, too. (The id of M is new: its sender is the process, its number the
incarnation that lost the memory, which no earlier life had, as admission sees to; and servers multicast nothing else by
themselves where memory can be lost.)

*Liveness*: a process in doubt requests M again until it is delivered, in the configuration in which its group then is.
It is a member that has not joined (`joined` in its status), though it may vote: if others lost their memory as well,
and a change overtook all their markers, the next configuration could lack a majority with memory. A doubt lasts for as
long as one multicast in the group, and not for as long as the configuration.

The doubt is durable with whatever the process remembers: every record of an instance says it, because a checkpoint may
replace all others. A restart with records goes on with the same marker: its memory of what it did since is whole.
"""

from collections.abc import Sequence

from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id
from amcast.kernel.message import Message, Record
from amcast.kernel.reconfiguration import make_marker
from amcast.parts.membership.configuration import ConfigurationInstance
from amcast.parts.membership.messages import ConfigurationRecord, DoubtEnded, InstanceRecord


class MemoryDoubt:
    """Whether a process is in doubt, and since which loss of memory."""

    __slots__ = ("_me", "since")

    def __init__(self, me: ProcessId) -> None:
        self._me = me
        self.since = 0
        """The incarnation that began without memory; 0: there is no doubt."""

    def recall(self, records: Sequence[Record]) -> None:
        """Learns from the records of earlier incarnations whether the process was in doubt."""
        self.since = 0
        for record in records:
            match record:
                case ConfigurationRecord(_, _, doubt):
                    self.since = doubt
                case InstanceRecord(_, _, _, start, doubt) if doubt or start is not None:
                    self.since = doubt
                case DoubtEnded():
                    self.since = 0

    @property
    def marker(self) -> MessageId:
        """The id of the marker."""
        return message_id(self._me, self.since)

    def make_marker(self, group: GroupId) -> Message:
        return make_marker(self._me, group, self.since)

    def is_ended_by(self, instance: ConfigurationInstance) -> bool:
        """Whether the group is known to have delivered the marker, in this configuration or before it."""
        return instance.has_delivered(self.marker)
