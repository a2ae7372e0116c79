"""Clients with scripted messages: each sends its own sequence, with a limited number unanswered, to the end."""

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from amcast.kernel.ids import GroupId
from amcast.live.client.client import Client

SETTLE_S = 1.0
"""Pause between connecting and the first message, for connections and leaders to settle."""
ANSWER_S = 120.0


class ScriptedMessage(NamedTuple):
    """The next message, and the pause before it."""

    destinations: Sequence[GroupId]
    size: int
    after_ns: int = 0


@dataclass
class ScriptedClient:
    """One client and its script."""

    client: Client
    next_message: Callable[[], ScriptedMessage]
    remaining: int
    outstanding: int = 1
    is_open: bool = False
    """Whether messages are sent by the clock, whatever the answers."""


async def run_clients(loops: Sequence[ScriptedClient]) -> None:
    """Runs all clients concurrently until every message is answered."""
    await asyncio.gather(*(_drive(loop) for loop in loops))


async def _drive(loop: ScriptedClient) -> None:
    async with loop.client:
        await asyncio.sleep(SETTLE_S)
        if loop.is_open:
            await _send_by_clock(loop)
        else:
            await asyncio.gather(*(_slot(loop) for _ in range(loop.outstanding)))


async def _send_by_clock(loop: ScriptedClient) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(loop.remaining):
            destinations, size, after_ns = loop.next_message()
            await asyncio.sleep(after_ns / 1e9)
            group.create_task(loop.client.multicast(destinations, bytes(size), timeout_s=ANSWER_S))


async def _slot(loop: ScriptedClient) -> None:
    while loop.remaining > 0:
        loop.remaining -= 1
        destinations, size, after_ns = loop.next_message()
        if after_ns:
            await asyncio.sleep(after_ns / 1e9)
        await loop.client.multicast(destinations, bytes(size), timeout_s=ANSWER_S)
