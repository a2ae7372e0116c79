"""Bugs of durable storage, which seeds find that keep records in the real log on disks that fail."""

from typing import Final

from tests.mutants.gate.bug import Bug

FILES: Final = "storage.files"
WRITE_SNAPSHOT: Final = (
    "        self._write_commit([record for record, _ in records[last:]], replaces=True, skipped=last)\n"
)
REMOVE: Final = "        self._remove(old)\n"
SEGMENTS: Final = "storage.segments"
LOG: Final = "storage.log"
ATOMIC: Final = "storage.atomic_files"

BUGS: Final = (
    Bug("log-short-write-unchecked", FILES, "    while written < len(data):\n", "    while False:\n", "primcast"),
    Bug(
        "log-short-read-unchecked",
        FILES,
        "        at += len(part)\n    return parts[0]",
        "        break\n    return parts[0]",
        "primcast",
    ),
    Bug(
        "log-rot-called-torn",
        SEGMENTS,
        'return bool(sector.strip(b"\\0")) and not _is_valid(sector, place, chain)',
        "return False",
        "primcast",
    ),
    Bug(
        "log-torn-called-rot",
        SEGMENTS,
        'return bool(sector.strip(b"\\0")) and not _is_valid(sector, place, chain)',
        'return bool(sector.strip(b"\\0"))',
        "primcast",
    ),
    Bug(
        "log-checks-first-sector-of-commit-only",
        SEGMENTS,
        "        if not _is_valid(sector, start + place, chain):\n            return None\n",
        "",
        "primcast",
    ),
    Bug(
        "log-commit-without-sync",
        LOG,
        "        if self._syncs:\n            self._file.sync()\n        self._end += len(data)\n",
        "        self._end += len(data)\n",
        "primcast",
    ),
    Bug(
        "log-segment-without-folder-sync",
        LOG,
        "        self._write_head(begins)\n        if self._syncs:\n            self._files.sync()\n",
        "        self._write_head(begins)\n",
        "primcast",
    ),
    Bug(
        "log-snapshot-removes-segments-first",
        LOG,
        WRITE_SNAPSHOT + REMOVE,
        REMOVE + WRITE_SNAPSHOT,
        "primcast",
    ),
    Bug(
        "log-numbers-repeat",
        LOG,
        "        self.next_number += skipped + len(records)\n",
        "        self.next_number += skipped + len(records) - (len(records) > 1)\n",
        "primcast",
    ),
    Bug(
        "log-chain-not-advanced",
        LOG,
        "        self._chain = chain\n",
        "",
        "primcast",
    ),
    Bug("atomic-file-without-sync", ATOMIC, "        file.sync()\n", "", "primcast"),
)
