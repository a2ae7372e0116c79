"""P6 and P6' of one run: a kernel reads every packet, the plain checker judges those that may violate them.

A task looks the messages of its packets up in the multicasts of the same time, as footers tell it; those that are not
there are looked up in more of the table, and at last in all of it, some millions of messages at a time. Packets may
state the sender and the destinations of their message as well; those that contradict the multicasts are refused.
"""

from collections.abc import Iterator
from itertools import islice
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.check.genuineness import check_genuineness
from amcast.check.verdict import Finding
from amcast.pipeline.check.evidence import build_base_evidence, reduce_evidence, sample_multicast
from amcast.pipeline.check.run_view import RunView
from amcast.pipeline.check.runner import Call, Runner
from amcast.pipeline.check.surveyed_run import PACKET_ROWS, SurveyedRun
from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, find_buckets, select_in_buckets
from amcast.pipeline.kernels.packets import PacketAudit, ProcessTable, fast_agree
from amcast.pipeline.rows.sequences import split_lists, to_int64
from amcast.pipeline.rows.tables import (
    LOOKUP_MESSAGES,
    MessageLookup,
    Table,
    refuse_contradictions,
)
from amcast.trace.columns import TABLES
from amcast.trace.run import Columns

REACHES: Final = (1, 16, None)
"""How long before its first packet a task looks for multicasts, in lengths of the time of its packets; None: all."""
MAX_FLAGGED: Final = 100_000
"""Flagged packets that the plain checker judges."""


def judge_genuineness(run: SurveyedRun) -> list[Finding]:
    """Judges P6 and P6'."""
    view, sent = run.view, run.multicasts
    if view.packets is None:
        return list(check_genuineness(build_base_evidence(view, sample_multicast(sent))))
    audit = audit_packets(run.runner, view, run.buckets, run.packet_rows)
    concerned = {*sent.of_sender, *(p for group in sent.of_group for p in view.members[group])}
    outsiders = [p for p, took_part in zip(audit.members.ids.tolist(), audit.took_part, strict=False) if took_part]
    outsiders = [process for process in outsiders if process not in concerned]
    about = {"packets": audit.packets, "about_none": view.packets.rows - audit.packets}
    if audit.outsider_pairs or outsiders or audit.took_part[-1]:
        findings = _examine_flagged(run, concerned)
    elif audit.packets == 0 and (pair := _find_remote_delivery(view, run.ends)) is not None:
        findings = _judge_exactly(run, {pair[1]}, _empty_packets(), {pair[0]: run.ends[pair[0]]})
    else:
        findings = [Finding("P6", "holds"), Finding("P6'", "holds")]
    findings[0].checked = {**findings[0].checked, **about, "concerned": len(concerned)}
    findings[1].checked = {**findings[1].checked, **about}
    return findings


def audit_packets(runner: Runner, view: RunView, buckets: int, rows: int = PACKET_ROWS) -> PacketAudit:
    """Reads every packet; those about messages that were not found are read again with more of the multicasts."""
    assert view.packets is not None
    audit = PacketAudit(ProcessTable(view.group_of))
    # A task that looks all messages up needs a few rows per message to pay for that.
    least = 0 if view.packets.span is not None else 3 * min(view.multicasts.rows, LOOKUP_MESSAGES)
    left = [(piece, np.ones(buckets, np.bool_)) for piece in view.packets.split(max(rows, least))]
    for reach in REACHES:
        plans = [_plan_audit(view, piece, chosen, reach) for piece, chosen in left]
        answers = iter(runner([call for calls in plans for call in calls]))
        missing = []
        for calls in plans:
            missing.append(np.zeros(buckets, np.bool_))
            for part, unknown in islice(answers, len(calls)):
                audit += part
                missing[-1] |= unknown
        left = [(piece, chosen) for (piece, _), chosen in zip(left, missing, strict=True) if chosen.any()]
    return audit


def _plan_audit(view: RunView, piece: Table, chosen: NDArray[np.bool_], reach: int | None) -> list[Call]:
    """The calls that judge some packets about messages in the chosen buckets."""
    window, span = view.multicasts, piece.span
    if reach is not None and span is not None:
        window = window.restrict(span[0] - reach * (span[1] - span[0]), span[1])
    parts = max(1, -(-int(window.rows * chosen.mean()) // LOOKUP_MESSAGES))
    is_whole = window.rows == view.multicasts.rows
    return [
        (
            audit_known,
            (piece, window, view.group_of, to_mask(part, chosen.size), is_whole, reach == REACHES[0] and not number),
        )
        for number, part in enumerate(np.array_split(np.nonzero(chosen)[0], parts))
    ]


def to_mask(part: NDArray[np.intp], buckets: int) -> NDArray[np.bool_]:
    """Some bucket numbers as a mask over all buckets."""
    chosen = np.zeros(buckets, np.bool_)
    chosen[part] = True
    return chosen


def audit_known(
    table: Table,
    multicasts: Table,
    group_of: dict[int, int | None],
    chosen: NDArray[np.bool_],
    is_whole: bool,
    is_first: bool,
) -> tuple[PacketAudit, NDArray[np.bool_]]:
    """Judges packets about messages in the chosen buckets with some multicasts; says in which buckets are messages that
    these lack. `is_whole`: these are all multicasts, so nobody multicast what they lack. `is_first`: this call counts
    the packets.
    """
    known, is_everything = MessageLookup.build([multicasts], chosen), bool(chosen.all())
    audit, unknown = PacketAudit(ProcessTable(group_of)), np.zeros(chosen.size, np.bool_)
    for batch in table.batches(["message", "messages", "source", "target", "sender", "destinations"]):
        row, message = find_messages(batch)
        if is_first:
            # Each packet counts once, however many messages and parts there are.
            audit.packets += int((np.bincount(row, minlength=1) > 0).sum())
        singles = batch.num_rows - batch.column("message").null_count
        if not is_everything:
            in_chosen = select_in_buckets(message, chosen)
            singles = int(in_chosen[:singles].sum())
            row, message = row[in_chosen], message[in_chosen]
        place = known.find_places(message)
        if not is_whole and (place < 0).any():
            there = place >= 0
            unknown |= find_buckets(np.unique(message[~there]).tolist(), chosen.size)
            singles = int(there[:singles].sum())
            row, message, place = row[there], message[there], place[there]
        _refuse_contradictions(known, batch, row[:singles], message[:singles], place[:singles])
        _judge_batch(audit, known, batch, row, place)
    return audit, unknown


def _refuse_contradictions(
    known: MessageLookup, batch: pa.RecordBatch, row: Int64Array, message: Int64Array, place: Int32Array
) -> None:
    """Refuses packets that state another sender or other destinations of the one message that they are about than the
    multicasts."""
    sender, destinations = batch.column("sender"), batch.column("destinations")
    if sender.null_count == destinations.null_count == batch.num_rows:
        return
    stated = (to_int64(sender.fill_null(0)), _find_stated(sender))
    listed = (*split_lists(destinations), _find_stated(destinations))
    if fast_agree((row, place), (known.senders, known.offsets, known.values), stated, listed):
        return
    if row.size < batch.num_rows:
        sender, destinations = sender.take(pa.array(row)), destinations.take(pa.array(row))
    refuse_contradictions(known, "packets", message, destinations, senders=sender, places=place)


def _judge_batch(
    audit: PacketAudit, known: MessageLookup, batch: pa.RecordBatch, row: Int64Array, place: Int32Array
) -> NDArray[np.bool_]:
    """Which rows of the batch violate strictness, of pairs of a row and the place of a message that it is about."""
    ends = to_int64(batch.column("source")), to_int64(batch.column("target"))
    wrong = audit.judge(ends, (row, place), (known.senders, known.offsets, known.values))
    flagged = np.zeros(batch.num_rows, np.bool_)
    flagged[row[wrong]] = True
    return flagged


def _find_stated(column: pa.Array) -> NDArray[np.bool_]:
    """Which rows have a value; empty if none has."""
    if column.null_count == len(column):
        return np.zeros(0, np.bool_)
    stated: NDArray[np.bool_] = column.is_valid().to_numpy(zero_copy_only=False)
    return stated


def find_messages(batch: pa.RecordBatch) -> tuple[Int64Array, Int64Array]:
    """(row, message) for every message that a packet of the batch is about: first those of the column `message`."""
    column = batch.column("message")
    if column.null_count:
        took_part = np.nonzero(column.is_valid().to_numpy(zero_copy_only=False))[0]
        single = to_int64(column.fill_null(0))[took_part]
    else:
        took_part, single = np.arange(len(column)), to_int64(column)
    if "messages" not in batch.schema.names or batch.column("messages").null_count == batch.num_rows:
        return took_part, single
    several = batch.column("messages").fill_null(pa.scalar([], pa.list_(pa.int64())))
    rows = np.repeat(np.arange(batch.num_rows), np.diff(several.offsets.to_numpy()))
    inside = to_int64(pc.list_flatten(several))
    return np.concatenate([took_part, rows]), np.concatenate([single, inside])


# Packets that are checked exactly


def _examine_flagged(run: SurveyedRun, concerned: set[int]) -> list[Finding]:
    view = run.view
    assert view.packets is not None
    pieces = view.packets.split(PACKET_ROWS)
    call = (view.multicasts, view.group_of, run.buckets, sorted(concerned))
    columns: Columns = _empty_packets()
    for part in run.runner([(select_flagged, (piece, *call)) for piece in pieces]):
        for name, values in part.items():
            columns[name] += values
    messages: set[int] = set()
    for one, several in zip(columns["message"], columns["messages"], strict=True):
        messages.update(([one] if one is not None else []) + (several or []))
    return _judge_exactly(run, messages, columns)


def select_flagged(
    table: Table, multicasts: Table, group_of: dict[int, int | None], buckets: int, concerned: list[int]
) -> Columns:
    """The packets that violate strictness, or have an end that no message of the run concerns."""
    names = [column.name for column in TABLES["packets"][1:]]
    found: Columns = {name: [] for name in names}
    allowed = np.array(concerned, np.int64)
    parts = np.array_split(np.arange(buckets), max(1, -(-multicasts.rows // LOOKUP_MESSAGES)))
    known = [(to_mask(part, buckets), MessageLookup.build([multicasts], to_mask(part, buckets))) for part in parts]
    audit = PacketAudit(ProcessTable(group_of))
    for batch in table.batches(names):
        row, message = find_messages(batch)
        wrong = np.zeros(batch.num_rows, np.bool_)
        for chosen, lookup in known:
            own = select_in_buckets(message, chosen)
            wrong |= _judge_batch(audit, lookup, batch, row[own], lookup.find_places(message[own]))
        for end in ("source", "target"):
            wrong[row] |= ~np.isin(to_int64(batch.column(end))[row], allowed)
        part = batch.filter(pa.array(wrong))
        for name in names:
            values = part.column(name).to_pylist() if name in part.schema.names else [None] * part.num_rows
            found[name] += values[: MAX_FLAGGED - len(found[name])]
    return found


def _empty_packets() -> Columns:
    return {column.name: [] for column in TABLES["packets"][1:]}


def _judge_exactly(
    run: SurveyedRun, messages: set[int], packets: Columns | None, ends: dict[int, int] | None = None
) -> list[Finding]:
    """The plain checker's findings about some packets; one message per sender and group shows which processes are
    concerned.
    """
    sent = run.multicasts
    only = {*messages, *sent.of_sender.values(), *sent.of_group.values()}
    chosen = find_buckets(only, run.buckets)
    return list(check_genuineness(reduce_evidence(run.view, chosen, ends or {}, {}, {}, only, packets)))


def _find_remote_delivery(view: RunView, ends: dict[int, int]) -> tuple[int, int] | None:
    """Some (process, message) such that the process delivered a message of another process."""
    known = MessageLookup.build([view.multicasts])
    for process, message in _read_delivered(view, ends):
        place = known.find_places(message)
        foreign = place >= 0
        foreign[foreign] = known.senders[place[foreign]] != process
        if foreign.any():
            return process, int(message[foreign][0])
    return None


def _read_delivered(view: RunView, ends: dict[int, int]) -> Iterator[tuple[int, Int64Array]]:
    for process, end in sorted(ends.items()):
        for rows in view.sequences.rows(process, 0, end):
            yield process, rows.messages
