"""Damage that torture does to data folders is noticed, and undone."""

import random
from pathlib import Path

from amcast.live.storage.store import verify_log
from amcast.live.storage.system_files import SystemFiles
from amcast.live.torture.folders import ZeroedSector, choose_rot
from amcast.storage.errors import DamagedLogError
from amcast.storage.folder import StorageFolder


def test_every_drawn_rot_of_a_log_is_noticed_and_undone(tmp_path: Path) -> None:
    folder = StorageFolder(SystemFiles(tmp_path), lambda: 7, syncs=False, segment_bytes=2048)
    assert folder.log is not None
    for size in (10, 700, 3000, 20, 500, 1500):
        folder.log.write([(b"x" * size, False)])
    folder.close()
    kinds = set()
    for seed in range(200):
        before = {file: file.read_bytes() for file in tmp_path.iterdir()}
        rot = choose_rot(tmp_path, random.Random(seed))
        rot.flip()
        assert rot.file.read_bytes() != before[rot.file], rot
        if rot.file.suffix == ".log":
            kinds.add(type(rot))
            try:
                verify_log(tmp_path)
            except DamagedLogError:
                pass
            else:
                raise AssertionError(f"seed {seed}: {rot} is not noticed")
        rot.flip()
        assert {file: file.read_bytes() for file in tmp_path.iterdir()} == before
    assert ZeroedSector in kinds
    assert len(kinds) == 2
