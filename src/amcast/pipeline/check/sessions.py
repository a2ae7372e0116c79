"""P7 and P8 of one run: a kernel reads every sequence, the plain checker judges the sessions that may violate them.

Sessions are independent of each other: a task takes those whose hash falls into its part, looks their messages up, and
reads all sequences once. Its memory is that of its part, whatever the length of the trace.
"""

from collections.abc import Iterator
from itertools import groupby
from typing import Final

import numpy as np

from amcast.check.sessions import check_sessions
from amcast.check.verdict import Finding
from amcast.pipeline.check.evidence import build_base_evidence, reduce_evidence, sample_multicast
from amcast.pipeline.check.survey import ChainPlan, read_entries
from amcast.pipeline.check.surveyed_run import SurveyedRun
from amcast.pipeline.kernels.fingerprints import Int64Array, find_buckets, select_in_buckets
from amcast.pipeline.kernels.sessions import SessionIndex, SessionWalk
from amcast.pipeline.rows.sequences import Sequences, reorder_lists
from amcast.pipeline.rows.tables import Table, read_multicasts

PART_MESSAGES: Final = 4_000_000
MAX_REPORTED: Final = 200
"""Suspect sessions that the plain checker judges."""
PARTS: Final = 1 << 10


def judge_sessions(run: SurveyedRun) -> list[Finding]:
    """Judges P7 and P8."""
    view, sent, gaps = run.view, run.multicasts, run.gaps
    if not sent.sessions:
        return list(check_sessions(build_base_evidence(view, sample_multicast(sent))))
    count = min(PARTS, max(1, -(-sent.sessions // PART_MESSAGES)))
    parts = [np.isin(np.arange(PARTS), piece) for piece in np.array_split(np.arange(PARTS), count)]
    ends = {p: end for p, end in run.ends.items() if view.group_of.get(p) is not None}
    # A snapshot stands for deliveries, too.
    plans = {p: gaps.plan_member_chain(group, p) for p in gaps.fills if (group := view.group_of.get(p)) is not None}
    ends = dict.fromkeys(plans, 0) | ends
    given = (view.sequences, view.multicasts, ends, plans, view.group_of)
    walked = run.runner([(walk_sessions, (*given, part)) for part in parts])
    suspects = sorted({name for part in walked for name in part[0]})[:MAX_REPORTED]
    found = [Finding("P7", "holds"), Finding("P8", "holds")]
    if suspects or gaps.first:
        assert sent.of_session is not None
        messages = {message for part in walked for name in suspects for message in part[3].get(name, ())}
        messages = messages or {sent.of_session}
        chosen = find_buckets(messages, run.buckets)
        found = list(check_sessions(reduce_evidence(view, chosen, run.ends, gaps.fills, gaps.first, messages)))
    counts = {"deliveries": sum(part[1] for part in walked), "sessions": sum(part[2] for part in walked)}
    for finding in found:
        finding.checked = {**finding.checked, **counts}
    return found


def walk_sessions(
    sequences: Sequences,
    multicasts: Table,
    ends: dict[int, int],
    plans: dict[int, ChainPlan],
    group_of: dict[int, int | None],
    part: "np.typing.NDArray[np.bool_]",
) -> tuple[set[int], int, int, dict[int, list[int]]]:
    """(suspect sessions, deliveries judged, sessions, the messages of suspect sessions)."""
    message, session, sequence, lengths, values = _read_session_messages(multicasts, part)
    numbered = SessionIndex(message, session, sequence)
    owner = np.repeat(numbered.place_of, lengths)
    suspects: set[int] = set()
    deliveries = 0
    for group, members in groupby(sorted(ends, key=lambda process: str(group_of[process])), key=group_of.__getitem__):
        expected = np.zeros(numbered.owner_of_key.size, np.bool_)
        expected[numbered.key[owner[values == group]]] = True
        ranks = numbered.rank_keys(expected)
        for process in members:
            steps = SessionWalk(numbered, ranks)
            for messages in _read_messages(sequences, process, ends[process], plans.get(process)):
                steps.absorb(messages)
            deliveries += steps.judged
            suspects.update(numbered.names[steps.is_wrong].tolist())
    listed = {name: message[session == name].tolist() for name in sorted(suspects)[:MAX_REPORTED]}
    return suspects, deliveries, int(np.unique(session).size), listed


def _read_messages(sequences: Sequences, process: int, end: int, plan: ChainPlan | None) -> Iterator[Int64Array]:
    if plan is None:
        yield from sequences.messages(process, 0, end)
    else:
        for rows in read_entries(sequences, plan):
            yield rows.messages


def _read_session_messages(
    multicasts: Table, part: "np.typing.NDArray[np.bool_]"
) -> tuple[Int64Array, Int64Array, Int64Array, "np.typing.NDArray[np.int32]", "np.typing.NDArray[np.int32]"]:
    """The messages of the sessions in a part: message, session, sequence number, number of destinations,
    destinations.
    """
    found = []
    for rows in read_multicasts(multicasts):
        keep = np.nonzero(rows.in_session & select_in_buckets(rows.sessions, part))[0]
        offsets, values = reorder_lists(rows.offsets, rows.values, keep)
        found.append((rows.messages[keep], rows.sessions[keep], rows.sequences[keep], np.diff(offsets), values))
    message, session, sequence, lengths, values = (np.concatenate([piece[at] for piece in found]) for at in range(5))
    _, first = np.unique(message, return_index=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    offsets, values = reorder_lists(offsets, values, first)
    return message[first], session[first], sequence[first], np.diff(offsets), values
