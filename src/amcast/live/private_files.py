"""Files that only their owner can read and that no link leads elsewhere."""

import os
from pathlib import Path

from amcast.kernel.errors import UsageError


def open_private(file: Path, flags: int = os.O_WRONLY | os.O_APPEND) -> int:
    """Opens or creates a file with mode 0600; refuses a symbolic link, which could lead a write to another file."""
    try:
        return os.open(file, flags | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
    except OSError as error:
        what = "it is a symbolic link" if file.is_symlink() else error.strerror
        raise UsageError(f"{file}: {what}; expected a file that this process may write") from None


def replace_file(file: Path, data: bytes, mode: int) -> None:
    """Creates or replaces a file in one step, without following a link that stands in its place or in that of its
    temporary file."""
    temporary = file.with_name(f".{file.name}")
    temporary.unlink(missing_ok=True)
    number = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, mode)
    with os.fdopen(number, "wb") as out:
        out.write(data)
    temporary.replace(file)
