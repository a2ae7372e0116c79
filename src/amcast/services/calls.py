"""The caller's side of a service, without a network: from arguments to a payload, from results to an outcome.

A session numbers its calls. Each command says which results the session has, so that groups forget them; a session has
at most WINDOW calls between the oldest unanswered one and the newest, so that groups keep at most that many results.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, get_args

import msgspec

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.services.declaration import SECOND_NS, Description, Operation
from amcast.services.errors import CommandError
from amcast.services.messages import (
    MAX_KEY_LENGTH,
    Command,
    Consistency,
    Failure,
    Query,
    Result,
    digest_call,
    encode_payload,
    find_key_session,
)

SAME_CLASS: Final = "expected the same class on both sides"
"""The end of the refusal of a replica that runs another service than the caller's, or none."""
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
    key: str | None = None
    results: dict[str, Result] = field(default_factory=dict)

    is_other: bool = False
    """The key of the call is known to be that of another one."""

    @property
    def payload(self) -> bytes:
        return encode_payload(self.command)

    @property
    def about(self) -> bytes:
        """A digest of what is called."""
        return digest_call(self.command.name, self.command.arguments)

    @property
    def missing(self) -> tuple[str, ...]:
        """The groups without a result."""
        return tuple(group for group in self.destinations if group not in self.results)

    def make_outcome(self) -> Outcome:
        """The outcome of a call with all results; raises what the command raised."""
        if self.is_other or (self.key is not None and {one.about for one in self.results.values()} != {self.about}):
            raise UsageError(
                f"{self.operation.name}: call_key = {self.key!r} was used for another call; expected a key of its own"
            )
        return _make_outcome(self)


@dataclass
class Reading:
    """A query that is read from replicas, one of each group, without ordering."""

    operation: Operation
    destinations: tuple[str, ...]
    owner: str
    queries: dict[str, Query]
    """By group."""
    results: dict[str, Result] = field(default_factory=dict)

    def make_outcome(self) -> Outcome:
        """The outcome of a query with all results; raises what the query raised."""
        return _make_outcome(self)


def _make_outcome(call: "Call | Reading") -> Outcome:
    by_group: dict[str, Any] = {}
    failed: Failure | None = None
    for group in (call.owner, *call.destinations):
        outcome = call.results[group].outcome
        if isinstance(outcome, Failure):
            # A group that gave up because another one had ended the command says less than that one.
            if failed is None or failed.kind == "GroupEndedError":
                failed = outcome
            by_group[group] = outcome
        else:
            by_group[group] = msgspec.msgpack.decode(outcome.data, type=call.operation.result)
    by_group = {group: by_group[group] for group in call.destinations}
    if failed is not None:
        raise CommandError(call.operation.name, failed.kind, failed.text, by_group)
    positions = {group: call.results[group].position for group in call.destinations}
    return Outcome(by_group[call.owner], by_group, positions)


class CallSession:
    """Makes the calls of one session."""

    def __init__(self, description: Description, groups: Sequence[str], session: int) -> None:
        """`groups` are all groups of the cluster, in its order; `session` is a number that no other session has."""
        self.description = description
        self.groups = tuple(groups)
        self.session = session
        self._next = 1
        self._open: set[int] = set()
        self._reads = 0
        self._seen: dict[str, int] = {}
        """By group: the session has seen commands before this position."""

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
        key: str | None = None,
    ) -> Call:
        """Makes a call, or refuses its arguments with a UsageError. With a key it is the call of that key,
        whoever makes it."""
        operation = self.description.find(name)
        bound = operation.bind(arguments, named)
        owners = self._find_owners(operation, bound, groups)
        destinations = tuple(group for group in self.groups if group in owners)
        data = msgspec.msgpack.encode(bound)
        if key is not None:
            _check_key(operation, key)
            session = find_key_session(key)
            command = Command(session, 1, 1, False, now_ns, self.description.digest, name, data)
            return Call(operation, 1, destinations, owners[0], command, key)
        acknowledged = min(self._open, default=self._next)
        if not self.has_room:
            raise CannotTellError(
                f"{self._next - acknowledged} calls since the oldest open one; expected {WINDOW} at most"
            )
        request, self._next = self._next, self._next + 1
        self._open.add(request)
        command = Command(self.session, request, acknowledged, False, now_ns, self.description.digest, name, data)
        return Call(operation, request, destinations, owners[0], command)

    def make_reading(
        self,
        name: str,
        arguments: Sequence[Any],
        named: Mapping[str, Any],
        consistency: Consistency,
        max_age_s: float | None,
        groups: Sequence[str] | None,
    ) -> Reading | None:
        """A call that is read without ordering; None if it must be ordered: a command, or a linearizable query of
        several groups. Refuses what makes no sense with a UsageError."""
        operation = self.description.find(name)
        check_consistency(operation, consistency, max_age_s)
        if operation.takes_at:
            return None
        bound = operation.bind(arguments, named)
        owners = self._find_owners(operation, bound, groups)
        if consistency == "linearizable" and len(owners) > 1:
            return None
        data, max_age_ns = msgspec.msgpack.encode(bound), int((max_age_s or 0) * SECOND_NS)
        queries = {}
        for group in owners:
            self._reads += 1
            seen = self._seen.get(group, 0)
            queries[group] = Query(self.session, self._reads, name, data, consistency, seen, max_age_ns)
        return Reading(operation, tuple(g for g in self.groups if g in owners), owners[0], queries)

    def see(self, call: "Call | Reading") -> None:
        """Remembers what a call with all results has shown to this session."""
        behind = 1 if isinstance(call, Call) else 0
        for group, result in call.results.items():
            self._seen[group] = max(self._seen.get(group, 0), result.position + behind)

    def _find_owners(self, operation: Operation, bound: msgspec.Struct, groups: Sequence[str] | None) -> list[str]:
        """The destination groups; the first one is that of the first key."""
        if groups is None:
            keys = operation.keys_of(bound)
            return list(dict.fromkeys(map(self._find_owner, keys))) or list(self.groups)
        given = [groups] if isinstance(groups, str) else list(groups)
        unknown = [group for group in given if group not in self.groups]
        if unknown or not given:
            raise UsageError(f"groups = {given!r}; expected some of {list(self.groups)}")
        return list(dict.fromkeys(given))

    def _find_owner(self, key: str) -> str:
        try:
            owner = self.description.partition(key, self.groups)
        except Exception as error:
            raise UsageError(
                f"key {key!r}: the partitioner raised {type(error).__name__}: {error}; expected one of"
                f" {list(self.groups)}"
            ) from None
        if owner not in self.groups:
            raise UsageError(f"key {key!r}: the partitioner gave {owner!r}; expected one of {list(self.groups)}")
        return owner

    def close(self, call: Call) -> None:
        """Ends a call: its results are not needed any more."""
        if call.key is None:
            self._open.discard(call.request)


def _check_key(operation: Operation, key: object) -> None:
    if operation.kind == "query":
        raise UsageError(f"{operation.name}: call_key = {key!r}; expected a command: queries change nothing")
    if not isinstance(key, str) or not 0 < len(key) <= MAX_KEY_LENGTH:
        raise UsageError(f"{operation.name}: call_key = {key!r}; expected a text of 1 to {MAX_KEY_LENGTH} characters")


def check_consistency(operation: Operation, consistency: str, max_age_s: float | None) -> None:
    """Refuses a promise that an operation cannot keep; callers may ask before they have a connection."""
    name = operation.name
    if consistency not in get_args(Consistency):
        expected = ", ".join(map(repr, get_args(Consistency)))
        raise UsageError(f"{name}: consistency = {consistency!r}; expected one of {expected}")
    if operation.kind == "command" and (consistency != "linearizable" or max_age_s is not None):
        raise UsageError(f"{name}: consistency = {consistency!r}; expected a query: commands are ordered")
    if (consistency == "stale") != (max_age_s is not None) or (max_age_s is not None and not max_age_s > 0):
        raise UsageError(
            f"{name}: consistency = {consistency!r} with max_age_s = {max_age_s!r}; expected a bound in seconds"
            f" above 0 with 'stale', and only there"
        )
    if operation.takes_at and consistency != "linearizable":
        raise UsageError(f"{name}: consistency = {consistency!r}; expected a query without `at`: this one is ordered")
