"""Client side of the RPC of replicas (`live/rpc/server.py`): one request per connection, with one reply or several.

Every failure on the way (no listener, closed connection, time-out, malformed reply) is a `NoAnswerError`, after which
the caller may try another replica.
"""

import asyncio
from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from msgspec import structs

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.reconfiguration import decode_topology
from amcast.kernel.topology import Topology
from amcast.live.errors import BadFrameError, RefusedError
from amcast.live.limits import GREETING_BYTES, KIB, MIB, Limits
from amcast.live.rpc.messages import (
    AnyReply,
    AnyRequest,
    CurrentTopology,
    FetchState,
    GetProgress,
    GetTopology,
    Progress,
    RpcEnvelope,
    StateChunk,
    StateHeader,
    StatePending,
    decode_reply,
    encode_request,
)
from amcast.live.security.tls import parse_subject
from amcast.live.storage.state_files import DamagedStateError, IncompleteState, StateFile, check_state
from amcast.live.wire import frames
from amcast.live.wire.frames import HEAD, HEAD_BYTES
from amcast.live.wire.transport import PLAIN, TransportOptions

Address = tuple[str, int]
CONNECT_S: Final = 3.0
REFUSED: Final = "connection refused"
"""The reason of a `NoAnswerError` when no process listens at the address."""
READ_BYTES: Final = 256 * KIB
"""Bytes that are read ahead of the consumer of replies; TCP holds back the rest."""
BLOCK_BYTES: Final = 1 * MIB
"""Bytes of a state that are written to disk at once."""
MAX_STATE_BYTES: Final = 1 << 40
"""A larger application state is refused."""


class NoAnswerError(CannotTellError):
    """A replica did not answer; another one may."""


class OlderVersionError(NoAnswerError):
    """A replica refused a request, and speaks an older wire version."""

    def __init__(self, sentence: str, version: int) -> None:
        super().__init__(sentence)
        self.version = version


class RpcCall:
    """The client's end of one RPC connection."""

    def __init__(
        self,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        peer: str,
        limits: Limits,
        framing: frames.Framing,
        envelope: RpcEnvelope,
    ) -> None:
        self._framing = framing
        self._envelope = envelope
        self._reader = reader
        self._writer = writer
        self._peer = peer
        self._limits = limits

    def send(self, request: AnyRequest) -> None:
        """Sends another request on this connection."""
        frame = encode_request(structs.replace(self._envelope, request=request), self._framing)
        if len(frame) > GREETING_BYTES:
            raise UsageError(f"a request of {len(frame)} bytes; expected {GREETING_BYTES} at most")
        _write(self._writer, frame)

    async def reply(self, timeout_s: float | None = None) -> AnyReply:
        """Reads the next reply."""
        try:
            async with asyncio.timeout(timeout_s or self._limits.heartbeat_timeout_s):
                return await self._read()
        except (OSError, TimeoutError, EOFError, BadFrameError) as error:
            reason = str(error) or type(error).__name__
            raise NoAnswerError(f"{self._peer} stopped answering: {reason}") from None

    async def _read(self) -> AnyReply:
        framing = self._framing
        head = await self._reader.readexactly(HEAD_BYTES)
        length, version, kind = HEAD.unpack(head)
        if not 2 <= length <= self._limits.frame_bytes:
            raise BadFrameError(f"a frame of {length} bytes; expected 2 to {self._limits.frame_bytes}")
        if kind == frames.REFUSE:
            refusal = frames.read_refusal(await self._reader.readexactly(length - 2))
            sentence = f"{self._peer} refuses: {refusal.reason}"
            if refusal.version < framing.version:
                raise OlderVersionError(sentence, refusal.version)
            raise NoAnswerError(sentence)
        if kind != frames.RPC_REPLY or version != framing.version:
            raise BadFrameError(
                f"a frame of kind {kind} and version {version}; expected {frames.RPC_REPLY} and {framing.version}"
            )
        frame = head
        if framing.is_checked:
            frame += await self._reader.readexactly(2)
            frames.check_guard(frame, length)
        frame += await self._reader.readexactly(length + 4 - len(frame))
        return decode_reply(framing.open(frame))

    def close(self) -> None:
        """Closes the connection."""
        self._writer.transport.abort()

    def __del__(self) -> None:
        """Closes a connection whose subscription was abandoned in the middle of a loop."""
        if not self._writer.transport.is_closing():
            with suppress(RuntimeError):
                self.close()


class RpcClient:
    """Sends requests to the replicas of one cluster."""

    def __init__(
        self,
        cluster: str,
        addresses: Mapping[ProcessId, Address],
        limits: Limits | None = None,
        transport: TransportOptions = PLAIN,
    ) -> None:
        self.limits = limits or Limits()
        self._cluster = cluster
        self._addresses = dict(addresses)
        self._transport = transport
        self._older: dict[ProcessId, int] = {}
        """The versions of replicas that refused the newest one."""

    async def call(self, process: ProcessId, request: AnyRequest) -> RpcCall:
        """Sends a request to one replica; the caller reads the replies one by one."""
        if process not in self._addresses:
            raise NoAnswerError(
                f"the address of process {process} is unknown: neither cluster.toml nor a change of members names it"
            )
        host, port = self._addresses[process]
        peer = f"process {process} at {host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_S):
                secured = self._transport.secured
                reader, writer = await asyncio.open_connection(host, port, ssl=secured, limit=READ_BYTES)
        except (OSError, TimeoutError) as error:
            raise NoAnswerError(f"{peer} cannot be reached: {_reason(error)}") from None
        self._check_server(process, peer, writer)
        version = self._older.get(process, self._transport.versions[1])
        framing = frames.find_framing(version, self._transport.security is None)
        envelope = RpcEnvelope(version, self._cluster, process, request)
        _write(writer, encode_request(envelope, framing))
        return RpcCall(reader, writer, peer, self.limits, framing, envelope)

    def _check_server(self, process: ProcessId, peer: str, writer: asyncio.StreamWriter) -> None:
        """Closes the connection if the server shows a certificate of another process."""
        security = self._transport.security
        if security is None:
            return
        try:
            security.permissions.check(parse_subject(writer.get_extra_info("peercert")), process)
        except RefusedError as refused:
            writer.transport.abort()
            raise NoAnswerError(f"{peer} is another process: {refused}") from None

    async def request(self, process: ProcessId, request: AnyRequest) -> AnyReply:
        """Sends a request and returns its only reply; asks again in an older version if the replica speaks that."""
        try:
            return await self._request_once(process, request)
        except OlderVersionError as refused:
            if process in self._older or refused.version < self._transport.versions[0]:
                raise
            self._older[process] = refused.version
        try:
            return await self._request_once(process, request)
        except NoAnswerError:
            del self._older[process]
            raise

    async def _request_once(self, process: ProcessId, request: AnyRequest) -> AnyReply:
        call = await self.call(process, request)
        try:
            return await call.reply()
        finally:
            call.close()

    def follow_topology(self, topology: Topology) -> None:
        """Adds the addresses and names of the members of a new topology."""
        for process, (_, address) in topology.endpoints.items():
            host, _, port = address.rpartition(":")
            if topology.group_of(process) is not None and port.isdigit():
                self._addresses.setdefault(process, (host.strip("[]"), int(port)))
        if self._transport.security is not None:
            self._transport.security.permissions.follow_topology(topology)

    async def fetch_topology(self, processes: Iterable[ProcessId] | None = None) -> Topology | None:
        """The newest topology that any of these replicas (by default: all) knows; None if none answers."""
        newest: Topology | None = None
        for answer in (
            await self.request_all(self._addresses if processes is None else processes, GetTopology())
        ).values():
            if isinstance(answer, CurrentTopology):
                try:
                    topology = decode_topology(answer.topology)
                except UsageError:
                    continue
                if newest is None or topology.configuration > newest.configuration:
                    newest = topology
        return newest

    async def notify(self, process: ProcessId, request: AnyRequest) -> None:
        """Sends a request without a reply; returns when the server has closed the connection."""
        call = await self.call(process, request)
        try:
            await call.reply()
        except NoAnswerError:
            pass
        finally:
            call.close()

    async def fetch_state(
        self, processes: Sequence[ProcessId], position: int, folder: Path, syncs: bool = False
    ) -> StateFile:
        """Fetches an application's state after at least `position` deliveries into a folder, from the first replica
        that has one."""
        failures: list[str] = []
        for process in processes:
            try:
                return await self._fetch_state_from(process, position, folder, syncs)
            except (NoAnswerError, DamagedStateError) as error:
                failures.append(str(error))
        raise NoAnswerError("; ".join(failures) or "there is no other member")

    async def _fetch_state_from(self, process: ProcessId, position: int, folder: Path, syncs: bool) -> StateFile:
        call = await self.call(process, FetchState(position))
        try:
            header = await call.reply()
            while isinstance(header, StatePending):
                header = await call.reply()
            if (
                not isinstance(header, StateHeader)
                or header.position < position
                or not 0 <= header.bytes <= MAX_STATE_BYTES
            ):
                raise NoAnswerError(
                    f"process {process} replies with {header!r}; expected a StateHeader at position {position} or later"
                )
            return await self._receive_file(call, process, header, folder, syncs)
        finally:
            call.close()

    async def _receive_file(
        self, call: RpcCall, process: ProcessId, header: StateHeader, folder: Path, syncs: bool
    ) -> StateFile:
        """Receives a state file, and checks it."""
        file = IncompleteState(folder, header.position, syncs)
        try:
            async for block in _read_chunks(call, process, header.bytes):
                await asyncio.to_thread(file.write, block)
            await asyncio.to_thread(check_state, file.path, header.position)
            return await asyncio.to_thread(file.complete)
        except BaseException:
            file.abandon()
            raise

    async def fetch_progress(
        self, processes: Iterable[ProcessId], within_s: float | None = None
    ) -> dict[ProcessId, Progress]:
        """The progress of these replicas; those that do not answer (within `within_s`) are left out."""
        replies = await self.request_all(processes, GetProgress(), within_s)
        return {process: reply for process, reply in replies.items() if isinstance(reply, Progress)}

    async def request_all(
        self, processes: Iterable[ProcessId], request: AnyRequest, within_s: float | None = None
    ) -> dict[ProcessId, AnyReply | None]:
        """The replies of several replicas to one request; None of those that do not answer (within `within_s`)."""

        async def request_one(process: ProcessId) -> tuple[ProcessId, AnyReply | None]:
            try:
                async with asyncio.timeout(within_s):
                    return process, await self.request(process, request)
            except (NoAnswerError, TimeoutError):
                return process, None

        return dict(await asyncio.gather(*(request_one(process) for process in processes)))


async def _read_chunks(call: RpcCall, process: ProcessId, size: int) -> AsyncIterator[bytes]:
    """The bytes of StateChunks, gathered into larger blocks."""
    received = 0
    block = bytearray()
    while received < size:
        chunk = await call.reply()
        if not isinstance(chunk, StateChunk) or not chunk.data or received + len(chunk.data) > size:
            raise NoAnswerError(f"process {process} sent {received} of {size} bytes of its state, then another reply")
        received += len(chunk.data)
        block += chunk.data
        if len(block) >= BLOCK_BYTES or received == size:
            yield bytes(block)
            block.clear()


def _reason(error: OSError | TimeoutError) -> str:
    return REFUSED if isinstance(error, ConnectionRefusedError) else str(error) or "timed out"


def _write(writer: asyncio.StreamWriter, frame: bytes) -> None:
    """Writes a frame; the next reply fails if the connection is closed. uvloop raises an error for such a write."""
    if not writer.transport.is_closing():
        writer.write(frame)
