"""What is counted row by row, whatever message a row is about: packets by process and body, notes by name, faults."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array
from amcast.pipeline.measure.distribution import encode
from amcast.pipeline.measure.facts import take_column
from amcast.pipeline.measure.membership import Membership
from amcast.pipeline.rows.files import open_parquet
from amcast.pipeline.rows.footers import RowGroup
from amcast.pipeline.rows.sequences import to_int64
from amcast.trace.parquet import iterate_canonical

SENT: Final = ("sent", "bytes_sent", "lost", "steady_sent", "steady_bytes", "received", "bytes_received")
FAULT: Final = "fault-"


def _add_pairs(total: dict[Any, list[int]], other: dict[Any, list[int]]) -> None:
    for key, (count, size) in other.items():
        known = total.get(key, [0, 0])
        total[key] = [known[0] + count, known[1] + size]


@dataclass
class Counts:
    """Counts that add up."""

    processes: NDArray[np.int64]
    """[column of SENT, process]."""
    bodies: dict[str, list[int]] = field(default_factory=dict)
    """body -> packets, bytes."""
    traffic: dict[tuple[int, int], list[int]] = field(default_factory=dict)
    """(code of the source's group, of the target's; -1: none) -> packets, bytes."""
    notes: dict[str, int] = field(default_factory=dict)
    noting: dict[str, set[int]] = field(default_factory=dict)
    """name of a note -> the processes that noted it."""
    faults: set[tuple[int, str, int]] = field(default_factory=set)
    """(time, kind, process)."""

    @staticmethod
    def zero(members: Membership) -> "Counts":
        return Counts(np.zeros((len(SENT), members.ids.size), np.int64))

    def __iadd__(self, other: "Counts") -> "Counts":
        self.processes += other.processes
        _add_pairs(self.bodies, other.bodies)
        _add_pairs(self.traffic, other.traffic)
        for name, count in other.notes.items():
            self.notes[name] = self.notes.get(name, 0) + count
            self.noting[name] = self.noting.get(name, set()) | other.noting[name]
        self.faults |= other.faults
        return self

    def add_packets(self, data: pa.Table, members: Membership, low: int, high: int) -> None:
        """Counts packets by the processes at their ends; `low` and `high` are the ends of the steady part."""
        size, sent = to_int64(take_column(data, "bytes")), to_int64(take_column(data, "sent_ns"))
        arrived = take_column(data, "received_ns").is_valid().to_numpy(zero_copy_only=False)
        steady = (sent >= low) & (sent <= high)
        source, target = (members.number(take_column(data, name).to_numpy()) for name in ("source", "target"))
        everything = np.ones(size.size, np.bool_)
        columns = (
            *((source, everything, None), (source, everything, size), (source, ~arrived, None)),
            *((source, steady, None), (source, steady, size), (target, arrived, None), (target, arrived, size)),
        )
        for row, (ends, chosen, weights) in enumerate(columns):
            own = weights[chosen] if weights is not None else None
            total = np.bincount(ends[chosen] + 1, own, members.ids.size + 1)
            self.processes[row] += total[1:].astype(np.int64)
        groups = np.append(members.group_codes, -1)
        self._add_traffic(groups[source], groups[target], size)

    def _add_traffic(self, sources: Int32Array, targets: Int32Array, size: Int64Array) -> None:
        groups = int(max(sources.max(initial=-1), targets.max(initial=-1))) + 2
        pairs, codes = encode((sources.astype(np.int64) + 1) * groups + targets + 1)
        counts = np.bincount(codes, minlength=pairs.size).tolist()
        totals = np.bincount(codes, size, pairs.size).astype(np.int64).tolist()
        for pair, count, total in zip(pairs.tolist(), counts, totals, strict=True):
            known = self.traffic.setdefault((pair // groups - 1, pair % groups - 1), [0, 0])
            known[0] += count
            known[1] += total

    def add_bodies(self, row_groups: Iterable[RowGroup], run: str | None = None) -> None:
        """Counts packets, of all runs or of one, by their bodies, which are read as codes where the file has codes."""
        for one in row_groups:
            has_codes = one.is_canonical and run is None
            file = open_parquet(one.path, codes=["body"] if has_codes else [])
            if has_codes:
                parts = [file.read_row_group(one.row_group, columns=["body", "bytes"], use_threads=False)]
            else:
                parts = list(iterate_canonical("packets", one.path, file, ["run", "body", "bytes"], one.row_group))
            if run is not None:
                parts = [part.filter(pc.equal(part["run"], run)) for part in parts]
            for batch in (batch for part in parts for batch in part.to_batches()):
                body = batch.column("body")
                body = body if pa.types.is_dictionary(body.type) else pc.dictionary_encode(body)
                self._count_bodies(body, batch.column("bytes"))

    def _count_bodies(self, bodies: pa.DictionaryArray, sizes: pa.Array) -> None:
        codes = bodies.indices.to_numpy()
        counts = np.bincount(codes, minlength=len(bodies.dictionary))
        totals = np.bincount(codes, sizes.to_numpy(), minlength=len(bodies.dictionary))
        for body, count, total in zip(bodies.dictionary.to_pylist(), counts.tolist(), totals.tolist(), strict=True):
            if count:
                known = self.bodies.setdefault(body, [0, 0])
                known[0] += count
                known[1] += int(total)

    def add_notes(self, data: pa.Table) -> None:
        names = pc.dictionary_encode(take_column(data, "name"))
        processes, codes = to_int64(take_column(data, "process")), names.indices.to_numpy()
        for code, name in enumerate(names.dictionary.to_pylist()):
            own = codes == code
            self.notes[name] = self.notes.get(name, 0) + int(own.sum())
            self.noting[name] = self.noting.get(name, set()) | set(encode(processes[own])[0].tolist())
            if name.startswith(FAULT):
                times = to_int64(take_column(data, "at_ns"))[own].tolist()
                self.faults |= {
                    (at, name[len(FAULT) :], p) for at, p in zip(times, processes[own].tolist(), strict=True)
                }

    def add_crashes(self, members: Membership) -> None:
        """Processes that stayed down are faults too."""
        for process, crash in zip(members.ids.tolist(), members.crashes, strict=True):
            if crash is not None:
                self.faults.add((crash, "crash", process))
