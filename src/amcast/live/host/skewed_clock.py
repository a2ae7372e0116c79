"""A clock that is wrong on purpose, to test what wrong clocks do to a cluster: nothing but latency.

Only the process is fooled. The trace goes by the machine's clock, because it compares what several processes saw.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

LOOK_S: Final = 0.05


class SkewedClock:
    """So many seconds off as a file says; a file that changes is a clock that jumps."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset_ns = 0
        self._last_ns = 0
        self._look()

    def told(self, now_ns: int) -> int:
        """What the process believes; as with every host, it never goes back."""
        self._last_ns = max(self._last_ns, now_ns + self._offset_ns)
        return self._last_ns

    def _look(self) -> None:
        with suppress(OSError, ValueError):
            self._offset_ns = int(float(self._file.read_text()) * 1e9)
        asyncio.get_running_loop().call_later(LOOK_S, self._look)
