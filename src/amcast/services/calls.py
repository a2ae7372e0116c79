"""The caller's side of a service, without a network: from arguments to a payload, from results to an outcome.

A session numbers its calls. Each command says which results the session has, so that groups forget them; a session has
at most WINDOW calls between the oldest unanswered one and the newest, so that groups keep at most that many results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.services.declaration import Description, Operation
from amcast.services.errors import CommandError
from amcast.services.messages import Command, Failure, Result, encode_payload

WINDOW: Final = 1024
"""Calls of a session from the oldest unanswered one on."""


@dataclass(frozen=True)
class Outcome:
    """What a call led to."""

    value: Any
    """What the group returned that owns the first key of the call (without keys: the first group)."""
    by_group: Mapping[str, Any]
    """What each destination group returned."""
    positions: Mapping[str, int]
    """The place of the call in the order of each group."""


@dataclass
class Call:
    """A call on its way."""

    operation: Operation
    request: int
    destinations: tuple[str, ...]
    owner: str
    """The group whose value is the value of the outcome."""
    command: Command
    results: dict[str, Result] = field(default_factory=dict)

    @property
    def payload(self) -> bytes:
        return encode_payload(self.command)

    @property
    def missing(self) -> tuple[str, ...]:
        """The groups without a result."""
        return tuple(group for group in self.destinations if group not in self.results)

    def make_outcome(self) -> Outcome:
        """The outcome of a call with all results; raises what the command raised."""
        by_group: dict[str, Any] = {}
        failed: Failure | None = None
        for group in (self.owner, *self.destinations):
            outcome = self.results[group].outcome
            if isinstance(outcome, Failure):
                # A group that gave up because another one had ended the command says less than that one.
                if failed is None or failed.kind == "GroupEndedError":
                    failed = outcome
                by_group[group] = outcome
            else:
                by_group[group] = msgspec.msgpack.decode(outcome.data, type=self.operation.result)
        by_group = {group: by_group[group] for group in self.destinations}
        if failed is not None:
            raise CommandError(self.operation.name, failed.kind, failed.text, by_group)
        positions = {group: self.results[group].position for group in self.destinations}
        return Outcome(by_group[self.owner], by_group, positions)


class CallSession:
    """Makes the calls of one session."""

    def __init__(self, description: Description, groups: Sequence[str], session: int) -> None:
        """`groups` are all groups of the cluster, in its order; `session` is a number that no other session has."""
        self.description = description
        self.groups = tuple(groups)
        self.session = session
        self._next = 1
        self._open: set[int] = set()

    @property
    def has_room(self) -> bool:
        """Whether another call fits into the window."""
        return self._next - min(self._open, default=self._next) < WINDOW

    def make(
        self,
        name: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        now_ns: int,
        groups: Sequence[str] | None = None,
    ) -> Call:
        """Makes a call, or refuses its arguments with a UsageError."""
        operation = self.description.find(name)
        bound = operation.bind(arguments, named)
        owners = self._find_owners(operation, bound, groups)
        acknowledged = min(self._open, default=self._next)
        if not self.has_room:
            raise CannotTellError(
                f"{self._next - acknowledged} calls since the oldest open one; expected {WINDOW} at most"
            )
        request, self._next = self._next, self._next + 1
        self._open.add(request)
        data = msgspec.msgpack.encode(bound)
        command = Command(self.session, request, acknowledged, False, now_ns, self.description.digest, name, data)
        return Call(operation, request, tuple(g for g in self.groups if g in owners), owners[0], command)

    def _find_owners(self, operation: Operation, bound: msgspec.Struct, groups: Sequence[str] | None) -> list[str]:
        """The destination groups; the first one is that of the first key."""
        if groups is None:
            keys = operation.keys_of(bound)
            partition = self.description.service.partition
            return list(dict.fromkeys(partition(key, self.groups) for key in keys)) or list(self.groups)
        given = [groups] if isinstance(groups, str) else list(groups)
        unknown = [group for group in given if group not in self.groups]
        if unknown or not given:
            raise UsageError(f"groups = {given!r}; expected some of {list(self.groups)}")
        return list(dict.fromkeys(given))

    def close(self, call: Call) -> None:
        """Ends a call: its results are not needed any more."""
        self._open.discard(call.request)
