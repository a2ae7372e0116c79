"""Measures a large run by many tasks: its rows are first written to a scratch folder in buckets, by message.

What is measured concerns one message at a time (its responses, the packets about it, the notes about it) or one row. So
everything about a message goes to one bucket, a task observes a bucket in memory like a small run, and the sums of all
buckets are those of the run. No step depends on the order of the rows, or on a run that keeps to its properties.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.ipc as ipc

from amcast.pipeline.check.runner import Call, Runner
from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.kernels.message_index import sort_by_bucket
from amcast.pipeline.kernels.unique_ids import AscendingIds
from amcast.pipeline.measure.counts import Counts
from amcast.pipeline.measure.facts import (
    DeliveryFacts,
    Facts,
    MulticastFacts,
    NoteFacts,
    PacketFacts,
    empty_table,
    read_columns,
    take_column,
    to_notes,
    to_packets,
    to_table,
)
from amcast.pipeline.measure.membership import Membership
from amcast.pipeline.measure.observation import GroupAnswers, RunObservation, RunScope, Span, observe
from amcast.pipeline.measure.recovery import Row, measure_recovery
from amcast.pipeline.measure.small_run import MeasureSetting
from amcast.pipeline.measure.tables import Tables, build_tables
from amcast.pipeline.measure.times import KEPT_TIMES, Times
from amcast.pipeline.rows.files import resolve_filesystem
from amcast.pipeline.rows.footers import Footers, RowGroup
from amcast.pipeline.rows.sequences import to_int64
from amcast.pipeline.rows.uniqueness import Ends, are_positions_ascending, extend_ends

TASK_ROWS: Final = 2_000_000
"""Rows that one task reads, and rows in a bucket."""
MAX_CALLS: Final = 64
"""Tasks that observe buckets: each returns one sum."""


@dataclass(frozen=True)
class Piece:
    """A file with one batch of rows per bucket that has some."""

    path: str
    buckets: tuple[int, ...]


@dataclass(frozen=True)
class Written:
    """What a task that wrote buckets learned on the way."""

    piece: Piece
    counts: Counts
    times: Times | None = None
    """Of multicasts."""
    ids: AscendingIds | None = None
    ends: Ends | None = None
    """Of deliveries; None if the positions of a process do not ascend."""
    end_ns: int | None = None


def write_buckets(data: pa.Table, messages: Int64Array, buckets: int, path: str) -> Piece:
    """Writes rows in the order of the buckets of their messages."""
    order, ends = sort_by_bucket(messages, buckets)
    ordered = data.take(pa.array(order)).combine_chunks()
    filled = np.nonzero(np.diff(ends))[0].tolist()
    _write_batches(path, data.schema, (ordered.slice(ends[b], ends[b + 1] - ends[b]) for b in filled))
    return Piece(path, tuple(filled))


def _write_batches(path: str, schema: pa.Schema, parts: Iterator[pa.Table]) -> None:
    where, inner = resolve_filesystem(path)
    with where.open_output_stream(inner) as sink, ipc.new_file(sink, schema) as writer:
        for part in parts:
            for batch in part.combine_chunks().to_batches():
                writer.write_batch(batch)


def read_bucket(pieces: Sequence[Piece], bucket: int) -> pa.Table | None:
    """The rows of a bucket; None if there are none."""
    batches = []
    for piece in pieces:
        if bucket in piece.buckets:
            where, inner = resolve_filesystem(piece.path)
            file = pa.memory_map(inner) if "://" not in piece.path else where.open_input_file(inner)
            batches.append(ipc.open_file(file).get_batch(piece.buckets.index(bucket)))
    return pa.Table.from_batches(batches).combine_chunks() if batches else None


def split_multicasts(share: list[RowGroup], members: Membership, buckets: int, path: str) -> Written:
    """Writes multicasts in buckets; learns their times, and whether ids ascend."""
    data = read_columns("multicasts", share)
    messages, ids = to_int64(take_column(data, "message")), AscendingIds()
    ids.absorb(messages)
    times = Times.summarize(to_int64(take_column(data, "at_ns")))
    return Written(write_buckets(data, messages, buckets, path), Counts.zero(members), times, ids)


def split_deliveries(share: list[RowGroup], members: Membership, buckets: int, path: str) -> Written:
    """Writes deliveries in buckets; learns whether positions ascend, so that none is repeated."""
    data = read_columns("deliveries", share)
    ends: Ends = {}
    ascends = extend_ends(ends, *(to_int64(take_column(data, name)) for name in ("process", "position")))
    at = to_int64(take_column(data, "at_ns"))
    piece = write_buckets(data, to_int64(take_column(data, "message")), buckets, path)
    return Written(
        piece, Counts.zero(members), ends=ends if ascends else None, end_ns=int(at.max()) if at.size else None
    )


def split_packets(share: list[RowGroup], members: Membership, buckets: int, path: str, low: int, high: int) -> Written:
    """Writes packets about messages in buckets; counts all packets."""
    data, counts = read_columns("packets", share), Counts.zero(members)
    counts.add_packets(data, members, low, high)
    counts.add_bodies(share)
    rows = PacketFacts.build(data)
    return Written(write_buckets(to_table(rows), rows.messages, buckets, path), counts)


def split_notes(share: list[RowGroup], members: Membership, buckets: int, path: str) -> Written:
    """Writes notes about messages in buckets; counts all notes."""
    data, counts = read_columns("notes", share), Counts.zero(members)
    counts.add_notes(data)
    rows = NoteFacts.build(data)
    return Written(write_buckets(to_table(rows), rows.messages, buckets, path), counts)


def find_times(pieces: Sequence[Piece], bucket: int) -> Times:
    """The times of the multicasts of a bucket, in which messages may be repeated."""
    data = read_bucket(pieces, bucket)
    return Times.summarize(MulticastFacts.build(data).at if data is not None else np.zeros(0, np.int64))


@dataclass(frozen=True)
class BucketTables:
    """Where the rows of each table are."""

    multicasts: tuple[Piece, ...]
    deliveries: tuple[Piece, ...]
    packets: tuple[Piece, ...] | None
    notes: tuple[Piece, ...]
    are_deliveries_unique: bool

    def read(self, bucket: int) -> Facts:
        """Everything about the messages of a bucket."""

        def read(table: str, pieces: Sequence[Piece]) -> pa.Table:
            found = read_bucket(pieces, bucket)
            return empty_table(table) if found is None else found

        packets = read_bucket(self.packets or (), bucket)
        notes = read_bucket(self.notes, bucket)
        none = PacketFacts.build(empty_table("packets"))
        return Facts(
            MulticastFacts.build(read("multicasts", self.multicasts)),
            DeliveryFacts.build(read("deliveries", self.deliveries), self.are_deliveries_unique),
            None if self.packets is None else none if packets is None else to_packets(packets),
            NoteFacts.build(empty_table("notes")) if notes is None else to_notes(notes),
        )


def observe_buckets(
    tables: BucketTables, buckets: Sequence[int], scope: RunScope, answers_path: str | None
) -> tuple[RunObservation, Piece | None]:
    """The sum over some buckets; with a path, the responses of each group are written there."""
    total, answers = RunObservation.zero(scope.is_exact), dict[int, list[GroupAnswers]]()
    for bucket in buckets:
        seen = observe(tables.read(bucket), scope, keeps_answers=answers_path is not None)
        for group, own in seen.answers.items():
            answers.setdefault(group, []).append(own)
        seen.answers = {}
        total += seen
    if answers_path is None:
        return total, None
    schema = pa.schema([("at", pa.int64()), ("sent", pa.int64())])
    parts = (
        pa.table([np.concatenate([one.at for one in own]), np.concatenate([one.sent for one in own])], schema=schema)
        for own in answers.values()
    )
    _write_batches(answers_path, schema, parts)
    return total, Piece(answers_path, tuple(answers))


def recover_group(group: int, pieces: Sequence[Piece], faults: set[tuple[int, str, int]]) -> list[Row]:
    """The recovery of one group, from the responses of all buckets."""
    data = read_bucket(pieces, group)
    answers = None if data is None else GroupAnswers(*(to_int64(take_column(data, name)) for name in ("at", "sent")))
    return measure_recovery(group, answers, faults)


class LargeRun:
    """One run of proven tables, measured by the calls of a runner."""

    def __init__(
        self,
        runner: Runner,
        scratch: str,
        footers: Footers,
        members: Membership,
        setting: MeasureSetting,
        task_rows: int = TASK_ROWS,
    ) -> None:
        self._runner = runner
        self._scratch = scratch
        self._footers = footers
        self._members = members
        self._setting = setting
        rows = max(sum(one.rows for one in footers.get(table, ())) for table in ("deliveries", "packets", "multicasts"))
        self._buckets = max(1, -(-rows // task_rows))
        self._task_rows = task_rows

    def measure(self, run: str) -> Tables:
        """The run's tables."""
        sent = self._runner(self._plan_split("multicasts", split_multicasts))
        pieces = tuple(one.piece for one in sent)
        times = self._find_times(sent, pieces)
        bounds = Span.find(times, self._setting.edge, None)
        plans = (
            self._plan_split("deliveries", split_deliveries),
            self._plan_split("packets", split_packets, bounds.low_ns, bounds.high_ns),
            self._plan_split("notes", split_notes),
        )
        written = iter(self._runner([call for plan in plans for call in plan]))
        delivered, packets, notes = ([next(written) for _ in plan] for plan in plans)
        counts = Counts.zero(self._members)
        for one in (*packets, *notes):
            counts += one.counts
        counts.add_crashes(self._members)
        tables = BucketTables(
            pieces,
            tuple(one.piece for one in delivered),
            tuple(one.piece for one in packets) if "packets" in self._footers else None,
            tuple(one.piece for one in notes),
            are_positions_ascending([one.ends for one in delivered]),
        )
        end_ns = max((one.end_ns for one in delivered if one.end_ns is not None), default=None)
        span = Span.find(times, self._setting.edge, end_ns)
        kept = max(1 << 12, 4 * KEPT_TIMES // self._buckets)
        scope = RunScope(self._members, span, self._setting.order, self._setting.is_exact, kept)
        seen, answers = self._observe(tables, scope, bool(counts.faults))
        if seen.end_ns != end_ns:
            # Deliveries of messages that were never multicast do not count.
            scope = replace(scope, span=Span.find(times, self._setting.edge, seen.end_ns))
            seen, answers = self._observe(tables, scope, bool(counts.faults))
        found = build_tables(run, seen, counts, scope, self._setting.edge, "packets" in self._footers)
        groups = self._members.group_ids.tolist() if counts.faults else []
        recovered = self._runner([(recover_group, (group, answers, counts.faults)) for group in groups])
        found["recovery"] = [{"run": run, **row} for rows in recovered for row in rows]
        return found

    def _plan_split(self, table: str, split: Callable[..., Written], *arguments: int) -> list[Call]:
        return [
            (split, (share, self._members, self._buckets, f"{self._scratch}/{table}-{number}.arrow", *arguments))
            for number, share in enumerate(_split_rows(self._footers.get(table, ()), self._task_rows))
        ]

    def _find_times(self, sent: list[Written], pieces: tuple[Piece, ...]) -> Times:
        """The times of all multicasts, each message once, at its earliest."""
        ids = [one.ids for one in sent if one.ids is not None]
        for later in ids[1:]:
            ids[0].extend_with(later)
        if not ids or ids[0].is_ascending:
            return Times.join([one.times for one in sent if one.times is not None])
        return Times.join(self._runner([(find_times, (pieces, bucket)) for bucket in range(self._buckets)]))

    def _observe(self, tables: BucketTables, scope: RunScope, keeps: bool) -> tuple[RunObservation, tuple[Piece, ...]]:
        step = -(-self._buckets // MAX_CALLS)
        shares = [range(at, min(at + step, self._buckets)) for at in range(0, self._buckets, step)]
        paths = [f"{self._scratch}/answers-{number}.arrow" if keeps else None for number in range(len(shares))]
        calls: list[Call] = [
            (observe_buckets, (tables, list(share), scope, path)) for share, path in zip(shares, paths, strict=True)
        ]
        total = RunObservation.zero(scope.is_exact)
        answers = []
        for seen, piece in self._runner(calls):
            total += seen
            answers += [piece] if piece is not None else []
        return total, tuple(answers)


def _split_rows(row_groups: Sequence[RowGroup], task_rows: int) -> list[list[RowGroup]]:
    """Row groups in order, in shares for one task each."""
    shares: list[list[RowGroup]] = []
    rows = task_rows
    for one in row_groups:
        if rows + one.rows > task_rows:
            shares.append([])
            rows = 0
        shares[-1].append(one)
        rows += one.rows
    return shares
