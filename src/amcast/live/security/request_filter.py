"""Filter of a server for what clients send: only requests, in their own name, for groups that exist and that they may
address, pass."""

from collections.abc import Set
from typing import Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MESSAGES_PER_SENDER, GroupId, ProcessId
from amcast.kernel.message import Body, Message, Request
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import CHANGE_PREFIX, is_change
from amcast.kernel.spec import Spec
from amcast.live.audit_log import record_audit
from amcast.live.client_batch import open_batch
from amcast.live.errors import RefusedError
from amcast.live.security.permissions import Permissions
from amcast.services.messages import MARK, decode_payload

CHANGE_FIRST_BYTE: Final = CHANGE_PREFIX[0]
"""The first byte of the payload of a change of members; few other payloads begin with it."""
MAX_DESTINATION_SETS: Final = 100_000
"""Destination sets remembered as valid; beyond that, each message is checked in full."""


class RequestFilter:
    """Checks the bodies of clients at one server."""

    def __init__(self, process: Process, spec: Spec, max_bytes: int, permissions: Permissions | None = None) -> None:
        self._process = process
        self._spec = spec
        self._max_bytes = max_bytes
        self._permissions = permissions
        self._group = process.group
        """The group of the process when it started: a removed process still answers clients for this group."""
        self._checked: set[tuple[GroupId, ...]] = set()
        self.checked_destinations: Set[tuple[GroupId, ...]] = self._checked if permissions is None else frozenset()
        """Valid destination sets that every client may address (`live/wire/connection.py`)."""

    def check(self, peer: ProcessId, bodies: list[Body]) -> None:
        """Refuses all bodies, before the process sees any of them, if one is not allowed."""
        permissions, valid, max_bytes = self._permissions, self._checked, self._max_bytes
        allowed = None if permissions is None else permissions.allowed_groups(peer)
        for body in bodies:
            if type(body) is not Request:
                raise RefusedError(f"client {peer} sends {type(body).__name__}; expected Request")
            message = body.message
            if message.sender != peer or message.id // MESSAGES_PER_SENDER != peer:
                raise RefusedError(f"client {peer} sends message {message.id} in the name of {message.sender}")
            payload = message.payload
            if len(payload) > max_bytes:
                raise RefusedError(
                    f"message {message.id} has {len(payload)} bytes;"
                    f" expected at most {max_bytes} (limits.message_bytes)"
                )
            if message.destinations not in valid:
                self._check_destinations(message)
            if allowed is not None and not allowed.issuperset(message.destinations):
                self._refuse_groups(peer, message, allowed)
            if permissions is not None and MARK in payload:
                self._check_service(peer, payload, permissions)
            if payload and payload[0] == CHANGE_FIRST_BYTE and is_change(message):
                self._check_change(peer, message)

    def _check_change(self, peer: ProcessId, message: Message) -> None:
        """Refuses a change of members where the cluster does not allow changes or the client lacks the permission."""
        if "configuration" not in self._process.status():
            raise RefusedError(
                f"message {message.id} changes members, which members.change or the protocol does not allow"
            )
        if self._permissions is not None:
            self._permissions.check_change(peer)
        name = f"process {peer}" if self._permissions is None else f"client {self._permissions.client_name(peer)}"
        record_audit("change requested", name, message=message.id)

    def _check_service(self, peer: ProcessId, payload: bytes, permissions: Permissions) -> None:
        """Refuses calls of a service that the client may not make, and values that only replicas may give."""
        for part in open_batch(payload):
            content = decode_payload(part)
            if content is not None:
                permissions.check_content(peer, content)

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
        # A client that retries sends its request to every member of the groups that order the message.
        ordering = {topology.group_of(contact) for contact in self._spec.contacts(topology, message)}
        if self._group not in ordering | set(proper):
            raise RefusedError(
                f"message {message.id} to groups {list(proper)} does not concern process {self._process.me}"
            )
        if len(self._checked) < MAX_DESTINATION_SETS:
            self._checked.add(proper)
