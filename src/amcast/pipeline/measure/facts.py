"""The rows of one run that measures need, as arrays: of a whole small run, or of some messages of a large one.

Tables are first reduced to the columns below. What concerns no message (counts of packets by process, notes without a
message) is counted on the way: see `counts`.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array
from amcast.pipeline.kernels.message_index import MessageIndex
from amcast.pipeline.kernels.packet_ends import NOTHING_CARRIED
from amcast.pipeline.rows.files import open_parquet
from amcast.pipeline.rows.footers import RowGroup
from amcast.pipeline.rows.sequences import split_lists, to_int64
from amcast.pipeline.rows.uniqueness import drop_repeated, extend_ends
from amcast.trace.columns import TABLES
from amcast.trace.parquet import TYPES, iterate_canonical

READ_ROWS: Final = 1 << 19

COLUMNS: Final[dict[str, tuple[str, ...]]] = {
    "multicasts": ("message", "sender", "destinations", "at_ns", "bytes"),
    "deliveries": ("process", "group", "position", "message", "at_ns", "committed_ns"),
    "packets": ("message", "source", "target", "bytes", "sent_ns", "received_ns", "messages"),
    "notes": ("name", "process", "at_ns", "message", "value"),
}
"""The columns that are read of each table, besides `packets.body`, which is only counted."""


def read_columns(table: str, row_groups: Iterable[RowGroup], run: str | None = None) -> pa.Table:
    """The needed columns of some row groups, which were proven clean; with `run`, only the rows of that run."""
    names = COLUMNS[table]
    found = []
    for one in row_groups:
        wanted = names if run is None else (*names, "run")
        for data in iterate_canonical(table, one.path, open_parquet(one.path), wanted, one.row_group, READ_ROWS):
            found.append((data if run is None else data.filter(pc.equal(data["run"], run))).select(names))
    return pa.concat_tables(found).combine_chunks() if found else empty_table(table)


def empty_table(table: str) -> pa.Table:
    """No rows, with the needed columns."""
    types = {column.name: TYPES[column.type] for column in TABLES[table]}
    return pa.schema([(name, types[name]) for name in COLUMNS[table]]).empty_table()


def take_column(data: pa.Table, name: str) -> pa.Array:
    """A column in one piece."""
    column = data.column(name)
    return column.chunk(0) if column.num_chunks == 1 else pa.concat_arrays([*column.chunks, pa.nulls(0, column.type)])


@dataclass(frozen=True)
class MulticastFacts:
    """Each message once, at its earliest multicast."""

    index: MessageIndex
    senders: Int64Array
    offsets: Int32Array
    destinations: Int32Array
    at: Int64Array
    payloads: Int64Array

    @staticmethod
    def build(data: pa.Table) -> "MulticastFacts":
        """Of rows in which a message may be repeated."""
        index = MessageIndex(to_int64(take_column(data, "message")))
        if not index.is_unique:
            data = drop_repeated("multicasts", data)
            index = MessageIndex(to_int64(take_column(data, "message")))
        offsets, values = split_lists(take_column(data, "destinations"))
        values = values[offsets[0] : offsets[-1]]
        others = (to_int64(take_column(data, name)) for name in ("sender", "at_ns", "bytes"))
        sender, at, payload = others
        return MulticastFacts(index, sender, offsets - offsets[0], values, at, payload)

    @property
    def count(self) -> int:
        return int(self.at.size)


class DeliveryFacts(NamedTuple):
    """Rows of deliveries, none repeated."""

    processes: Int32Array
    groups: Int32Array
    messages: Int64Array
    at: Int64Array
    committed: Int64Array
    is_committed: NDArray[np.bool_] | None
    """None: no row has a time of commitment."""

    @staticmethod
    def build(data: pa.Table, is_unique: bool | None = None) -> "DeliveryFacts":
        """Of rows that may be repeated, unless that is known."""
        if is_unique is None:
            columns = (to_int64(take_column(data, name)) for name in ("process", "position"))
            is_unique = extend_ends({}, *columns)
        if not is_unique:
            data = drop_repeated("deliveries", data)
        committed = take_column(data, "committed_ns")
        has_any = committed.null_count < len(committed)
        process, group, message, at = (
            take_column(data, name).to_numpy() for name in ("process", "group", "message", "at_ns")
        )
        times = to_int64(committed.fill_null(0)) if has_any else np.zeros(0, np.int64)
        is_committed = committed.is_valid().to_numpy(zero_copy_only=False) if has_any else None
        return DeliveryFacts(process, group, message, at, times, is_committed)


class PacketFacts(NamedTuple):
    """Pairs of a packet and a message that it is about."""

    messages: Int64Array
    sources: Int32Array
    targets: Int32Array
    carried: Int64Array
    """The size of a packet about one message that was received, else NOTHING_CARRIED."""

    @staticmethod
    def build(data: pa.Table) -> "PacketFacts":
        """Of rows of packets: those about no message are left out, those about several are repeated."""
        message, several = take_column(data, "message"), take_column(data, "messages")
        source, target = (take_column(data, name).to_numpy() for name in ("source", "target"))
        arrived = take_column(data, "received_ns").is_valid().to_numpy(zero_copy_only=False)
        carried = np.where(arrived, to_int64(take_column(data, "bytes")), NOTHING_CARRIED)
        if several.null_count == len(several):
            if not message.null_count:
                return PacketFacts(to_int64(message), source, target, carried)
            about = np.nonzero(message.is_valid().to_numpy(zero_copy_only=False))[0]
            return PacketFacts(to_int64(message.drop_null()), source[about], target[about], carried[about])
        single = pc.if_else(message.is_valid(), pa.array(np.ones(len(message), np.int32)), 0)
        counts = pc.coalesce(pc.list_value_length(several), single).to_numpy()
        owner = np.repeat(np.arange(len(message)), counts)
        every = np.zeros(owner.size, np.int64)
        listed = several.is_valid().to_numpy(zero_copy_only=False)
        every[listed[owner]] = to_int64(pc.list_flatten(several))
        every[~listed[owner]] = to_int64(message.fill_null(0))[owner[~listed[owner]]]
        carried = np.where(counts == 1, carried, NOTHING_CARRIED)
        return PacketFacts(every, source[owner], target[owner], carried[owner])


class NoteFacts(NamedTuple):
    """Notes about messages."""

    names: pa.Array
    processes: Int32Array
    messages: Int64Array
    values: NDArray[np.float64]
    """NaN where a note has none."""

    @staticmethod
    def build(data: pa.Table) -> "NoteFacts":
        """Of rows of notes: those about no message are left out."""
        data = data.filter(data.column("message").is_valid())
        return NoteFacts(
            take_column(data, "name"),
            take_column(data, "process").to_numpy(),
            to_int64(take_column(data, "message")),
            take_column(data, "value").fill_null(float("nan")).to_numpy(zero_copy_only=False),
        )


class Facts(NamedTuple):
    """What was recorded about some messages of a run: everything, or nothing."""

    multicasts: MulticastFacts
    deliveries: DeliveryFacts
    packets: PacketFacts | None
    notes: NoteFacts


def to_table(rows: PacketFacts | NoteFacts) -> pa.Table:
    """Rows as a table, to be written."""
    return pa.table([pa.array(column) for column in rows], names=list(rows._fields))


def to_packets(data: pa.Table) -> PacketFacts:
    """The packets of such a table again."""
    message, source, target, carried = (take_column(data, name).to_numpy() for name in PacketFacts._fields)
    return PacketFacts(message, source, target, carried)


def to_notes(data: pa.Table) -> NoteFacts:
    """The notes of such a table again."""
    names = take_column(data, "names")
    process, message, value = (take_column(data, name).to_numpy() for name in NoteFacts._fields[1:])
    return NoteFacts(names, process, message, value)
