"""CPU time and wall time of the durable log per commit, for commits of 1, 100 and 1,000 small records.

.venv/bin/python benchmarks/storage.py [folder]
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from amcast.live.storage.store import Durability, LogStore

RECORD: Final = bytes(range(60))
COMMITS: Final = {1: 2000, 100: 1000, 1000: 200}


def measure(folder: Path, durability: Durability, records: int, commits: int) -> tuple[float, float]:
    """Microseconds of CPU and of time per commit."""
    store = LogStore(folder, durability, threaded=False)
    store.start(lambda ticket: None, lambda error: print(error))
    cpu, wall = time.process_time(), time.perf_counter()
    for _ in range(commits):
        for _ in range(records):
            store.append(RECORD)
        store.commit()
    cpu, wall = time.process_time() - cpu, time.perf_counter() - wall
    store.close()
    return cpu / commits * 1e6, wall / commits * 1e6


def main() -> None:
    """Prints one line per durability and size of commits."""
    base = sys.argv[1] if len(sys.argv) > 1 else None
    for durability in ("fsync", "os"):
        for records, commits in COMMITS.items():
            with tempfile.TemporaryDirectory(dir=base) as folder:
                cpu, wall = measure(Path(folder), durability, records, commits)
            print(f"{durability:5} {records:5} records: {cpu:8.1f} us CPU, {wall:8.1f} us per commit")


if __name__ == "__main__":
    main()
