"""Going in good order, so that nobody has to notice by silence that somebody is gone.

A process that leaves says so to everybody: its fellows choose another leader and its clients another gateway at once.
Then it stays until what it had asked for others is answered, and for a moment at least, so that what was on its way to
it is served.
"""

import asyncio
from typing import Final

from amcast.live.host.host import Host

PATIENCE_S: Final = 2.0
LOOK_S: Final = 0.05
"""How often it looks whether it is done."""


async def drain_and_stop(host: Host, patience_s: float = PATIENCE_S) -> None:
    """Before a stop; a host that has failed, or that nobody would understand, just stops."""
    if not host.announce_leaving():
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + patience_s
    await asyncio.sleep(LOOK_S)
    while not host.ended.done() and loop.time() < deadline and host.process.status().get("asked", 0):
        await asyncio.sleep(LOOK_S)
