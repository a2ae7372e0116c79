"""Reduced evidence for the plain checker: the messages that matter, every row about them, all positions unchanged. The
plain checker's findings about these messages are then those about the whole run.

A part is enough because P1, P2 and P3 concern one message at a time, "precedes" two, and a session its own messages.
Omitting other messages changes nothing about those that stay.
"""

from dataclasses import dataclass, field

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from amcast.check.evidence import DeliverySequence, Entry, Evidence, collect_evidence, sort_key
from amcast.check.integrity import check_agreement, check_integrity, check_validity
from amcast.check.real_time import find_completions
from amcast.check.verdict import MAX_SENTENCES, Finding
from amcast.pipeline.check.run_view import ColumnPackets, RunView
from amcast.pipeline.check.survey import MulticastSurvey, Segment, select_rows
from amcast.pipeline.kernels.fingerprints import select_in_buckets
from amcast.pipeline.rows.tables import Table
from amcast.trace.columns import TABLES
from amcast.trace.run import Columns, Run

SnapshotFills = dict[int, tuple[Segment, ...]]
"""process -> positions that a snapshot stands for, with the process that recorded them."""


def build_base_evidence(
    view: RunView, known: Columns, packets: Columns | None = None, answers: Columns | None = None
) -> Evidence:
    """Evidence of the membership and of some rows of the multicasts, without deliveries."""
    processes: Columns = {column.name: [] for column in TABLES["processes"][1:]}
    for process in sorted(view.group_of):
        processes["process"].append(process)
        processes["group"].append(view.group_of[process])
        processes["region"].append("")
        processes["crashed_at_ns"].append(view.crashed.get(process))
        processes["host"].append(view.host_of.get(process))
    nothing: dict[str, Columns] = {
        table: {column.name: [] for column in TABLES[table][1:]} for table in ("deliveries", "notes")
    }
    packet_table = ColumnPackets(packets) if packets is not None else None
    run = Run(view.meta, processes, known, nothing["deliveries"], nothing["notes"], packet_table, answers)
    return collect_evidence(run)


def sample_multicast(sent: MulticastSurvey) -> Columns:
    """One row of the multicasts, if there is one, for checks that depend only on whether there is any."""
    known: Columns = {column.name: [] for column in TABLES["multicasts"][1:]}
    for (sender, message), group in zip(list(sent.of_sender.items())[:1], sent.of_group, strict=False):
        row = {"message": message, "sender": sender, "destinations": [group], "at_ns": 0, "bytes": 0}
        for name in known:
            known[name].append(row.get(name))
    return known


def reduce_evidence(
    view: RunView,
    chosen: NDArray[np.bool_],
    ends: dict[int, int],
    fills: SnapshotFills,
    gaps: dict[int, int],
    only: set[int] | None = None,
    packets: Columns | None = None,
) -> Evidence:
    """Evidence of the messages in the chosen buckets (of these only `only`, if given)."""
    known = _read_rows(view.multicasts, "multicasts", chosen, only)
    answers = _read_rows(view.answers, "answers", chosen, only) if view.answers is not None else None
    evidence = build_base_evidence(view, known, packets, answers)
    rows: dict[int, list[Entry]] = {p: select_rows(view.sequences, p, end, chosen) for p, end in ends.items()}
    if only is not None:
        rows = {process: [row for row in matching if row[1] in only] for process, matching in rows.items()}
    _fill_installed(rows, fills)
    for process in {*rows, *gaps}:
        matching = sorted(rows.get(process, []), key=sort_key)
        evidence.sequences[process] = DeliverySequence(process, matching, gaps.get(process))
    evidence.sequences = dict(sorted(evidence.sequences.items()))
    return evidence


def _read_rows(rows: Table, table: str, chosen: NDArray[np.bool_], only: set[int] | None) -> Columns:
    """The chosen rows of a table about messages, in file order."""
    names = [column.name for column in TABLES[table][1:]]
    matching: Columns = {name: [] for name in names}
    for batch in rows.batches(names):
        keep = np.nonzero(select_in_buckets(_ids(batch), chosen))[0]
        part = batch.take(pa.array(keep))
        rows_of_process = range(part.num_rows)
        if only is not None:
            rows_of_process = [at for at, message in enumerate(part.column("message").to_pylist()) if message in only]  # type: ignore[assignment]
        for name in names:
            values = part.column(name).to_pylist() if name in part.schema.names else [None] * part.num_rows
            matching[name] += [values[at] for at in rows_of_process]
    return matching


def _ids(batch: pa.RecordBatch) -> NDArray[np.int64]:
    ids: NDArray[np.int64] = batch.column("message").cast(pa.int64()).to_numpy(zero_copy_only=False)
    return ids


def _fill_installed(rows: dict[int, list[Entry]], fills: SnapshotFills) -> None:
    """Adds the deliveries that a snapshot stands for, where the process itself recorded none."""
    recorded = {process: list(matching) for process, matching in rows.items()}
    for process, segments in fills.items():
        rows_of_process = rows.setdefault(process, [])
        known = {(position, message) for position, message, _ in rows_of_process}
        for peer, low, high in segments:
            there = [row[:2] for row in recorded.get(peer, []) if low <= row[0] < high]
            rows_of_process += [
                (position, message, None) for position, message in there if (position, message) not in known
            ]


@dataclass
class ExactFindings:
    """P1, P2 and P3 about some messages, row by row."""

    findings: list[Finding]
    messages: int
    """Distinct messages that were multicast."""
    delivered: int
    """How many of these some process delivered."""
    valid: int
    """How many of these an addressed process delivered."""
    correct: int
    """How many of these have a sender that did not crash."""
    rows: int
    """Rows of the multicasts about them: more than messages if a client retried."""
    correct_rows: int
    invalid: dict[int, list[int]] = field(default_factory=dict)
    """process -> positions of deliveries that integrity does not allow."""
    invalid_filled: dict[int, list[int]] = field(default_factory=dict)
    """The same for positions that a snapshot stands for."""
    pending: dict[int, tuple[int, int, tuple[int, ...]]] = field(default_factory=dict)
    """Messages that are complete and that no addressed process delivered: completion, multicast, destinations."""


def check_exactly(
    view: RunView, chosen: NDArray[np.bool_], ends: dict[int, int], fills: SnapshotFills, gaps: dict[int, int]
) -> ExactFindings:
    """The plain checker's findings about the messages in the chosen buckets."""
    evidence = reduce_evidence(view, chosen, ends, fills, gaps)
    invalid: dict[int, list[int]] = {}
    invalid_filled: dict[int, list[int]] = {}
    valid: set[int] = set()
    for process, sequence in evidence.sequences.items():
        messages, positions = evidence.valid_deliveries(sequence)
        if view.group_of.get(process) is not None:
            valid.update(messages)
        if len(positions) < len(sequence.positions):
            allowed = set(positions)
            for position, _, at_ns in sequence.entries:
                if position not in allowed:
                    (invalid if at_ns is not None else invalid_filled).setdefault(process, []).append(position)
    delivered = {message for sequence in evidence.sequences.values() for message in sequence.messages}
    findings = [check_integrity(evidence), check_validity(evidence), check_agreement(evidence)]
    completed = find_completions(evidence) if view.answers is not None else {}
    return ExactFindings(
        findings,
        len(evidence.destinations),
        len(delivered & set(evidence.destinations)),
        len(valid),
        findings[1].checked.get("messages", 0),
        len(evidence.run.multicasts["sender"]),
        sum(sender not in view.crashed for sender in evidence.run.multicasts["sender"]),
        invalid,
        invalid_filled,
        {
            message: (at_ns, evidence.multicast_ns[message], evidence.destinations[message])
            for message, at_ns in completed.items()
            if message not in valid
        },
    )


def join_findings(parts: list[Finding]) -> Finding:
    """One finding about all messages from findings about parts of them."""
    for verdict in ("violated", "unknown"):
        matching = [part for part in parts if part.verdict == verdict]
        if matching:
            break
    else:
        return parts[0]
    if len(matching) == 1:
        return matching[0]
    sentences = [pair for part in matching for pair in zip(part.witness, part.story, strict=False)]
    sentences.sort(key=lambda pair: tuple(pair[0].get(key, 0) for key in ("process", "position", "message")))
    count = sum(part.checked[verdict] for part in matching)
    story = [sentence for _, sentence in sentences[:MAX_SENTENCES]]
    if count > MAX_SENTENCES:
        story.append(f"and {count - MAX_SENTENCES} more like these")
    witness = [data for data, _ in sentences[:MAX_SENTENCES]]
    return Finding(matching[0].property, matching[0].verdict, True, {verdict: count}, story, witness)
