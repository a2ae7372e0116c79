"""A synthetic trace of any size that holds every property: 12 groups x 3 replicas, destinations like gTPC-C's.

    python benchmarks/pipeline/generate.py --deliveries 10000000 --out runs/bench-10m

Messages are made in chunks, in one global order; each group delivers those that address it, in that order. One message
in three stays in its home group, the others add one to four near neighbours (36/48/11/4/1 percent, as gTPC-C's mix of
remote orders gives). Two processes crash at 70 percent. Memory does not grow with the trace.
"""

import argparse
import json
import time
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

GROUPS, REPLICAS, CLIENTS = 12, 3, 120
SHARE = (0.36, 0.48, 0.11, 0.04, 0.01)
CHUNK = 250_000
FILE_ROWS = 8_000_000
PER_MESSAGE = sum(size * share for size, share in enumerate(SHARE, start=1)) * REPLICAS
CRASHED = (4, 19)
BASE = 10**9

RUN = ("run", pa.string())
SCHEMAS = {
    "multicasts": pa.schema(
        [
            RUN,
            ("message", pa.int64()),
            ("sender", pa.int32()),
            ("destinations", pa.list_(pa.int32())),
            ("at_ns", pa.int64()),
            ("bytes", pa.int32()),
        ]
    ),
    "deliveries": pa.schema(
        [
            RUN,
            ("process", pa.int32()),
            ("group", pa.int32()),
            ("position", pa.int64()),
            ("message", pa.int64()),
            ("at_ns", pa.int64()),
            ("rank_time", pa.int64()),
            ("rank_tie", pa.int64()),
            ("multicast_ns", pa.int64()),
            ("destinations", pa.list_(pa.int32())),
        ]
    ),
    "packets": pa.schema(
        [
            RUN,
            ("message", pa.int64()),
            ("body", pa.string()),
            ("source", pa.int32()),
            ("target", pa.int32()),
            ("bytes", pa.int32()),
            ("sent_ns", pa.int64()),
            ("received_ns", pa.int64()),
            ("sender", pa.int32()),
            ("destinations", pa.list_(pa.int32())),
        ]
    ),
    "processes": pa.schema(
        [RUN, ("process", pa.int32()), ("group", pa.int32()), ("region", pa.string()), ("crashed_at_ns", pa.int64())]
    ),
}
SMALL = [
    "run",
    "process",
    "group",
    "body",
    "source",
    "target",
    "sender",
    "region",
    "bytes",
    "destinations.list.element",
]
DELTA = dict.fromkeys(("position", "at_ns", "rank_time", "rank_tie", "message"), "DELTA_BINARY_PACKED")
DELTA |= dict.fromkeys(("multicast_ns", "sent_ns", "received_ns"), "DELTA_BINARY_PACKED")


class Table:
    """Writes one table as files of at most FILE_ROWS rows, each named only when complete."""

    def __init__(self, folder: Path, name: str, run: str, stem: str = "part") -> None:
        self.folder, self.schema, self.run, self.stem = folder / name, SCHEMAS[name], run, stem
        self.folder.mkdir(parents=True, exist_ok=True)
        self.writer: pq.ParquetWriter | None = None
        self.rows = self.files = 0

    def write(self, columns: dict[str, object]) -> None:
        rows = len(next(iter(columns.values())))  # type: ignore[arg-type]
        if not rows:
            return
        run = pa.DictionaryArray.from_arrays(np.zeros(rows, np.int32), [self.run]).cast(pa.string())
        table = pa.table({"run": run, **columns}).select(self.schema.names).cast(self.schema)
        if self.writer is None:
            names = set(self.schema.names)
            self.writer = pq.ParquetWriter(
                self.folder / f".{self.stem}-{self.files:04}.parquet",
                self.schema,
                compression="zstd",
                compression_level=1,
                use_dictionary=[name for name in SMALL if name.split(".")[0] in names],
                column_encoding={name: value for name, value in DELTA.items() if name in names},
            )
        self.writer.write_table(table, row_group_size=1_000_000)
        self.rows += rows
        if self.rows >= FILE_ROWS:
            self.close()

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
            name = f"{self.stem}-{self.files:04}.parquet"
            (self.folder / f".{name}").rename(self.folder / name)
            self.writer, self.rows, self.files = None, 0, self.files + 1


class Buffered(Table):
    """Buffers small writes until a row group is full."""

    def __init__(self, folder: Path, name: str, run: str, stem: str) -> None:
        super().__init__(folder, name, run, stem)
        self.kept: list[pa.Table] = []
        self.count = 0

    def write(self, columns: dict[str, object]) -> None:
        self.kept.append(pa.table(columns))
        self.count += self.kept[-1].num_rows
        if self.count >= 1_000_000:
            self.drain()

    def drain(self) -> None:
        if self.kept:
            table = pa.concat_tables(self.kept).combine_chunks()
            super().write({name: table[name] for name in table.column_names})
            self.kept, self.count = [], 0

    def close(self) -> None:
        self.drain() if self.kept else None
        super().close()


def destinations(rng: np.random.Generator, count: int) -> tuple[NDArray[np.bool_], NDArray[np.int64]]:
    """The addressed groups, as a matrix message x group; and the home group of each message."""
    size = rng.choice(np.arange(1, 6), count, p=SHARE)
    home = rng.integers(0, GROUPS, count)
    # Neighbours by distance, with a little noise: the nearest are the likeliest.
    offset = np.argsort(
        np.abs(np.arange(1, GROUPS)[None, :] - GROUPS / 2) * -1 + rng.gumbel(0, 1.5, (count, GROUPS - 1))
    )
    chosen = np.zeros((count, GROUPS), bool)
    rows = np.arange(count)
    chosen[rows, home] = True
    for extra in range(4):
        some = size > extra + 1
        chosen[rows[some], (home[some] + 1 + offset[some, extra]) % GROUPS] = True
    return chosen, home


def lists(chosen: NDArray[np.bool_]) -> pa.ListArray:
    offsets = np.concatenate([[0], np.cumsum(chosen.sum(1))]).astype(np.int32)
    return pa.ListArray.from_arrays(offsets, np.nonzero(chosen)[1].astype(np.int32))


def generate(out: Path, deliveries: int, seed: int = 1, packets: bool = True) -> dict[str, int]:
    """Writes the run; returns the rows of each table."""
    rng = np.random.default_rng(seed)
    run, total = out.name, max(1, round(deliveries / PER_MESSAGE))
    servers = GROUPS * REPLICAS
    multicasts = Table(out, "multicasts", run)
    sent = Table(out, "packets", run) if packets else None
    chains = {p: Buffered(out, "deliveries", run, f"p{p:02}") for p in range(servers)}
    length = dict.fromkeys(range(GROUPS), 0)
    sequence = np.zeros(CLIENTS, np.int64)
    clock = np.zeros(servers, np.int64)
    rows = {"multicasts": 0, "deliveries": 0, "packets": 0}
    crash_ns = int(total * 1000 * 0.7)
    for first in range(0, total, CHUNK):
        count = min(CHUNK, total - first)
        chosen, _ = destinations(rng, count)
        client = rng.integers(0, CLIENTS, count)
        order = np.argsort(client, kind="stable")
        within = np.empty(count, np.int64)
        starts = np.searchsorted(client[order], np.arange(CLIENTS))
        within[order] = np.arange(count) - starts[client[order]]
        message = (client + servers) * BASE + sequence[client] + within
        sequence += np.bincount(client, minlength=CLIENTS)
        at = (np.arange(first, first + count)) * 1000 + rng.integers(0, 900, count)
        rank = np.arange(first, first + count, dtype=np.int64) * 3
        addressed = lists(chosen)
        sender = (client + servers).astype(np.int32)
        size = rng.integers(64, 512, count).astype(np.int32)
        multicasts.write({"message": message, "sender": sender, "destinations": addressed, "at_ns": at, "bytes": size})
        rows["multicasts"] += count
        for group in range(GROUPS):
            mine = np.nonzero(chosen[:, group])[0]
            position = np.arange(length[group], length[group] + len(mine))
            length[group] += len(mine)
            listed = addressed.take(pa.array(mine))
            for process in range(group * REPLICAS, (group + 1) * REPLICAS):
                took = at[mine] + 40_000_000 + rng.integers(0, 30_000_000, len(mine))
                took = np.maximum(np.maximum.accumulate(took), clock[process])
                keep = len(mine)
                if process in CRASHED:
                    keep = int(np.searchsorted(took, crash_ns))
                if not keep:
                    continue
                clock[process] = took[-1]
                rows["deliveries"] += keep
                chains[process].write(
                    {
                        "process": np.full(keep, process, np.int32),
                        "group": np.full(keep, group, np.int32),
                        "position": position[:keep],
                        "message": message[mine[:keep]],
                        "at_ns": took[:keep],
                        "rank_time": rank[mine[:keep]],
                        "rank_tie": message[mine[:keep]],
                        "multicast_ns": at[mine[:keep]],
                        "destinations": listed.slice(0, keep),
                    }
                )
        if sent is not None:
            rows["packets"] += write_packets(sent, rng, chosen, message, sender, at, addressed, size)
    for table in (multicasts, *chains.values(), *([sent] if sent else [])):
        table.close()
    write_processes(out, run, crash_ns)
    return rows


def write_packets(
    table: Table,
    rng: np.random.Generator,
    chosen: NDArray[np.bool_],
    message: NDArray[np.int64],
    sender: NDArray[np.int32],
    at: NDArray[np.int64],
    addressed: pa.ListArray,
    size: NDArray[np.int32],
) -> int:
    """One request to every replica of every destination, and one acknowledgement between neighbours in each group."""
    index, group = np.nonzero(chosen)
    total = 0
    for replica in range(REPLICAS):
        for body in ("Request", "Ack"):
            if body == "Ack" and replica == REPLICAS - 1:
                continue
            target = (group * REPLICAS + replica).astype(np.int32)
            source = sender[index] if body == "Request" else target + 1
            gone = at[index] + (0 if body == "Request" else 20_000_000)
            table.write(
                {
                    "message": message[index],
                    "body": pa.DictionaryArray.from_arrays(np.zeros(len(index), np.int32), [body]).cast(pa.string()),
                    "source": source.astype(np.int32),
                    "target": target,
                    "bytes": size[index] + 30,
                    "sent_ns": gone,
                    "received_ns": gone + rng.integers(1_000_000, 20_000_000, len(index)),
                    "sender": sender[index],
                    "destinations": addressed.take(pa.array(index)),
                }
            )
            total += len(index)
    return total


def write_processes(out: Path, run: str, crash_ns: int) -> None:
    servers, everyone = GROUPS * REPLICAS, GROUPS * REPLICAS + CLIENTS
    table = Table(out, "processes", run)
    table.write(
        {
            "process": np.arange(everyone, dtype=np.int32),
            "group": pa.array([p // REPLICAS if p < servers else None for p in range(everyone)], pa.int32()),
            "region": pa.array([f"region-{p % GROUPS}" for p in range(everyone)]),
            "crashed_at_ns": pa.array([crash_ns if p in CRASHED else None for p in range(everyone)], pa.int64()),
        }
    )
    table.close()
    claims = {"genuine": "strict", "complete": True, "fifo": False, "exactly_once": False}
    (out / "run.json").write_text(json.dumps({"schema": 1, "run": run, "protocol": "synthetic", "claims": claims}))


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deliveries", type=int, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    begun = time.monotonic()
    print(generate(options.out, options.deliveries, options.seed), f"{time.monotonic() - begun:.1f} s")
