"""Asking a replica's desk (`live/rpc/server.py`): one question per connection, one answer or a row of them.

Whatever goes wrong on the way (nobody there, hung up, silence, nonsense) is `Unanswered`: ask another replica.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.reconfiguration import decode_topology
from amcast.kernel.topology import Topology
from amcast.live.errors import BadFrameError, RefusedError
from amcast.live.limits import KIB, MIB, Limits
from amcast.live.rpc.server import (
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
    decode_reply,
    encode_request,
)
from amcast.live.security.tls import parse_subject
from amcast.live.wire import frames as codec
from amcast.live.wire.frames import HEAD, HEAD_BYTES, WIRE_VERSION
from amcast.live.wire.transport import PLAIN, TransportOptions

Address = tuple[str, int]
CONNECT_S: Final = 3.0
REFUSED: Final = "connection refused"
"""Nobody listens there."""
READ_BYTES: Final = 256 * KIB
"""What is read ahead of who reads an answer: TCP holds back the rest."""


MAX_STATE_BYTES: Final = 4096 * MIB
"""A larger state of an application is not taken over."""


class NoAnswerError(CannotTellError):
    """This replica did not answer; another one may."""


class RpcCall:
    """The asking end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: str, limits: Limits) -> None:
        self._reader = reader
        self._writer = writer
        self._who = who
        self._limits = limits

    async def reply(self, timeout_s: float | None = None) -> AnyReply:
        """The next answer."""
        try:
            async with asyncio.timeout(timeout_s or self._limits.heartbeat_timeout_s):
                return await self._read()
        except (OSError, TimeoutError, EOFError, BadFrameError) as error:
            why = str(error) or type(error).__name__
            raise NoAnswerError(f"{self._who} stopped answering: {why}") from None

    async def _read(self) -> AnyReply:
        length, _, kind = HEAD.unpack(await self._reader.readexactly(HEAD_BYTES))
        if not 2 <= length <= self._limits.frame_bytes:
            raise BadFrameError(f"a frame of {length} bytes; expected 2 to {self._limits.frame_bytes}")
        payload = await self._reader.readexactly(length - 2)
        if kind == codec.REFUSE:
            raise NoAnswerError(f"{self._who} refuses: {codec.read_refusal(payload).reason}")
        if kind != codec.RPC_REPLY:
            raise BadFrameError(f"a frame of kind {kind}; expected {codec.RPC_REPLY}")
        return decode_reply(payload)

    def close(self) -> None:
        """Hang up."""
        self._writer.transport.abort()

    def __del__(self) -> None:
        """Whoever leaves a subscription in the middle of a loop need not close it."""
        if not self._writer.transport.is_closing():
            with suppress(RuntimeError):
                self.close()


class RpcClient:
    """Asks the replicas of one cluster."""

    def __init__(
        self,
        cluster: str,
        addresses: Mapping[ProcessId, Address],
        limits: Limits | None = None,
        wiring: TransportOptions = PLAIN,
    ) -> None:
        self.limits = limits or Limits()
        self._cluster = cluster
        self._addresses = dict(addresses)
        self._wiring = wiring

    async def call(self, process: ProcessId, question: AnyRequest) -> RpcCall:
        """Put a question to one replica; the answers come one by one."""
        if process not in self._addresses:
            raise NoAnswerError(
                f"process {process} is nowhere: no configuration and no change of members tells its address"
            )
        host, port = self._addresses[process]
        who = f"process {process} at {host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_S):
                secured = self._wiring.secured
                reader, writer = await asyncio.open_connection(host, port, ssl=secured, limit=READ_BYTES)
        except (OSError, TimeoutError) as error:
            raise NoAnswerError(f"{who} cannot be reached: {_reason(error)}") from None
        self._check_server(process, who, writer)
        writer.write(encode_request(RpcEnvelope(WIRE_VERSION, self._cluster, process, question)))
        return RpcCall(reader, writer, who, self.limits)

    def _check_server(self, process: ProcessId, who: str, writer: asyncio.StreamWriter) -> None:
        """Hang up on who answers at a node's address with another's certificate."""
        security = self._wiring.security
        if security is None:
            return
        try:
            security.permissions.check(parse_subject(writer.get_extra_info("peercert")), process)
        except RefusedError as refused:
            writer.transport.abort()
            raise NoAnswerError(f"{who} is somebody else: {refused}") from None

    async def request(self, process: ProcessId, question: AnyRequest) -> AnyReply:
        """A question with one answer."""
        conversation = await self.call(process, question)
        try:
            return await conversation.reply()
        finally:
            conversation.close()

    def follow_topology(self, topology: Topology) -> None:
        """The members have changed: ask those who are there now."""
        for process, (_, address) in topology.endpoints.items():
            host, _, port = address.rpartition(":")
            if topology.group_of(process) is not None and port.isdigit():
                self._addresses.setdefault(process, (host.strip("[]"), int(port)))
        if self._wiring.security is not None:
            self._wiring.security.permissions.follow_topology(topology)

    async def fetch_topology(self, processes: Iterable[ProcessId] | None = None) -> Topology | None:
        """The newest topology that any of these replicas knows, or of all; None if none answers."""
        newest: Topology | None = None
        for answer in (
            await self._request_all(self._addresses if processes is None else processes, GetTopology())
        ).values():
            if isinstance(answer, CurrentTopology):
                try:
                    topology = decode_topology(answer.topology)
                except UsageError:
                    continue
                if newest is None or topology.configuration > newest.configuration:
                    newest = topology
        return newest

    async def notify(self, process: ProcessId, question: AnyRequest) -> None:
        """A question without an answer: returns when the other side has hung up."""
        conversation = await self.call(process, question)
        try:
            await conversation.reply()
        except NoAnswerError:
            pass
        finally:
            conversation.close()

    async def fetch_state(self, processes: Sequence[ProcessId], position: int) -> tuple[int, bytes]:
        """The state of an application after at least so many deliveries, from the first of these that has one."""
        said: list[str] = []
        for process in processes:
            try:
                return await self._fetch_state_from(process, position)
            except NoAnswerError as error:
                said.append(str(error))
        raise NoAnswerError("; ".join(said) or "there is nobody to ask")

    async def _fetch_state_from(self, process: ProcessId, position: int) -> tuple[int, bytes]:
        conversation = await self.call(process, FetchState(position))
        try:
            taken = await conversation.reply()
            if (
                not isinstance(taken, StateHeader)
                or taken.position < position
                or not 0 <= taken.bytes <= MAX_STATE_BYTES
            ):
                raise NoAnswerError(f"process {process} answers with {taken!r}")
            state = bytearray()
            while len(state) < taken.bytes:
                piece = await conversation.reply()
                if not isinstance(piece, StateChunk) or not piece.data or len(state) + len(piece.data) > taken.bytes:
                    raise NoAnswerError(
                        f"process {process} tells {len(state)} of {taken.bytes} bytes, then something else"
                    )
                state += piece.data
            return taken.position, bytes(state)
        finally:
            conversation.close()

    async def fetch_progress(
        self, processes: Iterable[ProcessId], within_s: float | None = None
    ) -> dict[ProcessId, Progress]:
        """Where these replicas are; those that do not answer (in this time) are left out."""
        found = await self._request_all(processes, GetProgress(), within_s)
        return {process: stands for process, stands in found.items() if isinstance(stands, Progress)}

    async def _request_all(
        self, processes: Iterable[ProcessId], question: AnyRequest, within_s: float | None = None
    ) -> dict[ProcessId, AnyReply | None]:
        async def one(process: ProcessId) -> tuple[ProcessId, AnyReply | None]:
            try:
                async with asyncio.timeout(within_s):
                    return process, await self.request(process, question)
            except (NoAnswerError, TimeoutError):
                return process, None

        return dict(await asyncio.gather(*(one(process) for process in processes)))


def _reason(error: OSError | TimeoutError) -> str:
    return REFUSED if isinstance(error, ConnectionRefusedError) else str(error) or "it takes too long"
