"""Small files of a live node that are written atomically, by path (`storage/atomic_files.py` has the writing)."""

from pathlib import Path
from typing import TypeVar

import msgspec

from amcast.kernel.errors import UsageError
from amcast.live.storage.system_files import SystemFiles
from amcast.storage import atomic_files

T = TypeVar("T")


def write_atomically(file: Path, data: bytes) -> None:
    """Creates or replaces a file; it is durable when this returns. A replaced file keeps its permissions."""
    mode = file.stat().st_mode if file.exists() else None
    atomic_files.write_atomically(SystemFiles(file.parent), file.name, data)
    if mode is not None:
        file.chmod(mode)


def read_json(file: Path, kind: type[T], expected: str) -> T | None:
    """Reads a file that a node wrote before; None if there is none. The error says what was `expected` in it."""
    if not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file}: {error}; expected {expected}") from None
