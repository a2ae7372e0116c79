"""The folder of a service that keeps its state in files of its own.

    application/service/
      current      the number of the folder in use
      00000003/    the service's files
      00000004/    files that are being filled with another member's state

Another member's state goes to an empty folder, which takes the place of the old one when it is complete: one write of
`current` decides. A crash before it leaves the old state, which is as good as it was.
"""

import shutil
from pathlib import Path
from typing import Final

import msgspec

from amcast.live.storage.atomic_files import read_json, write_atomically
from amcast.live.storage.system_files import SystemFiles

CURRENT: Final = "current"


class ServiceFiles:
    """The folders of one service."""

    def __init__(self, folder: Path, keeps: bool) -> None:
        """`keeps`: whether the files outlive the program."""
        self._root = folder
        if not keeps and folder.exists():
            shutil.rmtree(folder)
        SystemFiles(folder).make_folder()
        found = read_json(folder / CURRENT, int, "the number of a folder")
        self._number = 0 if found is None else found
        for other in folder.iterdir():
            if other.is_dir() and other != self.folder:
                shutil.rmtree(other)
        if found is None:
            self.commit(self.begin())

    @property
    def folder(self) -> Path:
        """The folder in use."""
        return self._name(self._number)

    def _name(self, number: int) -> Path:
        return self._root / f"{number:08d}"

    def begin(self) -> Path:
        """Makes an empty folder for another state."""
        folder = self._name(self._number + 1)
        if folder.exists():
            shutil.rmtree(folder)
        SystemFiles(folder).make_folder()
        return folder

    def commit(self, folder: Path) -> Path:
        """Puts a folder that `begin` made in the place of the one in use; returns that one, for the caller to
        remove."""
        old = self.folder
        number = int(folder.name)
        SystemFiles(self._root).sync()
        write_atomically(self._root / CURRENT, msgspec.json.encode(number))
        self._number = number
        return old
