"""What a server lets clients say: requests, in their own name, for what the topology has. Nothing else gets in."""

from collections.abc import Set
from typing import Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MESSAGES_PER_SENDER, GroupId, ProcessId
from amcast.kernel.message import Body, Message, Request
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import CHANGE_PREFIX, is_change
from amcast.kernel.spec import Spec
from amcast.live.errors import RefusedError
from amcast.live.security.permissions import Permissions

CHANGE_FIRST_BYTE: Final = CHANGE_PREFIX[0]
"""How the payload of a change begins, and few others."""
MAX_DESTINATION_SETS: Final = 100_000
"""Sets of destinations that are remembered as sound; beyond that, each is checked anew."""


class RequestFilter:
    """The check at one server's door."""

    def __init__(self, process: Process, spec: Spec, most_bytes: int, rights: Permissions | None = None) -> None:
        self._process = process
        self._spec = spec
        self._max_bytes = most_bytes
        self._permissions = rights
        self._group = process.group
        """A process that was removed still tells clients so, as one of this group."""
        self._checked: set[tuple[GroupId, ...]] = set()
        self.checked_destinations: Set[tuple[GroupId, ...]] = self._checked if rights is None else frozenset()
        """Destinations that were found sound, and that every client may address (`live/wire/client_inbox.py`)."""

    def check(self, peer: ProcessId, bodies: list[Body]) -> None:
        """Refuse, before the process sees any of them, bodies of which one is not allowed."""
        rights, sound, most = self._permissions, self._checked, self._max_bytes
        allowed = None if rights is None else rights.allowed_groups(peer)
        for body in bodies:
            if type(body) is not Request:
                raise RefusedError(f"client {peer} says {type(body).__name__}; clients may only send requests")
            message = body.message
            if message.sender != peer or message.id // MESSAGES_PER_SENDER != peer:
                raise RefusedError(f"client {peer} sends message {message.id} in the name of {message.sender}")
            payload = message.payload
            if len(payload) > most:
                raise RefusedError(
                    f"message {message.id} has {len(payload)} bytes; expected at most {most} (limits.message_bytes)"
                )
            if message.destinations not in sound:
                self._check_destinations(message)
            if allowed is not None and not allowed.issuperset(message.destinations):
                self._refuse_groups(peer, message, allowed)
            if payload and payload[0] == CHANGE_FIRST_BYTE and is_change(message):
                self._check_change(peer, message)

    def _check_change(self, peer: ProcessId, message: Message) -> None:
        """A change of members: a right of its own, and not in every cluster."""
        if "configuration" not in self._process.status():
            raise RefusedError(
                f"message {message.id} changes members; this cluster does not (members.change, the protocol)"
            )
        if self._permissions is not None:
            self._permissions.check_change(peer)

    def _refuse_groups(self, peer: ProcessId, message: Message, allowed: frozenset[GroupId]) -> None:
        assert self._permissions is not None
        forbidden = sorted({*message.destinations} - allowed)
        raise RefusedError(
            f"client {self._permissions.client_name(peer)} may not address groups {forbidden}"
            f" (message {message.id}); expected some of {sorted(allowed)}"
        )

    def _check_destinations(self, message: Message) -> None:
        topology = self._process.topology
        try:
            proper = topology.check_destinations(message.destinations)
        except UsageError as error:
            raise RefusedError(f"message {message.id}: {error}") from None
        if proper != message.destinations:
            raise RefusedError(f"message {message.id}: destinations {message.destinations}; expected {proper}")
        # A client that asks again asks every member of the groups that order its message.
        ordering = {topology.group_of(contact) for contact in self._spec.contacts(topology, message)}
        if self._group not in ordering | set(proper):
            raise RefusedError(
                f"message {message.id} to groups {list(proper)} is none of process {self._process.me}'s business"
            )
        if len(self._checked) < MAX_DESTINATION_SETS:
            self._checked.add(proper)
