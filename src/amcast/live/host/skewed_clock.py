"""A clock that is wrong on purpose, for tests: wrong clocks must cost a cluster nothing but latency.

Only the process sees the skewed time. The trace uses the machine's clock, because it compares times of several
processes.
"""

import asyncio
from contextlib import suppress
from pathlib import Path
from typing import Final

RELOAD_S: Final = 0.05


class SkewedClock:
    """Adds the offset in a file, in seconds, to the time; a change of the file is a jump of the clock."""

    def __init__(self, file: Path) -> None:
        self._file = file
        self._offset_ns = 0
        self._last_ns = 0
        self._reload()

    def skew(self, now_ns: int) -> int:
        """The time that the process sees; like the time of every host it never goes back."""
        self._last_ns = max(self._last_ns, now_ns + self._offset_ns)
        return self._last_ns

    def _reload(self) -> None:
        with suppress(OSError, ValueError):
            self._offset_ns = int(float(self._file.read_text()) * 1e9)
        asyncio.get_running_loop().call_later(RELOAD_S, self._reload)
