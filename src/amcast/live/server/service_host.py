"""A service on a replica: it executes what the replica delivers, multicasts the values that it owes, and gives results.

    Application ── deliveries, snapshots ──> Executor ── owed values ──> Client ── multicast ──> all destinations
                                                └── results ──> ResultQueue ── RPC FollowResults ──> callers

The executor (`services/executor.py`) decides everything; this module connects it. Values that other groups wait for are
multicast by the leader at once, and by every other replica if they are still owed after RESEND_S: the leader may have
died before it sent them, and a second message with the same value changes nothing. When the other groups have ordered a
value, it is multicast to the own group as well, with others in one batch: then no replica owes it any more.
"""

import asyncio
import logging
import shutil
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import ProcessId
from amcast.live.client.client import Client
from amcast.live.client_batch import Delivery
from amcast.live.limits import KIB, MIB, Limits
from amcast.live.rpc.messages import GetNodeStatus, NodeStatus
from amcast.live.server.forked_state import ForkedState
from amcast.live.server.replica_runtime import ReplicaRuntime
from amcast.live.server.service_reads import ReplicaReads
from amcast.live.storage.service_files import ServiceFiles
from amcast.live.storage.state_files import State
from amcast.services.declaration import Description
from amcast.services.errors import ServiceFailedError
from amcast.services.executor import MAX_RESULT_BYTES, MAX_VALUE_BYTES, Executor, PreparedState
from amcast.services.messages import KEY_BIT, OwedValue, Query, ReadAnswer, Result, Success, encode_payload

log = logging.getLogger("amcast.live")

RESEND_S: Final = 1.0
"""After so long a replica that does not lead multicasts a value that is still owed."""
MARK_S: Final = 0.1
"""How often the own group is told of the values that the others have: nobody waits for that."""
RECONNECT_S: Final = 0.5
FORKED_BYTES: Final = 4 * MIB
"""A state of this size is taken from a copy of the process: encoding it would hold up the event loop."""
REPLY_BYTES: Final = 1 * MIB
"""Results of about this size, and the last one, go into one reply."""
PATIENCE_S: Final = 2.0
"""A command that waits for longer for another group is reported."""


def _draw_pieces(pieces: Iterator[bytes], limit: int) -> list[bytes] | None:
    """All pieces; None if they are longer than a limit."""
    drawn: list[bytes] = []
    size = 0
    for piece in pieces:
        drawn.append(piece)
        size += len(piece)
        if size > limit:
            return None
    return drawn


def _size_of(result: Result) -> int:
    outcome = result.outcome
    return len(outcome.data) if isinstance(outcome, Success) else 4 * len(outcome.text)


def check_limits(limits: Limits) -> None:
    """Refuses limits under which values of a `yield` or results could not be sent."""
    if limits.message_bytes < MAX_VALUE_BYTES + KIB:
        raise UsageError(
            f"limits.message_bytes = {limits.message_bytes}; expected at least {MAX_VALUE_BYTES + KIB} at a node with a"
            f" service, whose commands exchange values of {MAX_VALUE_BYTES} bytes at most"
        )
    needed = REPLY_BYTES + 2 * MAX_RESULT_BYTES
    if limits.frame_bytes < needed:
        raise UsageError(
            f"limits.frame_bytes = {limits.frame_bytes}; expected at least {needed} at a node with a service, whose"
            f" results have {MAX_RESULT_BYTES} bytes at most"
        )


class ResultQueue:
    """The results of one session that its caller has not read on this connection."""

    def __init__(self, host: "ServiceHost", session: int) -> None:
        self._host = host
        self._session = session
        self._waiting: deque[int] = deque()
        """Requests whose results were not read, in the order of execution."""
        self._changed = asyncio.Event()
        self.begin()

    def begin(self) -> None:
        """Has all results that are kept read, again or for the first time."""
        self._waiting = deque(result.request for result in self._host.executor.results_of(self._session))
        self._changed.set()

    def add(self, request: int) -> None:
        """A request has its result now."""
        self._waiting.append(request)
        self._changed.set()

    async def read(self, timeout_s: float) -> list[Result]:
        """The results that were not read before; waits for the next one, or for so long."""
        results = self._take()
        if not results:
            self._changed.clear()
            with suppress(TimeoutError):
                async with asyncio.timeout(timeout_s):
                    await self._changed.wait()
            results = self._take()
        return results

    def _take(self) -> list[Result]:
        results: list[Result] = []
        size = 0
        while self._waiting and size <= REPLY_BYTES:
            result = self._host.executor.result(self._session, self._waiting.popleft())
            if result is not None:
                size += _size_of(result)
                results.append(result)
        return results

    def close(self) -> None:
        """Ends following."""
        self._host.stop_following(self._session, self)


class ServiceHost:
    """Runs the service of one replica, over all incarnations of it in one program."""

    def __init__(self, description: Description, group: str, groups: tuple[str, ...], connect: Callable[[], Client]):
        """`connect` makes the client that multicasts values to other groups."""
        self.executor = Executor(description, group, groups)
        self.digest = description.digest
        self._connect = connect
        self._files: ServiceFiles | None = None
        """Of a service that keeps its state in files of its own."""
        self.opened = 0
        self.save_deliveries: int | None = getattr(description.service, "save_deliveries", None)
        self._has_failed = False
        """A command, or the saving of files, raised: the service may have half of a command, and is not saved."""
        self._reads = ReplicaReads(self.executor)
        self._followers: dict[int, list[ResultQueue]] = {}
        self._watchers: dict[int, list[Callable[[Result], None]]] = {}
        """By session of a key: who waits for the result of that call."""
        self._runtime: ReplicaRuntime | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._is_large = False
        """The state has been larger than FORKED_BYTES."""
        self._owes = asyncio.Event()
        self._sending: asyncio.Task[None] | None = None
        self._giving: set[asyncio.Task[None]] = set()
        self._comparing: asyncio.Task[None] | None = None
        self._waiting = ("", 0.0)
        """The command that waited when it was last asked, and since when."""

    # Called by the application

    def deliver(self, delivery: Delivery) -> None:
        """Executes one delivery."""
        executor = self.executor
        try:
            executor.deliver(delivery.position, delivery.destinations, delivery.payload)
        except BaseException:
            self._has_failed = True
            raise
        for session, request in executor.finished:
            for follower in self._followers.get(session, ()):
                follower.add(request)
            if session & KEY_BIT:
                self._give_keyed(session, request)
        executor.finished.clear()
        self._reads.reach(delivery.position + 1)
        if executor.owed:
            self._owes.set()

    def take(self) -> Iterable[bytes]:
        """The state in pieces: a large one from a copy of the process, while deliveries go on; that of a service with
        files from these."""
        if self._files is not None:
            return self.executor.snapshot_pieces()
        if not self._is_large:
            pieces = _draw_pieces(self.executor.snapshot_pieces(), FORKED_BYTES)
            if pieces is not None:
                return pieces
            self._is_large = True
        return ForkedState(self.executor.snapshot_pieces)

    def install(self, state: State, position: int) -> None:
        """Replaces the state by a snapshot. Pieces are decoded in the caller's thread, and adopted on the event loop,
        between two reads."""
        files = self._files
        folder = None if files is None else files.begin()
        prepared = self.executor.prepare(state, position, folder)
        old = None if files is None or folder is None else files.commit(folder)
        self._adopt_on_loop(prepared, position)
        if old is not None and old.exists():
            shutil.rmtree(old)

    def _adopt_on_loop(self, prepared: PreparedState, position: int) -> None:
        if self._loop is None or self._is_on_loop():
            self._adopt(prepared, position)
            return
        adopted: Future[None] = Future()

        def adopt() -> None:
            try:
                self._adopt(prepared, position)
                adopted.set_result(None)
            except Exception as error:
                adopted.set_exception(error)

        self._loop.call_soon_threadsafe(adopt)
        adopted.result()

    def _is_on_loop(self) -> bool:
        try:
            return asyncio.get_running_loop() is self._loop
        except RuntimeError:
            return False

    def _adopt(self, prepared: PreparedState, position: int) -> None:
        self.executor.adopt(prepared, position)
        self.executor.finished.clear()
        for followers in self._followers.values():
            for follower in followers:
                follower.begin()
        for session in list(self._watchers):
            self._give_keyed(session, 1)
        self._reads.reach(position)
        self._owes.set()

    # Files of the service

    @property
    def files(self) -> "ServiceHost | None":
        """This host, if its service keeps its state in files."""
        return self if self._files is not None else None

    def open_files(self, folder: Path, keeps: bool) -> None:
        """Opens the files of a service that has some; `keeps`: whether they outlive the program."""
        if self.executor.keeps_files:
            self._files = ServiceFiles(folder, keeps)
            self.executor.open(self._files.folder)
            self.opened = self.executor.position

    def save(self, position: int) -> int:
        """Has the service save its files, which contain everything before a position; returns the bytes of what it
        keeps for the executor."""
        try:
            return self.executor.save(position)
        except BaseException:
            self._has_failed = True
            raise

    def close_files(self, position: int) -> None:
        """Saves and closes the files at the end. Without the save a restart executes again what came after the last
        one."""
        if self._files is None:
            return
        try:
            if not self._has_failed:
                self.save(max(position, self.executor.position))
            self.executor.close()
        except Exception as error:
            log.warning("the files of the service are not saved, and the log repeats deliveries: %s", error)

    # Called by the RPC server

    def read(self, query: Query, answer: Callable[[ReadAnswer], None]) -> Callable[[], None]:
        """Begins a read; returns what ends it if nobody waits any more."""
        return self._reads.begin(query, answer)

    def follow(self, session: int) -> ResultQueue:
        """Begins to follow the results of a session."""
        follower = ResultQueue(self, session)
        self._followers.setdefault(session, []).append(follower)
        return follower

    def watch(self, session: int, give: Callable[[Result], None]) -> Callable[[], None]:
        """Calls `give` with the result of a call with a key, when there is one; returns what ends that."""
        watchers = self._watchers.setdefault(session, [])
        watchers.append(give)
        self._give_keyed(session, 1)

        def end() -> None:
            if give in watchers:
                watchers.remove(give)
            if not watchers and self._watchers.get(session) is watchers:
                del self._watchers[session]

        return end

    def _give_keyed(self, session: int, request: int) -> None:
        result = self.executor.result(session, request)
        if result is not None:
            for give in self._watchers.pop(session, ()):
                give(result)

    def stop_following(self, session: int, follower: ResultQueue) -> None:
        """Ends what `follow` began."""
        followers = self._followers[session]
        followers.remove(follower)
        if not followers:
            del self._followers[session]

    def leader(self) -> ProcessId:
        """The leader of the replica's group, as far as it knows."""
        assert self._runtime is not None
        leader = self._runtime.host.process.status().get("leader", -1)
        return leader if isinstance(leader, int) else -1

    def describe_waiting(self) -> str:
        """What a command has waited for, for longer than PATIENCE_S; "" if none does."""
        waiting = self.executor.describe_waiting()
        key = waiting.partition(";")[0]
        if key != self._waiting[0]:
            self._waiting = key, time.monotonic()
        return waiting if waiting and time.monotonic() - self._waiting[1] >= PATIENCE_S else ""

    def explain(self, position: int) -> str:
        """Why the delivery at a position is not executed; "" if it is."""
        first, waiting = self.executor.first_unfinished, self.executor.describe_waiting()
        if first is None or position < first:
            return ""
        return waiting if position == first else f"it is behind a command of this group: {waiting}"

    # Values for other groups

    def start(self, runtime: ReplicaRuntime) -> None:
        """Begins to multicast owed values, once the replica has caught up."""
        self._runtime, self._loop = runtime, asyncio.get_running_loop()
        self._reads.start(runtime)
        self._sending = self._loop.create_task(self._run(runtime))
        self._comparing = self._loop.create_task(self._compare(runtime))

    async def close(self) -> None:
        """Stops multicasting values, and ends reads."""
        await self._reads.close()
        if self._comparing is not None:
            self._comparing.cancel()
            await asyncio.gather(self._comparing, return_exceptions=True)
        task, self._sending = self._sending, None
        if task is not None:
            for one in (task, *self._giving):
                one.cancel()
            await asyncio.gather(task, *self._giving, return_exceptions=True)

    async def _run(self, runtime: ReplicaRuntime) -> None:
        await runtime.caught_up.wait()
        watching = asyncio.get_running_loop().create_task(self._watch())
        try:
            await self._send_all(runtime)
        finally:
            watching.cancel()

    async def _compare(self, runtime: ReplicaRuntime) -> None:
        """Compares the class of the service with that of every other node, when the node first answers. Replicas with
        different classes would have different states: this one stops, unless most of those that answer have its
        class."""
        rpc, host, logged = runtime.peers, runtime.host, ""
        assert rpc is not None, "a replica has started before its service"
        digests = {host.me: self.digest}
        while unknown := [process for process in host.topology.servers if process not in digests]:
            replies = await rpc.request_all(unknown, GetNodeStatus(), PATIENCE_S)
            for process, reply in replies.items():
                if isinstance(reply, NodeStatus):
                    digests[process] = msgspec.json.decode(reply.json).get("service", "")
            differing = {process: digest for process, digest in digests.items() if digest != self.digest}
            if differing:
                process, digest = next(iter(differing.items()))
                runs = f"another service (digest {digest})" if digest else "no service"
                sentence = (
                    f"process {process} runs {runs}; expected {self.executor.description.name} with digest"
                    f" {self.digest}, that of this node: the same class at every node"
                )
                if 2 * len(differing) >= len(digests):
                    host.fail(ServiceFailedError(sentence))
                    return
                if sentence != logged:
                    logged = sentence
                    log.error("%s", sentence)
            await asyncio.sleep(PATIENCE_S)

    async def _watch(self) -> None:
        """Logs that a command waits for another group for long, once for each command."""
        logged = ""
        while True:
            await asyncio.sleep(PATIENCE_S / 2)
            waiting = self.describe_waiting()
            if waiting and waiting.partition(";")[0] != logged:
                logged = waiting.partition(";")[0]
                log.warning("the service waits for another group: %s", waiting)

    async def _send_all(self, runtime: ReplicaRuntime) -> None:
        while True:
            await self._owes.wait()
            try:
                async with self._connect() as client:
                    await self._send_owed(runtime, client)
            except CannotTellError as error:
                log.warning("values of the service cannot be multicast, and other groups wait for them: %s", error)
                await asyncio.sleep(RECONNECT_S)

    async def _give(self, client: Client, owed: OwedValue) -> None:
        """Multicasts a value to the other groups, and says so in its own when they have it."""
        payload, value = encode_payload(owed.value), owed.value
        try:
            await (await client.post(owed.destinations, payload))
            await asyncio.sleep(MARK_S - asyncio.get_running_loop().time() % MARK_S)  # those of all values at once
            if (value.session, value.request, value.step) in self.executor.owed:
                await client.post((value.group,), payload)
        except CannotTellError:
            pass  # the client was closed: whoever still owes the value sends it again
        except UsageError as error:
            log.error(
                "a value of the service is refused, and %s wait for it: %s", " and ".join(owed.destinations), error
            )

    async def _send_owed(self, runtime: ReplicaRuntime, client: Client) -> None:
        """Multicasts what is owed, each value once over this client: its session repeats requests by itself."""
        loop = asyncio.get_running_loop()
        due: dict[tuple[int, int, int], float] = {}
        """When this replica sends a value that nobody else has sent."""
        sent: dict[tuple[int, int, int], OwedValue] = {}
        while True:
            owed = self.executor.owed
            sent = {key: value for key, value in sent.items() if owed.get(key) is value}
            due = {key: due.get(key, loop.time() + RESEND_S) for key in owed}
            leads = self.leader() == runtime.host.me
            for key in [key for key in owed if key not in sent and (leads or due[key] <= loop.time())]:
                sent[key] = owed[key]
                task = loop.create_task(self._give(client, owed[key]))
                self._giving.add(task)
                task.add_done_callback(self._giving.discard)
            if sent.keys() >= self.executor.owed.keys():
                self._owes.clear()
                await self._owes.wait()
            else:
                with suppress(TimeoutError):
                    async with asyncio.timeout(RESEND_S / 4):
                        self._owes.clear()
                        await self._owes.wait()
