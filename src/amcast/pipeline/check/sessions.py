"""P7 and P8 of one run: a kernel walks every sequence, the plain checker tells about the sessions that stand out.

Sessions are independent of each other: a task takes those whose hash falls into its part, looks their messages up, and
walks all sequences once. Memory is that of its part, whatever the length of the trace.
"""

from typing import TYPE_CHECKING, Final

import numpy as np

from amcast.check.sessions import sessions
from amcast.check.verdict import Finding
from amcast.pipeline.check.evidence import any_multicast, reduced, standing_evidence
from amcast.pipeline.check.run_view import NONE, Table, multicasts_in
from amcast.pipeline.kernels.fingerprints import Ints, buckets_of, in_buckets
from amcast.pipeline.kernels.sessions import Numbered, Walk
from amcast.pipeline.rows.sequences import Sequences, gathered

if TYPE_CHECKING:
    from amcast.pipeline.check.examination import Examination

PART_MESSAGES: Final = 2_000_000
MAX_TOLD: Final = 200
"""Sessions that stand out and are told about; the verdict counts them all."""
PARTS: Final = 1 << 10


def judged(examination: "Examination") -> list[Finding]:
    """P7 and P8."""
    view, sent, holes = examination.view, examination.sent, examination.holes
    assert sent is not None
    if not sent.sessions:
        return list(sessions(standing_evidence(view, any_multicast(sent))))
    count = min(PARTS, max(1, -(-sent.sessions // PART_MESSAGES)))
    parts = [np.isin(np.arange(PARTS), piece) for piece in np.array_split(np.arange(PARTS), count)]
    ends = {p: end for p, end in examination.ends.items() if view.group_of.get(p) is not None}
    walked = examination.runner(
        [(walk, (view.sequences, view.multicasts, ends, view.group_of, part)) for part in parts]
    )
    wrong = sorted({name for part in walked for name in part[0]})[:MAX_TOLD]
    found = [Finding("P7", "holds"), Finding("P8", "holds")]
    if wrong or holes.gaps:
        assert sent.of_session is not None
        messages = {message for part in walked for name in wrong for message in part[3].get(name, ())}
        messages = messages or {sent.of_session}
        chosen = buckets_of(messages, examination.buckets)
        found = list(sessions(reduced(view, chosen, examination.ends, holes.fills, holes.gaps, messages)))
    counts = {"deliveries": sum(part[1] for part in walked), "sessions": sum(part[2] for part in walked)}
    for finding in found:
        finding.checked = {**finding.checked, **counts}
    return found


def walk(
    sequences: Sequences,
    multicasts: Table,
    ends: dict[int, int],
    group_of: dict[int, int | None],
    part: "np.typing.NDArray[np.bool_]",
) -> tuple[set[int], int, int, dict[int, list[int]]]:
    """(sessions that stand out, deliveries judged, sessions, the messages of those that stand out)."""
    message, session, sequence, lengths, values = _of_sessions(multicasts, part)
    owner = np.repeat(np.arange(message.size), lengths)
    numbered = Numbered(message, session, sequence)
    wrong: set[int] = set()
    deliveries = 0
    ranks: dict[int | None, Ints] = {}
    for process, end in ends.items():
        group = group_of[process]
        if group not in ranks:
            expected = np.zeros(numbered.owner_of_key.size, np.bool_)
            expected[numbered.key[owner[values == group]]] = True
            ranks[group] = numbered.ranks(expected)
        steps = Walk(numbered, ranks[group])
        for rows in sequences.rows(process, 0, end):
            steps.absorb(rows.messages)
        deliveries += steps.judged
        wrong.update(numbered.names[steps.wrong].tolist())
    listed = {name: message[session == name].tolist() for name in sorted(wrong)[:MAX_TOLD]}
    return wrong, deliveries, int(np.unique(session).size), listed


def _of_sessions(
    multicasts: Table, part: "np.typing.NDArray[np.bool_]"
) -> tuple[Ints, Ints, Ints, "np.typing.NDArray[np.int32]", "np.typing.NDArray[np.int32]"]:
    """The messages of the sessions in a part: message, session, sequence, number of destinations, destinations."""
    found = []
    for rows in multicasts_in(multicasts):
        keep = np.nonzero((rows.sessions != NONE) & in_buckets(rows.sessions, part))[0]
        offsets, values = gathered(rows.offsets, rows.values, keep)
        found.append((rows.messages[keep], rows.sessions[keep], rows.sequences[keep], np.diff(offsets), values))
    message, session, sequence, lengths, values = (np.concatenate([piece[at] for piece in found]) for at in range(5))
    _, first = np.unique(message, return_index=True)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    offsets, values = gathered(offsets, values, first)
    return message[first], session[first], sequence[first], np.diff(offsets), values
