"""Questions to a process: what operators, nodes and drivers may ask, without effect on the protocol.

Only the protocol knows what a message waits for or how far it is; drivers merely carry its answers. A protocol answers
as many of these questions as it can; every question has a default answer.
"""

from collections.abc import Sequence
from typing import Final, NamedTuple

from amcast.kernel.effects import Effect
from amcast.kernel.folder import KnownFolder
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State

ProcessStatus = dict[str, int | str]
"""A few named values that are cheap to compute: position, pending messages, epoch, leader, role and the like."""


class Phase(NamedTuple):
    """One condition for the delivery of a message at a process."""

    name: str
    is_done: bool
    description: str
    """What is known about the condition, in a sentence."""
    waiting_for: tuple[ProcessId, ...] = ()
    """The processes whose contribution is missing."""


def explain_delivered(process: ProcessId) -> Phase:
    return Phase("delivered", True, f"process {process} has delivered it")


def explain_unknown(process: ProcessId) -> Phase:
    return Phase("text", False, f"process {process} does not know the message")


PHASES_AFTER_DELIVERY: Final = frozenset({"carried", "confirmed", "passed"})
"""Names of phases that may be open although the message is delivered: other processes have not taken it over yet."""


class Diagnostics:
    """The part of `Process` that answers questions."""

    __slots__ = ()

    position: int

    # Questions of the node around a protocol

    @property
    def is_leader(self) -> bool:
        """Whether this process leads its group, as far as it knows."""
        return False

    def has_delivered(self, message: MessageId) -> bool:
        """Whether this process is known to have delivered a message in this or an earlier incarnation."""
        return False

    def has_delivered_any(self, messages: Sequence[MessageId]) -> bool:
        """Whether this process is known to have delivered one of these messages. Requests of many clients are nearly
        always new, and a protocol can check that faster for all than one by one."""
        return any(self.has_delivered(message) for message in messages)

    def reply_extra(self, message: Message) -> Body | None:
        """A body that goes to a sender together with the Reply to a retry, if the protocol has one. A node replies
        for a delivered message without the protocol, which alone knows, for instance, that a group was lost
        meanwhile."""
        return None

    def lost_groups(self) -> tuple[GroupId, ...]:
        """The groups for which nobody waits, in protocols that survive the loss of whole groups."""
        return ()

    def stored_message(self, message: MessageId) -> Message | None:
        """A message that this process still holds, delivered or not."""
        return None

    def delivered_set(self, until: MessageId) -> tuple[State, ...] | None:
        """The messages delivered over all incarnations, as a snapshot of `parts/ordering/delivered_set.py`; None if the
        process does not remember them durably. It is called in the step that delivers `until`, and may include other
        deliveries of that step. The next configuration must not order these messages again."""
        return None

    # Questions of drivers

    @property
    def is_serving(self) -> bool:
        """Whether others may rely on what this process delivered: it takes part in its group, and its group does not
        contradict it."""
        return True

    def unanswered_bytes(self) -> int:
        """The payload of clients' messages that this process has requested as their gateway, without all replies."""
        return 0

    def unanswered_bytes_by_client(self) -> dict[ProcessId, int]:
        """The same payload by the client that sent it."""
        return {}

    def attribute_to_messages(self, effects: list[Effect]) -> list[Effect]:
        """The same effects for a trace of packets: `Send.about` names the messages in a bundle, not the bundle."""
        return effects

    def client_notice(self) -> Body | None:
        """After a reconfiguration: a body for all clients that are connected with the driver."""
        return None

    # Questions of operators

    def known_folders(self) -> tuple[KnownFolder, ...]:
        """What this process remembers of the data folders of others."""
        return ()

    def status(self) -> ProcessStatus:
        """The condition of this process."""
        return {"position": self.position}

    def explain(self, message: MessageId) -> list[Phase]:
        """What a message waits for here, phase by phase; empty if the protocol cannot tell."""
        return []
