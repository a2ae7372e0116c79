"""The executor: a replica's service as a state machine that is fed with its group's deliveries and with nothing else.

    deliver(position, destinations, payload)
        Command  -> duplicates are dropped; else queued, and executed when all before it are finished
        Value    -> what another group gives at a `yield`; the waiting command goes on when it has all of them
    owed         -> values of this group that no delivered message carries yet: the host of the executor multicasts them
                    to the other groups and, when these have ordered them, to its own
    result(...)  -> results, kept until their caller has acknowledged them

Its state is a function of what was delivered. So every replica of a group has the same state at the same position, a
restart from a snapshot and the deliveries behind it leads to the same state again, and the simulator runs this object.
The package docstring has the arguments for correctness.
"""

from collections import deque
from collections.abc import Generator, Iterable, Iterator, Sequence
from contextlib import suppress
from hashlib import blake2b
from itertools import chain
from pathlib import Path
from types import GeneratorType
from typing import Any, Final, NamedTuple

import msgspec
from msgspec.structs import astuple

from amcast.kernel.checksum import crc32
from amcast.kernel.errors import UsageError
from amcast.services.declaration import (
    SECOND_NS,
    Applied,
    At,
    Description,
    DiskService,
    Operation,
    Service,
    describe_service,
)
from amcast.services.errors import RETURNED, GroupEndedError, ServiceFailedError
from amcast.services.fields import FieldCodec, Form
from amcast.services.messages import (
    KEY_BIT,
    STATE_MARK,
    Command,
    CommandId,
    ExecutorState,
    Failure,
    OwedValue,
    Query,
    QueuedCommand,
    Result,
    SessionState,
    Success,
    Value,
    decode_payload,
    digest_call,
)

MAX_SESSIONS: Final = 10_000
"""Sessions that a group remembers; beyond them the one that was idle for longest is forgotten."""
MAX_EARLY_VALUES: Final = 100_000
"""Commands of which a group keeps values that came before the command; the oldest are dropped beyond that."""
DIGEST_BYTES: Final = 8
MAX_VALUE_BYTES: Final = 256 * 1024
"""Of what a command gives to other groups at a `yield`: it travels in one message."""
MAX_RESULT_BYTES: Final = 1024 * 1024
"""Of what a command or query returns: groups keep it until its caller has it."""
MAX_TEXT_LENGTH: Final = 4096
"""Of the text of an exception; longer ones are cut."""

_encoder: Final = msgspec.msgpack.Encoder()


class Execution:
    """A command that has begun."""

    __slots__ = ("before", "generator", "queued", "step")

    def __init__(self, queued: QueuedCommand, generator: Generator[Any, Any, Any], before: str) -> None:
        self.queued = queued
        self.generator = generator
        self.before = before
        """A digest of the state when it began; "" if that is not checked."""
        self.step = 0
        """The number of the `yield` that it waits at."""


class PreparedState(NamedTuple):
    """A snapshot that is decoded and not adopted."""

    state: ExecutorState
    service: Service


class Executor:
    """Executes the commands of one group in the order of their delivery."""

    def __init__(
        self, service: type[Service] | Description, group: str, groups: Sequence[str], *, checks: bool = False
    ) -> None:
        """`groups` are all groups of the cluster, in its order. `checks`: after every part of a command, checks the
        rules that cost a snapshot to check."""
        self.description = service if isinstance(service, Description) else describe_service(service)
        self.group = group
        self.groups = tuple(groups)
        if group not in self.groups:
            raise UsageError(f"group {group!r}; expected one of {list(self.groups)}")
        self.keeps_files = issubclass(self.description.service, DiskService)
        """Whether the service keeps its state in files of its own; `open` comes before everything else then."""
        self._checks = checks and not self.keeps_files
        self._failures = getattr(self.description.service, "failures", ())
        self._operations = self.description.operations
        self._digest_of_class = self.description.digest
        self._codec = FieldCodec(self.description.service, self.description.fields)
        self._owner_of = self.owner_of  # bound once: every command gets it
        self._use(self._make_service())
        self.executed = 0
        """Commands that were finished."""
        self.answers: int | None = 0
        """A checksum over their results, which are the same at every replica; None: it is not known."""
        self.position = 0
        """Everything before this position was delivered."""
        self.finished_until = 0
        """Every command that has changed the state is before this position."""
        self._now_ns = 0
        self._sessions: dict[int, SessionState] = {}
        """By session, the one that was idle for longest first."""
        self._keyed: dict[int, SessionState] = {}
        """Calls with a key, each a session of one request, the first delivered one first."""
        self._remembered_ns = int(self.description.service.remembered_s * SECOND_NS)
        self._queue: deque[QueuedCommand] = deque()
        self._execution: Execution | None = None
        self._received: dict[CommandId, list[Value]] = {}
        """Values for commands that are not finished here, one per group and step."""
        self.owed: dict[tuple[int, int, int], OwedValue] = {}
        """By session, request and step: values of this group that it has not delivered itself, oldest first."""
        self.finished: list[CommandId] = []
        """Commands that were finished since a host last emptied the list."""

    def _use(self, service: Service) -> None:
        self.service = service
        self._methods = {name: getattr(service, name) for name in self._operations}

    def _make_service(self) -> Service:
        service = self.description.service(self.group)
        self._codec.check(service)
        return service

    # Deliveries

    def deliver(self, position: int, destinations: Sequence[str], payload: bytes) -> None:
        """Takes the next payload that the group delivers; payloads that are not of a service are ignored."""
        content = decode_payload(payload)
        self.position = position + 1
        if type(content) is Command:
            self._accept_command(QueuedCommand(content, position, tuple(destinations)))
        elif type(content) is Value:
            self._accept_value(content)

    def _accept_command(self, queued: QueuedCommand) -> None:
        command = queued.command
        if command.session & KEY_BIT:
            self._accept_keyed(queued)
            return
        session = self._sessions.pop(command.session, None)
        is_forgotten = session is None and command.is_retry
        session = self._sessions[command.session] = session or SessionState()
        if command.acknowledged > session.acknowledged:
            session.forget_before(command.acknowledged)
        request = command.request
        if request < session.acknowledged or request in session.results or request in session.pending:
            return
        if is_forgotten:
            # The first attempt may have been executed before the session was forgotten.
            self._finish(queued, Failure("SessionForgotten", "the group does not remember this session's calls"), 0)
        else:
            self._execute(queued, session)
        if len(self._sessions) > MAX_SESSIONS:
            self._forget_sessions()

    def _execute(self, queued: QueuedCommand, session: SessionState) -> None:
        """Executes a new command, at once if nothing waits; what is finished then was never pending."""
        if self._execution is None and not self._queue:
            self._begin(queued)
            if self._execution is None:
                return
        else:
            self._queue.append(queued)
        session.pending.add(queued.command.request)
        self._run()

    def _accept_keyed(self, queued: QueuedCommand) -> None:
        """Executes a call with a key, unless the group remembers one with this key."""
        self._forget_keys(0)
        known = self._keyed.get(queued.command.session)
        if known is None:
            self._forget_keys(1)
            session = self._keyed[queued.command.session] = SessionState(exchange=queued.command.now_ns)
            self._execute(queued, session)
        elif known.exchange != queued.command.now_ns:
            # Another group may have forgotten the key, or may not have known it, and execute this one.
            self._received.pop(queued.command.exchange, None)
            self._owe_end(queued, 0, "remembers an earlier call with this key")

    def _forget_keys(self, more: int) -> None:
        """Forgets the oldest calls with a key beyond the number, if so many more come, and the time that the service
        names."""
        keyed, limit = self._keyed, self.description.service.remembered_keys
        while keyed:
            session, oldest = next(iter(keyed.items()))
            if oldest.pending or (
                len(keyed) + more <= limit and oldest.finished_ns >= self._now_ns - self._remembered_ns
            ):
                return
            del keyed[session]

    def _find_session(self, session: int) -> SessionState | None:
        return (self._keyed if session & KEY_BIT else self._sessions).get(session)

    def _forget_sessions(self) -> None:
        for id in [id for id, one in self._sessions.items() if not one.pending]:
            if len(self._sessions) <= MAX_SESSIONS:
                return
            del self._sessions[id]

    def _accept_value(self, value: Value) -> None:
        key = (value.session, value.request, value.step)
        if value.group == self.group:
            owed = self.owed.pop(key, None)
            own = [
                one for one in self._received.get(value.id, ()) if one.group == self.group and one.step == value.step
            ]
            if value not in (*own, value if owed is None else owed.value)[:1]:
                raise ServiceFailedError(
                    f"another replica of group {self.group} computed another value at yield {value.step} of request"
                    f" {value.request}: the service is not deterministic, or differs between replicas"
                )
            return
        session = self._find_session(value.session)
        if session is not None and not value.session & KEY_BIT:
            result = session.results.get(value.request)
            if result is not None:
                self._answer_late(result, value)
                return
            if value.request < session.acknowledged:
                return
        elif session is not None and session.exchange == value.request and session.results:
            self._answer_late(session.results[1], value)
            return
        values = self._received.setdefault(value.id, [])
        if any(known.group == value.group and known.step == value.step for known in values):
            return
        values.append(value)
        if len(self._received) > MAX_EARLY_VALUES:
            self._drop_early_value()
        self._run()

    def _drop_early_value(self) -> None:
        """Drops the oldest values of a command that has not come."""
        for session, request in self._received:
            known = self._find_session(session)
            is_keyed = known is not None and session & KEY_BIT and known.exchange == request
            if known is None or (1 if is_keyed else request) not in known.pending:
                del self._received[(session, request)]
                return

    def _answer_late(self, result: Result, value: Value) -> None:
        """Tells a group that waits for a value of a command which ended here before that there is none."""
        key = (value.session, value.request, result.steps)
        if value.ended or value.step < result.steps or key in self.owed or _has_told(result.outcome, result.steps):
            return
        ended = Value(value.session, value.request, result.steps, self.group, b"", _describe_end(result))
        self.owed[key] = OwedValue(ended, (value.group,))

    def _owe_end(self, queued: QueuedCommand, step: int, sentence: str) -> None:
        """Tells the other groups of a command, of which some may wait, that there is no value at a `yield`."""
        operation = self._operations.get(queued.command.name)
        others = tuple(group for group in queued.destinations if group != self.group)
        if others and operation is not None and operation.yields:
            session, request = queued.command.exchange
            ended = Value(session, request, step, self.group, b"", sentence)
            self.owed[(session, request, step)] = OwedValue(ended, others)

    # Execution

    def _run(self) -> None:
        """Executes as far as deliveries allow."""
        while True:
            if self._execution is None:
                if not self._queue:
                    return
                self._begin(self._queue.popleft())
            elif not self._resume(self._execution):
                return

    def _begin(self, queued: QueuedCommand) -> None:
        command = queued.command
        if command.digest != self._digest_of_class:
            sentence = (
                f"the caller's {self.description.name} has digest {command.digest}; expected {self.description.digest},"
                f" that of the replicas: the same class on both sides"
            )
            self._finish(queued, Failure("ServiceDiffers", sentence), 0)
            return
        try:
            operation = self._operations.get(command.name) or self.description.find(command.name)
            arguments = operation.decode(command.arguments)
        except (UsageError, msgspec.MsgspecError) as error:
            self._finish(queued, Failure("UsageError", f"{command.name}: {error}"), 0)
            return
        if command.now_ns > self._now_ns:
            self._now_ns = command.now_ns
        call = command.session, command.request
        at = At(
            self.group, queued.destinations, queued.position, self._now_ns, call, operation, arguments, self._owner_of
        )
        before = self._digest() if self._checks else ""
        returned = self._call(operation, at, arguments)
        if type(returned) is GeneratorType:
            self._execution = Execution(queued, returned, before)
            self._advance(self._execution, None)
        else:
            if before and operation.kind == "query":
                self._check_unchanged(before, f"{command.name} is a query")
            self._finish(queued, returned, 0)

    def owner_of(self, key: str) -> str:
        """The group that owns a key."""
        return self.description.partition(key, self.groups)

    def _call(
        self, operation: Operation, at: At, arguments: msgspec.Struct
    ) -> "GeneratorType[Any, Any, Any] | Success | Failure":
        method = self._methods[operation.name]
        try:
            returned = method(at, *astuple(arguments)) if operation.takes_at else method(*astuple(arguments))
        except Exception as error:
            if operation.kind == "query":
                return _describe_exception(error)
            return self._describe_exception(operation.name, error)
        return returned if type(returned) is GeneratorType else _encode_result(returned)

    def _describe_exception(self, name: str, error: Exception) -> Failure:
        """An exception of a command as its result. What depends on the machine, not on the state, is none."""
        if isinstance(error, MemoryError | RecursionError):
            raise ServiceFailedError(
                f"{name} at position {self.position - 1} raised {type(error).__name__}: {error}. It is no result,"
                f" because other replicas have room for more or less. If all stop here, mend the method and start them"
                f" again: the class keeps its digest while names and types stay"
            ) from error
        if self._failures and isinstance(error, self._failures):
            raise ServiceFailedError(
                f"{name}: the files of {self.description.name} fail at this replica: {type(error).__name__}: {error}"
            ) from error
        return _describe_exception(error)

    def _resume(self, execution: Execution) -> bool:
        """Continues a command that has the values of all groups; False if some are missing."""
        queued, step = execution.queued, execution.step
        received = self._received.get(queued.command.exchange, ())
        values = {value.group: value for value in received if value.step == step}
        for value in received:
            if value.ended and value.step <= step and value.group not in values:
                values[value.group] = value
        if any(group not in values for group in queued.destinations):
            return False
        ended = [values[group] for group in queued.destinations if values[group].ended]
        execution.step += 1
        if ended:
            self._advance(execution, GroupEndedError(ended[0].group, ended[0].ended))
        else:
            self._advance(
                execution, {group: msgspec.msgpack.decode(values[group].data) for group in queued.destinations}
            )
        return True

    def _advance(self, execution: Execution, sent: Any) -> None:
        """Runs a command to its next `yield`, or to its end."""
        try:
            if isinstance(sent, GroupEndedError):
                given = execution.generator.throw(sent)
            else:
                given = execution.generator.send(sent)
            data = _encode_value(given)
        except StopIteration as stop:
            self._end(execution, _encode_result(stop.value))
            return
        except Exception as error:
            if self._checks and error is sent and isinstance(error, GroupEndedError) and error.has_returned:
                raise ServiceFailedError(
                    f"{execution.queued.command.name} waits at yield {execution.step - 1}, and {sent}: expected that"
                    f" every group comes to the same yields, or that GroupEndedError is caught"
                ) from error
            self._end(execution, self._describe_exception(execution.queued.command.name, error))
            return
        if execution.before:
            self._check_unchanged(execution.before, f"{execution.queued.command.name} yields")
        self._give(execution, data)

    def _give(self, execution: Execution, data: bytes) -> None:
        """Gives a value to the other groups."""
        command, step = execution.queued.command, execution.step
        session, request = command.exchange
        value = Value(session, request, step, self.group, data)
        values = self._received.setdefault(command.exchange, [])
        known = [one for one in values if one.group == self.group and one.step == step]
        if known and known[0] != value:
            raise ServiceFailedError(
                f"{command.name} gave another value at yield {step} when it was executed again from a snapshot;"
                f" expected that it changes state only after its last yield"
            )
        if not known:
            values.append(value)
            others = tuple(group for group in execution.queued.destinations if group != self.group)
            if others:
                self.owed[(session, request, step)] = OwedValue(value, others)

    def _end(self, execution: Execution, outcome: Success | Failure) -> None:
        with suppress(Exception):  # of a method that handles its end as if it were an error
            execution.generator.close()
        self._execution = None
        self._finish(execution.queued, outcome, execution.step)

    def _finish(self, queued: QueuedCommand, outcome: Success | Failure, steps: int) -> None:
        command = queued.command
        id, request, about = command.session, command.request, b""
        if id & KEY_BIT:
            session = self._keyed.get(id) or self._sessions.setdefault(id, SessionState())
            session.finished_ns, about = self._now_ns, digest_call(command.name, command.arguments)
        else:
            session = self._sessions.get(id) or self._sessions.setdefault(id, SessionState())
        if session.pending:
            session.pending.discard(request)
        result = Result(request, outcome, queued.position, steps, about)
        if request >= session.acknowledged:
            session.results[request] = result
        if self.answers is not None:
            self.answers = crc32(_show_outcome(outcome), self.answers)
        self.executed += 1
        self.finished_until = queued.position + 1
        self.finished.append((id, request))
        if len(queued.destinations) > 1 and _has_told(outcome, steps):
            self._owe_end(queued, steps, _describe_end(result))
        if self._received:
            for value in self._received.pop(command.exchange, ()):
                if value.group != self.group:
                    self._answer_late(result, value)
        if self._checks:
            self._codec.check(self.service)

    # Reads

    @property
    def first_unfinished(self) -> int | None:
        """The position of the command that waits for values; None if none does."""
        return None if self._execution is None else self._execution.queued.position

    def result(self, session: int, request: int) -> Result | None:
        """The result of a request, while it is kept."""
        known = self._find_session(session)
        return None if known is None else known.results.get(request)

    def results_of(self, session: int) -> list[Result]:
        """The results of a session that are kept, in the order of execution."""
        known = self._find_session(session)
        return [] if known is None else list(known.results.values())

    def is_acknowledged(self, session: int, request: int) -> bool:
        """Whether the caller has said that it has the result."""
        known = self._find_session(session)
        return known is not None and request < known.acknowledged

    def read(self, query: Query) -> Success | Failure:
        """Executes a query on the present state: that before a command that waits for other groups."""
        try:
            operation = self.description.find(query.name)
            arguments = operation.decode(query.arguments)
        except (UsageError, msgspec.MsgspecError) as error:
            return Failure("UsageError", f"{query.name}: {error}")
        if operation.kind != "query" or operation.takes_at:
            return Failure("UsageError", f"{query.name} is executed in order only; expected a query without `at`")
        before = self._digest() if self._checks else ""
        try:
            outcome = _encode_result(getattr(self.service, query.name)(*astuple(arguments)))
        except Exception as error:
            outcome = _describe_exception(error)
        if before:
            self._check_unchanged(before, f"{query.name} is a query")
        return outcome

    def describe_waiting(self) -> str:
        """What the executor waits for, as a sentence; "" if it waits for nothing."""
        execution = self._execution
        if execution is None:
            return ""
        command = execution.queued.command
        given = {v.group for v in self._received.get(command.exchange, ()) if v.step == execution.step or v.ended}
        missing = [group for group in execution.queued.destinations if group not in given]
        return (
            f"{command.name} at position {execution.queued.position} waits at yield {execution.step} for the values of"
            f" {', '.join(missing)}; {len(self._queue)} commands wait behind it"
        )

    # Snapshots

    def snapshot(self) -> tuple[bytes, ...]:
        """The state after everything that was delivered, in pieces."""
        return tuple(self.snapshot_pieces())

    def snapshot_pieces(self) -> Iterator[bytes]:
        """The pieces of the snapshot: first what the executor knows itself, then the service's state. They are those of
        the present state if they are drawn before the next delivery."""
        form, pieces = self._codec.encode(self.service)
        return chain([self._encode_record(form)], pieces)

    def _encode_record(self, form: Form) -> bytes:
        """What the executor knows beside the service's state. A command that waits is in it as one that has not
        begun."""
        queue = list(self._queue) if self._execution is None else [self._execution.queued, *self._queue]
        state = ExecutorState(
            self.description.digest,
            b"",
            self._now_ns,
            self.executed,
            [
                (id, one.acknowledged, list(one.results.values()), sorted(one.pending))
                for id, one in self._sessions.items()
            ],
            queue,
            [(*id, values) for id, values in self._received.items()],
            list(self.owed.values()),
            list(self._keyed.items()),
            form,
            self.answers,
        )
        return STATE_MARK + _encoder.encode(state)

    def prepare(self, snapshot: bytes | Iterable[bytes], position: int, folder: Path | None = None) -> "PreparedState":
        """Decodes a snapshot piece by piece; `adopt` makes it the state. It changes nothing: any thread may call it.
        A service with files of its own puts them into an empty folder. Earlier versions of amcast wrote one document,
        cut anywhere if it was long."""
        pieces = iter([snapshot] if isinstance(snapshot, bytes) else snapshot)
        first = next(pieces, b"")
        service = self._make_service()
        if isinstance(service, DiskService):
            assert folder is not None, "a service with files needs a folder"
            state = self._decode_record(first)
            service.open(folder)
            try:
                service.restore(pieces)
                service.save(Applied(position, first))
            except BaseException:
                service.close()
                raise
        elif first.startswith(STATE_MARK):
            state = self._decode_record(first)
            self._codec.decode(service, state.form or "fields", pieces)
        else:
            state = self._decode_record(first + b"".join(pieces))
            self._codec.decode_whole(service, state.service)
        return PreparedState(state, service)

    def _decode_record(self, record: bytes) -> ExecutorState:
        try:
            state = msgspec.msgpack.decode(record.removeprefix(STATE_MARK), type=ExecutorState)
        except msgspec.MsgspecError as error:
            raise ServiceFailedError(f"the snapshot of {self.description.name} cannot be decoded: {error}") from None
        if state.digest != self.description.digest:
            raise ServiceFailedError(
                f"the snapshot is of a {self.description.name} with digest {state.digest}; expected"
                f" {self.description.digest}: the same class at every replica"
            )
        return state

    def adopt(self, prepared: "PreparedState", position: int) -> None:
        """Replaces the state by that of a snapshot, taken after all deliveries before a position."""
        self.close()
        state, service = prepared
        self._use(service)
        self._resume_from(state, position)

    def _resume_from(self, state: ExecutorState, position: int) -> None:
        if self._execution is not None:
            with suppress(Exception):
                self._execution.generator.close()
        self._now_ns, self.executed, self.answers = state.now_ns, state.executed, state.answers
        self._sessions = {
            id: SessionState(acknowledged, {result.request: result for result in results}, set(pending))
            for id, acknowledged, results, pending in state.sessions
        }
        self._keyed = dict(state.keyed)
        self._queue, self._execution = deque(state.queue), None
        self.position = self.finished_until = position
        self._received = {(session, request): values for session, request, values in state.received}
        self.owed = {(o.value.session, o.value.request, o.value.step): o for o in state.owed}
        self._run()

    def restore(self, snapshot: bytes | Iterable[bytes], position: int, folder: Path | None = None) -> None:
        """Replaces the state by a snapshot, taken after all deliveries before a position."""
        self.adopt(self.prepare(snapshot, position, folder), position)

    # Files of the service

    def open(self, folder: Path) -> None:
        """Opens the state that a service has in a folder, and goes on from its position."""
        assert isinstance(self.service, DiskService), "only services with files are opened"
        applied = self.service.open(folder)
        if applied is not None:
            self._resume_from(self._decode_record(applied.record), applied.position)

    def save(self, position: int) -> int:
        """Has the service make its state durable, with everything else that a restart needs; returns the size of the
        latter. Everything before the position was delivered; the last of it may not have been for services (a change of
        members)."""
        assert isinstance(self.service, DiskService), "only services with files are saved"
        assert position >= self.position, f"saved at {position}; expected what was delivered: {self.position}"
        self.position = position
        record = self._encode_record("pieces")
        self.service.save(Applied(position, record))
        return len(record)

    def close(self) -> None:
        """Closes the files of the service. What was not saved is lost."""
        if isinstance(self.service, DiskService):
            self.service.close()

    def _digest(self) -> str:
        digest = blake2b(digest_size=DIGEST_BYTES)
        for piece in self._codec.encode(self.service)[1]:
            digest.update(piece)
        return digest.hexdigest()

    def digest(self) -> str:
        """A digest of the service's state; equal states have equal digests."""
        return self._digest()

    def _check_unchanged(self, before: str, what: str) -> None:
        if self._digest() != before:
            raise ServiceFailedError(
                f"{what}, and the state has changed: expected that a command changes state only after its last yield,"
                f" and a query never (a snapshot that is taken meanwhile would have half of the command)"
            )


def _has_told(outcome: Success | Failure, steps: int) -> bool:
    """Whether a group tells the others at once that it has ended a command, because they may wait for it: it raised, or
    returned before it gave anything."""
    return outcome.kind != GroupEndedError.__name__ if isinstance(outcome, Failure) else not steps


def _show_outcome(outcome: Success | Failure) -> bytes:
    return outcome.data if isinstance(outcome, Success) else f"{outcome.kind} {outcome.text}".encode()


def _describe_end(result: Result) -> str:
    if isinstance(result.outcome, Failure):
        return f"raised {result.outcome.kind}: {result.outcome.text}"
    return f"{RETURNED} {result.steps} yields"


def _encode_value(given: Any) -> bytes:
    """What a command gives at a `yield`; raises what ends the command if that cannot be sent."""
    data = _encoder.encode(given)
    if len(data) > MAX_VALUE_BYTES:
        raise ValueError(f"the value of a yield has {len(data)} bytes; expected at most {MAX_VALUE_BYTES}")
    return data


def _encode_result(value: Any) -> Success | Failure:
    try:
        data = _encoder.encode(value)
    except (TypeError, ValueError, OverflowError, NotImplementedError) as error:
        return Failure("TypeError", f"the result cannot be encoded: {error}")
    if len(data) > MAX_RESULT_BYTES:
        return Failure("ValueError", f"the result has {len(data)} bytes; expected at most {MAX_RESULT_BYTES}")
    return Success(data)


def _describe_exception(error: Exception) -> Failure:
    """An exception as a result, with a text that can be sent."""
    if isinstance(error, ServiceFailedError):
        raise error
    kind = type(error).__name__
    try:
        text = str(error)
    except Exception:
        text = f"{kind} without a text"
    return Failure(kind, text[:MAX_TEXT_LENGTH].encode(errors="backslashreplace").decode())
