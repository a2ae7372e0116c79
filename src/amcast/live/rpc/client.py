"""Asking a replica's desk (`live/rpc/server.py`): one question per connection, one answer or a row of them.

Whatever goes wrong on the way (nobody there, hung up, silence, nonsense) is `Unanswered`: ask another replica.
"""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from typing import Final

from amcast.kernel.errors import Unknown, WrongUse
from amcast.kernel.ids import ProcessId
from amcast.kernel.reconfiguration import decoded
from amcast.kernel.topology import Topology
from amcast.live.limits import KIB, MIB, Limits
from amcast.live.rpc.server import (
    Answers,
    Copy,
    Members,
    Membership,
    Piece,
    Questions,
    Stand,
    Stands,
    Taken,
    Visit,
    read_answer,
    visit_frame,
)
from amcast.live.security.tls import subject_of
from amcast.live.wire import frames as codec
from amcast.live.wire.frames import HEAD, HEAD_BYTES, WIRE_VERSION, BadFrame, Refused
from amcast.live.wire.transport import PLAIN, Wiring

Address = tuple[str, int]
CONNECT_S: Final = 3.0
REFUSED: Final = "connection refused"
"""Nobody listens there."""
READ_BYTES: Final = 256 * KIB
"""What is read ahead of who reads an answer: TCP holds back the rest."""


MOST_STATE_BYTES: Final = 4096 * MIB
"""A larger state of an application is not taken over."""


class Unanswered(Unknown):
    """This replica did not answer; another one may."""


class Conversation:
    """The asking end of one connection."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, who: str, limits: Limits) -> None:
        self._reader = reader
        self._writer = writer
        self._who = who
        self._limits = limits

    async def answer(self, timeout_s: float | None = None) -> Answers:
        """The next answer."""
        try:
            async with asyncio.timeout(timeout_s or self._limits.silence_s):
                return await self._read()
        except (OSError, TimeoutError, EOFError, BadFrame) as error:
            why = str(error) or type(error).__name__
            raise Unanswered(f"{self._who} stopped answering: {why}") from None

    async def _read(self) -> Answers:
        length, _, kind = HEAD.unpack(await self._reader.readexactly(HEAD_BYTES))
        if not 2 <= length <= self._limits.frame_bytes:
            raise BadFrame(f"a frame of {length} bytes; expected 2 to {self._limits.frame_bytes}")
        payload = await self._reader.readexactly(length - 2)
        if kind == codec.REFUSE:
            raise Unanswered(f"{self._who} refuses: {codec.read_refusal(payload).reason}")
        if kind != codec.TELL:
            raise BadFrame(f"a frame of kind {kind}; expected {codec.TELL}")
        return read_answer(payload)

    def close(self) -> None:
        """Hang up."""
        self._writer.transport.abort()

    def __del__(self) -> None:
        """Whoever leaves a subscription in the middle of a loop need not close it."""
        if not self._writer.transport.is_closing():
            with suppress(RuntimeError):
                self.close()


class Asker:
    """Asks the replicas of one cluster."""

    def __init__(
        self,
        cluster: str,
        addresses: Mapping[ProcessId, Address],
        limits: Limits | None = None,
        wiring: Wiring = PLAIN,
    ) -> None:
        self.limits = limits or Limits()
        self._cluster = cluster
        self._addresses = dict(addresses)
        self._wiring = wiring

    async def ask(self, process: ProcessId, question: Questions) -> Conversation:
        """Put a question to one replica; the answers come one by one."""
        if process not in self._addresses:
            raise Unanswered(
                f"process {process} is nowhere: no configuration and no change of members tells its address"
            )
        host, port = self._addresses[process]
        who = f"process {process} at {host}:{port}"
        try:
            async with asyncio.timeout(CONNECT_S):
                secured = self._wiring.secured
                reader, writer = await asyncio.open_connection(host, port, ssl=secured, limit=READ_BYTES)
        except (OSError, TimeoutError) as error:
            raise Unanswered(f"{who} cannot be reached: {_reason(error)}") from None
        self._check_server(process, who, writer)
        writer.write(visit_frame(Visit(WIRE_VERSION, self._cluster, process, question)))
        return Conversation(reader, writer, who, self.limits)

    def _check_server(self, process: ProcessId, who: str, writer: asyncio.StreamWriter) -> None:
        """Hang up on who answers at a node's address with another's certificate."""
        security = self._wiring.security
        if security is None:
            return
        try:
            security.rights.check(subject_of(writer.get_extra_info("peercert")), process)
        except Refused as refused:
            writer.transport.abort()
            raise Unanswered(f"{who} is somebody else: {refused}") from None

    async def once(self, process: ProcessId, question: Questions) -> Answers:
        """A question with one answer."""
        conversation = await self.ask(process, question)
        try:
            return await conversation.answer()
        finally:
            conversation.close()

    def follow(self, topology: Topology) -> None:
        """The members have changed: ask those who are there now."""
        for process, (_, address) in topology.places.items():
            host, _, port = address.rpartition(":")
            if topology.group_of(process) is not None and port.isdigit():
                self._addresses.setdefault(process, (host.strip("[]"), int(port)))
        if self._wiring.security is not None:
            self._wiring.security.rights.follow(topology)

    async def members(self, processes: Iterable[ProcessId] | None = None) -> Topology | None:
        """The newest topology that any of these replicas knows, or of all; None if none answers."""
        newest: Topology | None = None
        for answer in (await self._all(self._addresses if processes is None else processes, Members())).values():
            if isinstance(answer, Membership):
                try:
                    topology = decoded(answer.topology)
                except WrongUse:
                    continue
                if newest is None or topology.number > newest.number:
                    newest = topology
        return newest

    async def tell(self, process: ProcessId, question: Questions) -> None:
        """A question without an answer: returns when the other side has hung up."""
        conversation = await self.ask(process, question)
        try:
            await conversation.answer()
        except Unanswered:
            pass
        finally:
            conversation.close()

    async def copy(self, processes: Sequence[ProcessId], position: int) -> tuple[int, bytes]:
        """The state of an application after at least so many deliveries, from the first of these that has one."""
        said: list[str] = []
        for process in processes:
            try:
                return await self._copy(process, position)
            except Unanswered as error:
                said.append(str(error))
        raise Unanswered("; ".join(said) or "there is nobody to ask")

    async def _copy(self, process: ProcessId, position: int) -> tuple[int, bytes]:
        conversation = await self.ask(process, Copy(position))
        try:
            taken = await conversation.answer()
            if not isinstance(taken, Taken) or taken.position < position or not 0 <= taken.bytes <= MOST_STATE_BYTES:
                raise Unanswered(f"process {process} answers with {taken!r}")
            state = bytearray()
            while len(state) < taken.bytes:
                piece = await conversation.answer()
                if not isinstance(piece, Piece) or not piece.data or len(state) + len(piece.data) > taken.bytes:
                    raise Unanswered(
                        f"process {process} tells {len(state)} of {taken.bytes} bytes, then something else"
                    )
                state += piece.data
            return taken.position, bytes(state)
        finally:
            conversation.close()

    async def standings(self, processes: Iterable[ProcessId], within_s: float | None = None) -> dict[ProcessId, Stands]:
        """Where these replicas are; those that do not answer (in this time) are left out."""
        found = await self._all(processes, Stand(), within_s)
        return {process: stands for process, stands in found.items() if isinstance(stands, Stands)}

    async def _all(
        self, processes: Iterable[ProcessId], question: Questions, within_s: float | None = None
    ) -> dict[ProcessId, Answers | None]:
        async def one(process: ProcessId) -> tuple[ProcessId, Answers | None]:
            try:
                async with asyncio.timeout(within_s):
                    return process, await self.once(process, question)
            except (Unanswered, TimeoutError):
                return process, None

        return dict(await asyncio.gather(*(one(process) for process in processes)))


def _reason(error: OSError | TimeoutError) -> str:
    return REFUSED if isinstance(error, ConnectionRefusedError) else str(error) or "it takes too long"
