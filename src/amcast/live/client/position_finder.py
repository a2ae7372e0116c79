"""Finds the positions of an acknowledged message in its groups, for callers who want to know them.

An acknowledgement does not contain them, because it does not wait for them: a gateway answers when its own group has
delivered a message and every other destination is known to order later messages behind it. Those may deliver it later,
and only then does it have a position there. Waiting for them would cost every multicast a message delay and a reply per
group. So a caller who needs positions asks for them (`multicast(..., positions=True)`), and pays for one request to a
replica of each group, which answers when it has delivered the message.

A position is the same at all replicas of a group, whoever leads, and a message is delivered once however often it was
requested: any replica may answer. It searches the deliveries that it keeps for subscribers
(`live/host/recent_deliveries.py`); where none of a group has the message there any more, the position is not known.
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Final

from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.topology import Topology
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import FindPosition, FoundPosition

FIND_S: Final = 10.0
"""Groups that have not answered by then are left out."""


class PositionFinder:
    """Asks the replicas of a cluster for positions."""

    def __init__(self, rpc: RpcClient, topology: Callable[[], Topology]) -> None:
        self._rpc = rpc
        self._topology = topology

    async def find(self, message: MessageId, groups: Sequence[GroupId], within_s: float) -> dict[str, int]:
        """The positions of an ordered message by the names of its groups, without those that are not known."""
        found: dict[GroupId, int] = {}

        async def find_in(group: GroupId) -> None:
            for process in self._topology().members(group):
                try:
                    answer = await self._rpc.request(process, FindPosition(message))
                except NoAnswerError:
                    continue
                if isinstance(answer, FoundPosition) and answer.position is not None:
                    found[group] = answer.position
                    return

        tasks = [asyncio.ensure_future(find_in(group)) for group in groups]
        try:
            await asyncio.wait(tasks, timeout=min(within_s, FIND_S))
        finally:
            for task in tasks:
                task.cancel()
        names = self._topology().names
        return {names[group]: found[group] for group in sorted(found)}
