"""The state of a watch in one file, which is replaced as a whole: a watch that was killed continues from the last one.

The file says what was read and holds what was learned from it, so both always agree, whatever Spark remembers. It is in
Python's own format for objects: read only files that you or your own watch wrote.
"""

import os
import pickle
from pathlib import Path
from typing import Any, Final

from amcast.kernel.errors import UsageError

MARK: Final = b"amcast watch 3\n"


class WatchState:
    """A file with the state of one watch."""

    def __init__(self, file: Path) -> None:
        self._file = file

    def exists(self) -> bool:
        return self._file.exists()

    def write(self, run: str | None, values: dict[str, Any]) -> None:
        """Replaces the file."""
        early = self._file.with_name(f".{self._file.name}")
        try:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            with early.open("wb") as file:
                file.write(MARK)
                pickle.dump((run, values), file, protocol=pickle.HIGHEST_PROTOCOL)
                file.flush()
                os.fsync(file.fileno())
            early.replace(self._file)
        except OSError as error:
            raise UsageError(f"--state {self._file}: cannot be written: {error.strerror}") from None

    def read(self, run: str | None) -> dict[str, Any]:
        """The values that were written last; refuses other files, and the state of another run."""
        try:
            data = self._file.read_bytes()
        except OSError as error:
            raise UsageError(f"--state {self._file}: cannot be read: {error.strerror}") from None
        if not data.startswith(MARK):
            raise UsageError(f"--state {self._file}: not the state of a watch; expected a new file, or such a state")
        try:
            written_run, values = pickle.loads(data[len(MARK) :])
        except (pickle.UnpicklingError, EOFError, AttributeError, ImportError, TypeError, ValueError):
            raise UsageError(f"--state {self._file}: damaged, or of another version; expected a new file") from None
        if None not in (run, written_run) and written_run != run:
            raise UsageError(f"--state {self._file}: of run {written_run!r}; expected that of {run!r}")
        found: dict[str, Any] = values
        return found
