"""Ids of processes, groups and messages.

All ids are plain integers: they sort, hash and encode in the same way in every interpreter. A message id consists of
its sender and a sequence number, in decimal so that people can read it: 6000000003 is message 3 of process 6.
"""

from typing import Final, TypeAlias

ProcessId: TypeAlias = int
GroupId: TypeAlias = int
MessageId: TypeAlias = int

MESSAGES_PER_SENDER: Final = 10**9
MAX_SENDER: Final = 2**31 - 1


def message_id(sender: ProcessId, sequence: int) -> MessageId:
    """The id of a sender's message with this sequence number; it fits 63 bits."""
    assert 0 <= sender <= MAX_SENDER, f"sender {sender}; expected 0 to {MAX_SENDER}"
    assert 0 <= sequence < MESSAGES_PER_SENDER, f"sequence {sequence}; expected less than {MESSAGES_PER_SENDER}"
    return sender * MESSAGES_PER_SENDER + sequence


def sender_of(message: MessageId) -> ProcessId:
    return message // MESSAGES_PER_SENDER


def sequence_of(message: MessageId) -> int:
    return message % MESSAGES_PER_SENDER
