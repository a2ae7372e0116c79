"""Small files that are there whole or not at all, whenever the machine stops."""

import contextlib
import os
from pathlib import Path
from typing import TypeVar

import msgspec

from amcast.kernel.errors import UsageError

T = TypeVar("T")


def write_atomically(file: Path, data: bytes) -> None:
    """Write a file, or put it in the place of the old one: on the disk when this returns."""
    early = file.with_name(f".{file.name}.new")
    with early.open("wb") as out:
        out.write(data)
        out.flush()
        os.fsync(out.fileno())
    early.replace(file)
    sync_folder(file.parent)


def read_json(file: Path, kind: type[T], expected: str) -> T | None:
    """What a node wrote there before; None if it did not."""
    if not file.exists():
        return None
    try:
        return msgspec.json.decode(file.read_bytes(), type=kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file}: {error}; expected {expected}") from None


def sync_folder(folder: Path) -> None:
    """Make durable which files it has, where the system can."""
    handle = os.open(folder, os.O_RDONLY)
    with contextlib.suppress(OSError):
        os.fsync(handle)
    os.close(handle)
