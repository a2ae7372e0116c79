"""P6 and P6' of one run: a kernel looks at every packet, the plain checker tells about those that stand out.

Rows that state their message's sender and destinations (`packets.sender`, `packets.destinations`) are judged by
themselves. For the others a task looks their messages up in the multicasts, some millions of messages at a time.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from amcast.check.genuineness import genuineness
from amcast.check.verdict import Finding
from amcast.pipeline.check.evidence import any_multicast, reduced, standing_evidence
from amcast.pipeline.check.run_view import LOOKUP_MESSAGES, Lookup, Table, View
from amcast.pipeline.kernels.fingerprints import Ints, buckets_of, in_buckets
from amcast.pipeline.kernels.packets import Audit, Members
from amcast.pipeline.rows.sequences import listed, longs
from amcast.trace.columns import TABLES
from amcast.trace.run import Columns

if TYPE_CHECKING:
    from amcast.pipeline.check.examination import Call, Examination

PACKET_ROWS: Final = 8_000_000
MAX_TOLD: Final = 100_000
"""Packets that stand out and are looked at one by one."""


def judged(examination: "Examination") -> list[Finding]:
    """P6 and P6'."""
    view, sent = examination.view, examination.sent
    assert sent is not None
    if view.packets is None:
        return list(genuineness(standing_evidence(view, any_multicast(sent))))
    audit = Audit(Members(view.group_of))
    for part in examination.runner(calls(examination)):
        audit += part
    concerned = {*sent.of_sender, *(p for group in sent.of_group for p in view.members[group])}
    outsiders = [p for p, there in zip(audit.members.ids.tolist(), audit.took_part, strict=False) if there]
    outsiders = [process for process in outsiders if process not in concerned]
    about = {"packets": audit.packets, "about_none": view.packets.rows - audit.packets}
    if audit.strangers or outsiders or audit.took_part[-1]:
        findings = _standing_out(examination, concerned)
    elif audit.packets == 0 and (pair := _travelled(view, examination.ends)) is not None:
        findings = _told(examination, {pair[1]}, _no_packets(), {pair[0]: examination.ends[pair[0]]})
    else:
        findings = [Finding("P6", "holds"), Finding("P6'", "holds")]
    findings[0].checked = {**findings[0].checked, **about, "concerned": len(concerned)}
    findings[1].checked = {**findings[1].checked, **about}
    return findings


def calls(examination: "Examination") -> "list[Call]":
    """The tasks that look at every packet."""
    view = examination.view
    assert view.packets is not None
    pieces = view.packets.split(PACKET_ROWS)
    if view.stated:
        return [(audit_stated, (piece, view.group_of, view.about_all)) for piece in pieces]
    parts = max(1, -(-view.multicasts.rows // LOOKUP_MESSAGES))
    buckets = np.array_split(np.arange(examination.buckets), parts)
    return [
        (audit_known, (piece, view.multicasts, view.group_of, chosen_of(part, examination.buckets), number == 0))
        for piece in pieces
        for number, part in enumerate(buckets)
    ]


def chosen_of(part: NDArray[np.intp], buckets: int) -> NDArray[np.bool_]:
    chosen = np.zeros(buckets, np.bool_)
    chosen[part] = True
    return chosen


def audit_stated(table: Table, group_of: dict[int, int | None], about_all: bool) -> Audit:
    """Judge packets whose rows state everything; the messages themselves are read only if some have none."""
    audit = Audit(Members(group_of))
    names = ["source", "target", "sender", "destinations"]
    for batch in table.batches(names if about_all else [*names, "message"]):
        if not about_all and batch.column("message").null_count:
            batch = batch.filter(pc.is_valid(batch.column("message")))
        offsets, values = listed(batch.column("destinations"))
        source, target, sender = (batch.column(name).to_numpy() for name in ("source", "target", "sender"))
        audit.judge(source, target, sender, offsets, values)
        audit.packets += batch.num_rows
    return audit


def audit_known(
    table: Table, multicasts: Table, group_of: dict[int, int | None], chosen: NDArray[np.bool_], first: bool
) -> Audit:
    """Judge packets about messages in the chosen buckets, as the multicasts describe them."""
    known = Lookup.of([multicasts], chosen)
    audit = Audit(Members(group_of))
    for batch in table.batches(["message", "messages", "source", "target"]):
        row, message = about(batch)
        if first:
            # Each packet counts once, whatever the number of messages and of parts.
            audit.packets += np.unique(row).size
        _judge(audit, known, batch, row, message, chosen)
    return audit


def _judge(
    audit: Audit, known: Lookup, batch: pa.RecordBatch, row: Ints, message: Ints, chosen: NDArray[np.bool_]
) -> NDArray[np.bool_]:
    """Which of the batch's rows break strictness."""
    mine = in_buckets(message, chosen)
    row, message = row[mine], message[mine]
    place = known.places(message)
    offsets, values, _ = known.of_places(place)
    nobody = np.iinfo(np.int64).min
    senders = np.where(place >= 0, known.senders[place], nobody) if known.messages.size else np.full(place.size, nobody)
    source, target = longs(batch.column("source"))[row], longs(batch.column("target"))[row]
    wrong = audit.judge(source, target, senders, offsets, values)
    flagged = np.zeros(batch.num_rows, np.bool_)
    flagged[row[wrong | (place < 0)]] = True
    return flagged


def about(batch: pa.RecordBatch) -> tuple[Ints, Ints]:
    """(row, message) for every message that a packet of the batch is about."""
    column = batch.column("message")
    there = np.nonzero(column.is_valid().to_numpy(zero_copy_only=False))[0]
    single = longs(column.fill_null(0))[there]
    if "messages" not in batch.schema.names or batch.column("messages").null_count == batch.num_rows:
        return there, single
    several = batch.column("messages").fill_null(pa.scalar([], pa.list_(pa.int64())))
    rows = np.repeat(np.arange(batch.num_rows), np.diff(several.offsets.to_numpy()))
    inside = longs(pc.list_flatten(several))
    return np.concatenate([there, rows]), np.concatenate([single, inside])


# The few that stand out


def _standing_out(examination: "Examination", concerned: set[int]) -> list[Finding]:
    view = examination.view
    assert view.packets is not None
    pieces = view.packets.split(PACKET_ROWS)
    call = (view.multicasts, view.group_of, examination.buckets, sorted(concerned))
    columns: Columns = _no_packets()
    for part in examination.runner([(flagged, (piece, *call)) for piece in pieces]):
        for name, values in part.items():
            columns[name] += values
    messages: set[int] = set()
    for one, several in zip(columns["message"], columns["messages"], strict=True):
        messages.update(([one] if one is not None else []) + (several or []))
    return _told(examination, messages, columns)


def flagged(
    table: Table, multicasts: Table, group_of: dict[int, int | None], buckets: int, concerned: list[int]
) -> Columns:
    """The packets that break strictness, or have an end that no message of the run concerns."""
    names = [column.name for column in TABLES["packets"][1:]]
    found: Columns = {name: [] for name in names}
    allowed = np.array(concerned, np.int64)
    parts = np.array_split(np.arange(buckets), max(1, -(-multicasts.rows // LOOKUP_MESSAGES)))
    known = [(chosen_of(part, buckets), Lookup.of([multicasts], chosen_of(part, buckets))) for part in parts]
    audit = Audit(Members(group_of))
    for batch in table.batches(names):
        row, message = about(batch)
        wrong = np.zeros(batch.num_rows, np.bool_)
        for chosen, lookup in known:
            wrong |= _judge(audit, lookup, batch, row, message, chosen)
        for end in ("source", "target"):
            wrong[row] |= ~np.isin(longs(batch.column(end))[row], allowed)
        part = batch.filter(pa.array(wrong))
        for name in names:
            values = part.column(name).to_pylist() if name in part.schema.names else [None] * part.num_rows
            found[name] += values[: MAX_TOLD - len(found[name])]
    return found


def _no_packets() -> Columns:
    return {column.name: [] for column in TABLES["packets"][1:]}


def _told(
    examination: "Examination", messages: set[int], packets: Columns | None, ends: dict[int, int] | None = None
) -> list[Finding]:
    """The plain checker's word about some packets; one message per sender and group says who is concerned."""
    sent = examination.sent
    assert sent is not None
    only = {*messages, *sent.of_sender.values(), *sent.of_group.values()}
    chosen = buckets_of(only, examination.buckets)
    return list(genuineness(reduced(examination.view, chosen, ends or {}, {}, {}, only, packets)))


def _travelled(view: View, ends: dict[int, int]) -> tuple[int, int] | None:
    """Some (process, message) such that the process delivered another one's message."""
    known = Lookup.of([view.multicasts])
    for process, message in _delivered(view, ends):
        place = known.places(message)
        foreign = place >= 0
        foreign[foreign] = known.senders[place[foreign]] != process
        if foreign.any():
            return process, int(message[foreign][0])
    return None


def _delivered(view: View, ends: dict[int, int]) -> Iterator[tuple[int, Ints]]:
    for process, end in sorted(ends.items()):
        for rows in view.sequences.rows(process, 0, end):
            yield process, rows.messages
