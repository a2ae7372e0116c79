"""Catching up: a replica that starts late or again has caught up when it has delivered what its group had delivered,
and the application on it has executed that.

A new incarnation requests the progress of the other members until enough have answered to form a majority together with
it, and waits until it has delivered as much as the furthest of them. Members that wait for their group's state
themselves do not count: they know nothing to catch up with. A replica stays "caught up" for the rest of its
incarnation; later lag shows in the positions (`Progress.next`).
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Sequence

from amcast.kernel.ids import ProcessId
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.rpc.client import RpcClient

log = logging.getLogger("amcast.live")

POLL_S = 0.1


async def catch_up(
    recent: RecentDeliveries,
    caught_up: asyncio.Event,
    rpc: RpcClient,
    me: ProcessId,
    other_members: Callable[[], Sequence[ProcessId]],
    joins: bool,
    wait_for_application: Callable[[int], Awaitable[None]] | None = None,
) -> None:
    """Sets `caught_up` when the replica has caught up; at once if it does not join a group that ran before.
    `other_members` is called repeatedly, because the members may change meanwhile; `wait_for_application` waits until
    the application has everything before a position."""
    if joins:
        # The records of the log are replayed first.
        await asyncio.sleep(0)
        while True:
            progress = await rpc.fetch_progress(other_members())
            if sum(one.has_state for one in progress.values()) >= (len(other_members()) + 1) // 2:
                break
            await asyncio.sleep(POLL_S)
        goal = max((one.next for one in progress.values()), default=0)
        while recent.next < goal:
            await recent.wait_for_news()
        if wait_for_application is not None:
            await wait_for_application(recent.next)
        log.info("process %d has caught up: it is at position %d", me, recent.next)
    caught_up.set()
