"""When has a replica that comes (back) caught up? When it has delivered what its fellows had delivered when it asked.

A new incarnation asks its fellows where they are until enough of them have answered to make a majority together with
it, and waits until it has come as far as the furthest of them. Fellows that wait to be given their group's state
themselves do not count: they know of nothing to catch up with. It stays "caught up" for the rest of its incarnation:
lag that comes later is told by positions (`Stands.next`).
"""

import asyncio
import logging
from collections.abc import Callable, Sequence

from amcast.kernel.ids import ProcessId
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.rpc.client import RpcClient

log = logging.getLogger("amcast.live")

POLL_S = 0.1


async def catch_up(
    recent: RecentDeliveries,
    caught_up: asyncio.Event,
    asker: RpcClient,
    me: ProcessId,
    fellows: Callable[[], Sequence[ProcessId]],
    joins: bool,
) -> None:
    """Set `caught_up` when it is true; one that does not join a group that ran before has nothing to catch up
    with. `fellows` are the other members of its group now: it may learn meanwhile that they are others."""
    if joins:
        # The records are told first.
        await asyncio.sleep(0)
        while True:
            standings = await asker.fetch_progress(fellows())
            if sum(stands.has_state for stands in standings.values()) >= (len(fellows()) + 1) // 2:
                break
            await asyncio.sleep(POLL_S)
        goal = max((stands.next for stands in standings.values()), default=0)
        while recent.next < goal:
            await recent.wait_for_delivery()
        log.info("process %d has caught up: it is at position %d", me, recent.next)
    caught_up.set()
