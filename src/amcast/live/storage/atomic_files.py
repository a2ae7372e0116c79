"""Small files that are written atomically: after a crash the old or the new content is there, never a part."""

import contextlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from amcast.kernel.errors import UsageError

T = TypeVar("T")


def write_atomically(file: Path, data: bytes) -> None:
    """Creates or replaces a file; it is durable when this returns."""
    temporary = file.with_name(f".{file.name}.new")
    with temporary.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    temporary.replace(file)
    sync_folder(file.parent)


def read_json(file: Path, kind: type[T], expected: str) -> T | None:
    """Reads a file that a node wrote before; None if there is none. The error says what was `expected` in it."""
    if not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file}: {error}; expected {expected}") from None


def sync_folder(folder: Path) -> None:
    """Makes the list of files in a folder durable, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)
