"""The processes of one run as arrays: ids in order, groups and regions as codes."""

from typing import Final

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array

MAX_TABLE: Final = 1 << 22


class Membership:
    """One entry per process. A process that was stopped cleanly and started again has a row of every incarnation."""

    def __init__(self, processes: pa.Table) -> None:
        groups: dict[int, int | None] = {}
        regions: dict[int, str] = {}
        crashes: dict[int, int | None] = {}
        names = ("process", "group", "region", "crashed_at_ns")
        for process, group, region, crash in zip(*(processes.column(name).to_pylist() for name in names), strict=True):
            groups[process] = _highest(groups.get(process), group)
            regions[process] = max(regions.get(process, region), region)
            crashes[process] = _highest(crashes.get(process), crash)
        self.ids: Int64Array = np.array(sorted(groups), np.int64)
        self.groups = [groups[process] for process in self.ids.tolist()]
        self.regions = [regions[process] for process in self.ids.tolist()]
        self.crashes = [crashes[process] for process in self.ids.tolist()]
        self.group_ids: Int64Array = np.array(sorted({g for g in self.groups if g is not None}), np.int64)
        codes = {group: code for code, group in enumerate(self.group_ids.tolist())}
        self.group_codes: Int32Array = np.array([-1 if g is None else codes[g] for g in self.groups], np.int32)
        self.region_names = sorted({"", *self.regions})
        names_of = {name: code for code, name in enumerate(self.region_names)}
        # The last entry is for processes that are not listed.
        self.region_codes: NDArray[np.int64] = np.array([names_of[name] for name in (*self.regions, "")], np.int64)
        self._numbers: Int32Array | None = None
        if self.ids.size and self.ids[0] >= 0 and self.ids[-1] < MAX_TABLE:
            self._numbers = np.full(int(self.ids[-1]) + 2, -1, np.int32)
            self._numbers[self.ids] = np.arange(self.ids.size, dtype=np.int32)

    def find_groups(self) -> dict[int, int | None]:
        """The group of each process."""
        return dict(zip(self.ids.tolist(), self.groups, strict=True))

    def number(self, processes: NDArray[np.int32] | Int64Array) -> Int32Array:
        """The entry of each process; -1 if it is not listed."""
        if self._numbers is not None:
            last = self._numbers.size - 1
            return self._numbers[np.where((processes < 0) | (processes > last), last, processes)]
        if not self.ids.size:
            return np.full(processes.size, -1, np.int32)
        places = np.minimum(np.searchsorted(self.ids, processes), self.ids.size - 1)
        return np.where(self.ids[places] == processes, places, -1).astype(np.int32)


def _highest(one: int | None, other: int | None) -> int | None:
    return other if one is None else one if other is None else max(one, other)
