"""Reads the log of a running node again at leisure, and reports damage (`storage/scrubber.py`).

A node whose old segments are damaged goes on: its state in memory is whole, and its log is needed at the next start
only. Then recovery finds the damage, too, the folder is doubtful, and the node gets its state from its group
(`parts/node/admission.py`). To restart at once would cost a group its majority if several disks are bad. A snapshot
that replaces the damaged segments repairs the log.
"""

import asyncio
import logging
from typing import Final

from amcast.live.limits import KIB, Limits
from amcast.storage.scrubber import Scrubber

log = logging.getLogger("amcast.live")

SLICE_BYTES: Final = 64 * KIB
"""How much is read before other work gets its turn."""


async def scrub_log(scrubber: Scrubber, limits: Limits) -> None:
    """Reads a log again and again, at most so fast as the limits allow."""
    logged = ""
    try:
        while True:
            count, is_pass_over = await asyncio.to_thread(_read_slice, scrubber)
            if scrubber.damage != logged:
                logged = scrubber.damage
                if logged:
                    log.error("the log is damaged, and the node runs on with the state in its memory: %s", logged)
                else:
                    log.info("the log is whole again: a snapshot has replaced what was damaged")
            await asyncio.sleep(limits.scrub_pause_s if is_pass_over else count / limits.scrub_bytes_per_s)
    finally:
        scrubber.close()


def _read_slice(scrubber: Scrubber) -> tuple[int, bool]:
    """Reads some commits; returns how many bytes that were, and whether the whole log is read."""
    count = 0
    while count < SLICE_BYTES:
        read = scrubber.check_next()
        if read == 0:
            return count, True
        count += read
    return count, False
