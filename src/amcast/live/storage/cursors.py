"""Where named subscribers are in the order of a group, as one replica keeps it on disk.

A subscriber saves its cursor at a majority of the group and, when it starts, takes the furthest that a majority knows
(`live/rpc/subscription.py`). So each replica keeps the furthest that it was given, and cursors never go back.
"""

import asyncio
from pathlib import Path
from typing import Final

import msgspec

from amcast.live.errors import RefusedError
from amcast.live.storage.atomic_files import read_checked, write_checked

FILE: Final = "subscribers"
MAX_CURSORS: Final = 1000
"""Names that one replica remembers."""
MAX_NAME_BYTES: Final = 200


class Cursor(msgspec.Struct, frozen=True, order=True, array_like=True):
    """What a subscriber has acknowledged: all deliveries before a position and, of the message at it, the payloads up
    to a place."""

    position: int
    place: int = -1


class Cursors:
    """The cursors that one replica keeps."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / FILE
        self._cursors = read_checked(self._file, dict[str, Cursor], "cursors of subscribers") or {}
        self._writing = asyncio.Lock()
        self._written = dict(self._cursors)

    def find(self, name: str) -> Cursor | None:
        """The cursor of a name; None if there is none."""
        return self._cursors.get(name)

    async def save(self, name: str, cursor: Cursor) -> Cursor:
        """Makes a cursor durable, unless a further one is known; returns the furthest."""
        known = self._cursors.get(name)
        if not name or len(name.encode()) > MAX_NAME_BYTES:
            raise RefusedError(f"the subscriber {name[:20]!r}; expected a name of 1 to {MAX_NAME_BYTES} bytes")
        if known is None and len(self._cursors) >= MAX_CURSORS:
            raise RefusedError(f"{MAX_CURSORS} subscribers have cursors here; expected one of them, not {name!r}")
        if known is None or cursor > known:
            self._cursors[name] = cursor
        async with self._writing:
            if self._written.get(name) != self._cursors[name]:
                content = dict(self._cursors)
                await asyncio.to_thread(write_checked, self._file, msgspec.json.encode(content))
                self._written = content
        return self._cursors[name]

    async def remove(self, name: str) -> None:
        """Forgets a subscriber."""
        async with self._writing:
            if self._cursors.pop(name, None) is not None:
                await asyncio.to_thread(write_checked, self._file, msgspec.json.encode(self._cursors))
                self._written = dict(self._cursors)
