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


def write_checked(file: Path, data: bytes) -> None:
    """As `write_atomically`, with a checksum: for content in which a flipped bit could go unnoticed."""
    write_atomically(file, atomic_files.encode_checked(data))


def read_checked(file: Path, kind: type[T], expected: str) -> T | None:
    """Reads a file that `write_checked` wrote; None if there is none. The error says what was `expected` in it."""
    if not file.exists():
        return None
    content = atomic_files.decode_checked(file.read_bytes())
    if content is None:
        raise UsageError(
            f"{file}: damaged, its checksum does not match; expected {expected}. Empty the folder, and admit the node"
            f" anew with `amcast replace`"
        )
    return _decode(file, content, kind, expected)


def read_json(file: Path, kind: type[T], expected: str) -> T | None:
    """Reads a file that a node wrote before; None if there is none. The error says what was `expected` in it."""
    return _decode(file, file.read_bytes(), kind, expected) if file.exists() else None


def _decode(file: Path, content: bytes, kind: type[T], expected: str) -> T:
    try:
        return msgspec.json.decode(content, type=kind)
    except msgspec.MsgspecError as error:
        raise UsageError(f"{file}: {error}; expected {expected}") from None
