"""The stub of a service at a client: calls are methods, results come back from one replica of each group.

    bank = client.service(Bank)
    outcome = await bank.transfer("ann", "bob", 5)

A call is multicast like any message. Its results come over one RPC stream per group, from the group's leader if it can
be reached: whoever executes first answers first. When the replica is lost, or has no result although the message is
ordered, the stream continues at another one, which sends what it has: a result is kept until the session says that it
has it (`services/calls.py`). Nothing is executed again.

Queries of one group go over the same stream and are not ordered (`services/reads.py`). A linearizable one that gets no
answer soon is ordered after all.
"""

import asyncio
import logging
import secrets
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from typing import Any, Final, Protocol

from amcast.kernel.errors import CannotTellError, Error, UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.topology import Topology
from amcast.live.client.multicaster import Receipt
from amcast.live.rpc.client import NoAnswerError, RpcCall, RpcClient
from amcast.live.rpc.messages import (
    FollowResults,
    KeyedResult,
    ReadService,
    ServiceAnswer,
    ServiceLeader,
    ServiceResults,
    WatchCall,
)
from amcast.services.calls import SAME_CLASS, WINDOW, Call, CallSession, Outcome, Reading
from amcast.services.declaration import Description
from amcast.services.errors import OutcomeUnknownError, ReadRefusedError
from amcast.services.messages import CommandId, Consistency, Query, ReadAnswer, Result
from amcast.services.reads import UNREADABLE

log = logging.getLogger("amcast.live")

SILENCE_S: Final = 1.0
"""How long a replica may owe the result of an ordered call before another one is asked."""
READ_SILENCE_S: Final = 4.0
"""How long a replica may be silent to a read; it refuses before, if it can."""
RETRY_S: Final = 0.05
SESSION_BITS: Final = 62


class Poster(Protocol):
    """The client under a stub."""

    @property
    def topology(self) -> Topology:
        """The newest topology that it knows."""

    def check_call(self, name: str) -> None:
        """Refuses a command or query that this client may not call."""

    @property
    def post(self) -> Callable[..., Coroutine[Any, Any, "asyncio.Future[Receipt]"]]:
        """Submits one message; returns a future of its receipt."""


class UnreadableError(Error):
    """A group cannot be read without ordering."""


class ResultStream:
    """Reads the results of a session in one group, from one replica after the other."""

    def __init__(
        self,
        rpc: RpcClient,
        group: GroupId,
        list_members: Callable[[GroupId], Sequence[ProcessId]],
        request: FollowResults,
        on_result: Callable[[GroupId, int, Result], None],
        on_keyed: Callable[[GroupId, KeyedResult], None],
    ) -> None:
        self._rpc = rpc
        self._group = group
        self._list_members = list_members
        self._request = request
        self._on_result = on_result
        self._on_keyed = on_keyed
        self._watched: dict[tuple[int, bytes], WatchCall] = {}
        """By session of a key and digest of the call: calls that have no result."""
        self._preferred: ProcessId | None = None
        """The leader, if a replica has named it."""
        self._lost: ProcessId | None = None
        """A leader that did not answer: a replica that names it is as good as any."""
        self._call: RpcCall | None = None
        self._ready: RpcCall | None = None
        """The connection, once the replica has answered on it: it takes further requests from then on."""
        self._connected = asyncio.Event()
        self._answers: dict[int, asyncio.Future[ReadAnswer]] = {}
        self._places = asyncio.Semaphore(WINDOW)
        self._differing: set[ProcessId] = set()
        self.checked = asyncio.Event()
        """Set when a replica has accepted the caller's class, or most of them have refused it."""
        self.difference = ""
        """Why they have."""
        self.source: ProcessId = -1
        """The replica that it reads from."""
        self.refusal = ""
        """Why the last replica did not answer."""
        self._task = asyncio.get_running_loop().create_task(self._run())

    async def _run(self) -> None:
        turn = 0
        while True:
            members = list(self._list_members(self._group))
            leader, self._preferred = self._preferred, None
            if leader in members:
                self.source = leader
            else:
                self.source = members[turn % len(members)]
                turn += 1
            try:
                self._call = await self._rpc.call(self.source, self._request)
                await self._read(self._call)
            except NoAnswerError as error:
                self._lost = self._lost if leader is None else leader
                self.refusal = str(error)
                if self.refusal.endswith(SAME_CLASS):
                    self._differing.add(self.source)
                    if 2 * len(self._differing) > len(members):
                        self.difference = self.refusal
                        self.checked.set()
            finally:
                self._hang_up()
            await asyncio.sleep(RETRY_S)

    async def _read(self, call: RpcCall) -> None:
        followed = False
        while True:
            reply = await call.reply()
            self.refusal = ""
            if isinstance(reply, ServiceResults):
                for result in reply.results:
                    self._on_result(self._group, self._request.session, result)
            elif isinstance(reply, KeyedResult):
                self._watched.pop((reply.session, reply.about), None)
                self._on_keyed(self._group, reply)
            elif isinstance(reply, ServiceAnswer):
                future = self._answers.pop(reply.answer.number, None)
                if future is not None and not future.done():
                    future.set_result(reply.answer)
            elif isinstance(reply, ServiceLeader) and reply.leader not in (self.source, self._lost):
                if not followed and reply.leader in self._list_members(self._group):
                    self._preferred, self._lost = reply.leader, None
                    return
            elif isinstance(reply, ServiceLeader):
                followed = True
            if self._ready is None:
                self._ready = call
                self._differing.clear()
                self.difference = ""
                self.checked.set()
                self._connected.set()
                for watched in self._watched.values():
                    call.send(watched)

    def watch(self, call: Call) -> None:
        """Asks for the result of a call with a key."""
        command = call.command
        watched = WatchCall(command.session, command.name, command.arguments)
        self._watched[(command.session, call.about)] = watched
        if self._ready is not None:
            self._ready.send(watched)

    async def read(self, query: Query) -> ReadAnswer:
        """Reads from the replica of the stream; raises NoAnswerError if that is lost before it answers."""
        async with self._places:
            return await self._read_once(query)

    async def _read_once(self, query: Query) -> ReadAnswer:
        while self._ready is None:
            self._connected.clear()
            await self._connected.wait()
        answer: asyncio.Future[ReadAnswer] = asyncio.get_running_loop().create_future()
        self._answers[query.number] = answer
        try:
            self._ready.send(ReadService(query))
            return await answer
        finally:
            self._answers.pop(query.number, None)

    def leave(self, reason: str = "has no result of an ordered call") -> None:
        """Asks another replica: this one owes a result for too long, or does not answer reads."""
        self.refusal = f"process {self.source} {reason}"
        self._hang_up()

    def _hang_up(self) -> None:
        call, self._call, self._ready = self._call, None, None
        if call is not None:
            call.close()
        for answer in self._answers.values():
            if not answer.done():
                answer.set_exception(NoAnswerError(self.refusal or f"process {self.source} was lost"))

    def close(self) -> None:
        self._task.cancel()
        self._hang_up()


class ServiceStub:
    """Calls the commands and queries of a service; `client.service` makes one. Every method of the service is one of
    the stub, with the same arguments without `at`, and is awaited; `timeout_s` bounds the wait, `groups` overrides the
    destinations that keys name, `consistency` (and `max_age_s`) says what a query promises, and `call_key` names a call
    that is executed once however often it is made, by this program or its next run."""

    def __init__(self, client: Poster, description: Description, rpc: RpcClient) -> None:
        self._client = client
        self._rpc = rpc
        topology = client.topology
        self._ids = {name: group for group, name in topology.names.items()}
        names = topology.names_of(topology.groups)
        self._session = CallSession(description, names, secrets.randbits(SESSION_BITS))
        self._room = asyncio.Event()
        self._ordering: set[str] = set()
        """Groups whose protocol cannot be read without ordering."""
        self._streams: dict[GroupId, ResultStream] = {}
        self._calls: dict[CommandId, list[tuple[Call, asyncio.Future[None]]]] = {}
        """Calls without all results, those that nobody waits for any more as well: what is not executed yet must not
        count as a duplicate."""

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Outcome]]:
        if name.startswith("__"):
            raise AttributeError(name)
        self._session.description.find(name)

        async def call(
            *arguments: Any,
            timeout_s: float = 30.0,
            groups: Sequence[str] | None = None,
            consistency: Consistency = "linearizable",
            max_age_s: float | None = None,
            call_key: str | None = None,
            **named: Any,
        ) -> Outcome:
            self._client.check_call(name)
            end = asyncio.get_running_loop().time() + timeout_s
            if call_key is not None:
                return await self._call(name, arguments, named, timeout_s, end, groups, call_key)
            reading = self._session.make_reading(name, arguments, named, consistency, max_age_s, groups)
            if reading is not None and (consistency == "group" or self._ordering.isdisjoint(reading.destinations)):
                outcome = await self._read(reading, consistency, timeout_s)
                if outcome is not None:
                    return outcome
            return await self._call(name, arguments, named, timeout_s, end, groups)

        return call

    async def _read(self, reading: Reading, consistency: Consistency, timeout_s: float) -> Outcome | None:
        """Reads without ordering; None if the read must be ordered."""
        if consistency == "linearizable":
            try:
                async with asyncio.timeout(min(timeout_s, SILENCE_S)):
                    answer = await self._follow(self._ids[reading.owner]).read(reading.queries[reading.owner])
            except (NoAnswerError, UsageError, TimeoutError):
                return None
            if answer.result is None:
                if answer.refusal == UNREADABLE:
                    self._order_queries(reading.owner)
                return None
            reading.results[reading.owner] = answer.result
        else:
            try:
                async with asyncio.timeout(timeout_s):
                    await asyncio.gather(*(self._read_group(reading, group) for group in reading.destinations))
            except UnreadableError:
                return None
            except TimeoutError:
                missing = [group for group in reading.destinations if group not in reading.results]
                raise ReadRefusedError(
                    f"{reading.operation.name}: {' and '.join(missing)} did not answer within {timeout_s:g} s"
                ) from None
        self._session.see(reading)
        return reading.make_outcome()

    def _order_queries(self, group: str) -> None:
        """Orders queries of a group from now on that another protocol would read from a replica."""
        if group not in self._ordering:
            self._ordering.add(group)
            log.warning(
                "linearizable and stale queries of group %s cost as much as commands: %s. consistency = 'group' is read"
                " from a replica",
                group,
                UNREADABLE,
            )

    async def _read_group(self, reading: Reading, group: str) -> None:
        """Reads at one replica after the other, until one answers or all that can be reached have refused."""
        stream, refusals = self._follow(self._ids[group]), {}
        while group not in reading.results:
            try:
                async with asyncio.timeout(READ_SILENCE_S):
                    answer = await stream.read(reading.queries[group])
            except TimeoutError:
                stream.leave("does not answer a read")
                continue
            except NoAnswerError:
                continue
            if answer.result is not None:
                reading.results[group] = answer.result
                return
            if answer.refusal == UNREADABLE:
                self._order_queries(group)
                raise UnreadableError
            is_repeated = stream.source in refusals
            refusals[stream.source] = answer.refusal
            if is_repeated or refusals.keys() >= set(self._client.topology.members(self._ids[group])):
                reasons = "; ".join(f"process {process}: {refusal}" for process, refusal in sorted(refusals.items()))
                raise ReadRefusedError(f"{reading.operation.name}: no replica of {group} can answer: {reasons}")
            stream.leave("cannot answer a read")

    async def _call(
        self,
        name: str,
        arguments: Sequence[Any],
        named: dict[str, Any],
        timeout_s: float,
        end: float,
        groups: Sequence[str] | None,
        key: str | None = None,
    ) -> Outcome:
        """Calls, and waits until a time of the event loop: so long after the call was made."""
        await self._wait_for_room(name, timeout_s, end)
        call = self._session.make(name, arguments, named, time.time_ns(), groups, key)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._calls.setdefault(call.command.id, []).append((call, done))
        try:
            await self._check_class(call, end)
            receipt = await self._client.post(call.destinations, call.payload)
        except BaseException:
            self._forget(call)  # it was never sent
            raise
        for group in call.destinations:
            stream = self._follow(self._ids[group])
            if key is not None:
                stream.watch(call)
        try:
            async with asyncio.timeout_at(end):
                await receipt
                while not done.done():
                    await asyncio.wait((done,), timeout=SILENCE_S)
                    for group in () if done.done() else call.missing:
                        self._streams[self._ids[group]].leave()
        except CannotTellError:
            raise
        except TimeoutError:
            has_receipt = receipt.done() and not receipt.cancelled()  # waiting for it in vain cancels it
            message = receipt.result().message if has_receipt else None
            raise OutcomeUnknownError(self._describe_unanswered(call, timeout_s, message)) from None
        return call.make_outcome()

    async def _check_class(self, call: Call, end: float) -> None:
        """Refuses a call of another class than that of the replicas, before anything is ordered. A group that does not
        answer soon is not waited for: its replicas refuse the command."""
        streams = [self._follow(self._ids[group]) for group in call.destinations]
        for stream in streams:
            if not stream.checked.is_set():
                with suppress(TimeoutError):
                    async with asyncio.timeout_at(min(end, asyncio.get_running_loop().time() + SILENCE_S)):
                        await stream.checked.wait()
            if stream.difference:
                raise UsageError(f"{call.operation.name}: {stream.difference}")

    async def _wait_for_room(self, name: str, timeout_s: float, end: float) -> None:
        """Waits while the session has as many open calls as it may: this is the backpressure."""
        try:
            async with asyncio.timeout_at(end):
                while not self._session.has_room:
                    self._room.clear()
                    await self._room.wait()
        except TimeoutError:
            raise OutcomeUnknownError(
                f"{name} was not called: {len(self._calls)} earlier calls of this stub have no results after"
                f" {timeout_s:g} s; at most {WINDOW} may be open"
            ) from None

    def _describe_unanswered(self, call: Call, timeout_s: float, message: MessageId | None) -> str:
        if message is None:
            return (
                f"{call.operation.name} to {' and '.join(call.destinations)} was not ordered within {timeout_s:g} s; it"
                f" may or may not be executed"
            )
        reasons = [self._streams[self._ids[group]].refusal for group in call.missing]
        return "; ".join(
            [
                f"{call.operation.name} is ordered (message {message}, for amcast explain), and"
                f" {' and '.join(call.missing)} gave no result within {timeout_s:g} s",
                "it will be executed",
                *filter(None, reasons),
            ]
        )

    def _follow(self, group: GroupId) -> ResultStream:
        if group not in self._streams:
            request = FollowResults(self._session.session, self._session.description.digest)
            self._streams[group] = ResultStream(
                self._rpc,
                group,
                lambda group: self._client.topology.members(group),
                request,
                self._accept,
                self._accept_keyed,
            )
        return self._streams[group]

    def _accept_keyed(self, group: GroupId, reply: KeyedResult) -> None:
        for call, done in list(self._calls.get((reply.session, 1), ())):
            if call.about == reply.about:
                call.is_other |= reply.result is None
                self._add_result(group, call, done, reply.result)

    def _accept(self, group: GroupId, session: int, result: Result) -> None:
        for call, done in list(self._calls.get((session, result.request), ())):
            self._add_result(group, call, done, result)

    def _add_result(self, group: GroupId, call: Call, done: "asyncio.Future[None]", result: Result | None) -> None:
        if call.is_other:
            self._forget(call)
            if not done.done():
                done.set_result(None)
        elif result is not None:
            call.results[self._client.topology.names[group]] = result
            if not call.missing:
                self._session.see(call)
                self._forget(call)
                if not done.done():
                    done.set_result(None)

    def _forget(self, call: Call) -> None:
        left = [one for one in self._calls.pop(call.command.id, ()) if one[0] is not call]
        if left:
            self._calls[call.command.id] = left
        self._session.close(call)
        self._room.set()

    def close(self) -> None:
        """Ends the streams of results; the client calls it when it closes."""
        for stream in self._streams.values():
            stream.close()
        self._streams.clear()
