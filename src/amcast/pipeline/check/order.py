"""P4 and P5 of one run: the merge decides; where it stopped, the circle is found and the plain checker tells it.

A group whose members agree is one chain. Where they do not, or where entries are missing that nobody recorded, every
member is a chain of its own, exact up to its first hole.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import numpy as np

from amcast.check.order import order
from amcast.check.verdict import Finding
from amcast.pipeline.check.evidence import Exact, reduced
from amcast.pipeline.check.survey import ChainPlan, Segment, in_common, merge_chains, stuck_pair, window
from amcast.pipeline.kernels.fingerprints import buckets_of
from amcast.pipeline.kernels.merge import Merged
from amcast.pipeline.kernels.pairs import Common, unlike, words_of
from amcast.pipeline.kernels.replicas import Replica
from amcast.pipeline.rows.lawful import LawfulSequences
from amcast.pipeline.rows.sequences import Sequences

if TYPE_CHECKING:
    from amcast.pipeline.check.examination import Examination

WINDOW: Final = 20_000
"""Entries of each chain, from where a merge stopped, in which the shortest circle is searched."""
PAIRS_AT_ONCE: Final = 64
"""Pairs of chains that are merged one by one, in parallel, before the next ones are looked at."""


def judged(
    examination: "Examination", replicas: list[Replica], merged: Merged | None, close: list[Exact]
) -> list[Finding]:
    """P4 and P5."""
    view, sent = examination.view, examination.sent
    assert sent is not None
    unlawful = _together([part.unlawful for part in close])
    unfit = _together([part.unfit for part in close])
    sequences: Sequences = view.sequences
    lawful: LawfulSequences | None = None
    if unlawful or unfit:
        sequences = lawful = LawfulSequences(view.sequences, unlawful)
        ends = {process: extent.end for process, extent in sequences.extents().items()}
        compared = examination.runner(examination.comparing(sequences, ends))
        replicas = [replica for piece in compared for replica in piece]
    quarrel = {replica.process for replica in replicas if replica.conflict >= 0 or replica.disorder >= 0}
    plans = [plan for group in view.members for plan in _plans(examination, group, quarrel, lawful, unfit)]
    if merged is None or lawful is not None or quarrel:
        merged = examination.runner([(merge_chains, (sequences, plans, examination.buckets))])[0][0]
    assert merged is not None
    messages = sent.rows - sum(part.rows for part in close) + sum(part.lawful for part in close)
    found = [Finding("P4", "holds"), Finding("P5", "holds")]
    if merged.heads:
        found = _circle(examination, sequences, plans, merged)
        found[1].checked["blocked"] = messages - merged.taken
    elif examination.holes.gaps:
        found = list(
            order(reduced(view, np.zeros(examination.buckets, np.bool_), {}, {}, examination.holes.gaps, only=set()))
        )
    for finding in found:
        finding.checked = {**finding.checked, "messages": messages, "chains": len(plans)}
    return found


def _together(parts: list[dict[int, list[int]]]) -> dict[int, list[int]]:
    """process -> positions, from findings about parts of the messages."""
    processes = sorted({process for part in parts for process in part})
    return {process: sorted(at for part in parts for at in part.get(process, ())) for process in processes}


def _plans(
    examination: "Examination",
    group: int,
    quarrel: set[int],
    lawful: LawfulSequences | None,
    unfit: dict[int, list[int]],
) -> list[ChainPlan]:
    """One chain for a group whose members agree, as far as anybody can tell; else one for each of them."""
    members = examination.view.members[group]
    if {*quarrel, *unfit, *examination.holes.gaps}.intersection(members):
        plans = [examination.holes.own(group, member) for member in members]
    elif any(member in examination.holes.ranges for member in members):
        plans = [examination.holes.covered(group)]
    elif lawful is not None:
        ends = {member: lawful.anew(member, examination.ends.get(member, 0)) for member in members}
        longest = max(members, key=lambda member: ends[member])
        plans = [ChainPlan.of(group, longest, examination.ends.get(longest, 0))]
    else:
        plans = [examination.longest(group)]
    return plans if lawful is None else [counted_anew(plan, lawful, unfit.get(plan.process, [])) for plan in plans]


def _circle(examination: "Examination", sequences: Sequences, plans: list[ChainPlan], merged: Merged) -> list[Finding]:
    """The circle at which a merge stopped, told by the plain checker from the messages that form it."""
    # What was taken away precedes all that is left: circles are among the rest.
    starts = {head.chain: head.index for head in merged.heads}
    rest = [
        replace(plan, skipped=starts[number]) if number in starts else replace(plan, segments=())
        for number, plan in enumerate(plans)
    ]
    only = _pair(examination, sequences, rest)
    if only is None:
        only = examination.runner([(window, (sequences, rest, WINDOW))])[0]
    assert only is not None
    readers = {process for plan in plans for process, _, _ in plan.segments} | {plan.process for plan in plans}
    evidence = reduced(
        examination.view,
        buckets_of(only, examination.buckets),
        {process: examination.ends.get(process, 0) for process in sorted(readers)},
        examination.holes.fills,
        examination.holes.gaps,
        only,
    )
    # The chains of the whole run, not those that the few messages would suggest.
    chosen: dict[int, tuple[int, ...]] = {}
    for plan in plans:
        chosen[plan.group] = (*chosen.get(plan.group, ()), plan.process)
    evidence.members = chosen
    keep = {plan.process for plan in plans} | set(examination.holes.gaps)
    evidence.sequences = {p: sequence for p, sequence in evidence.sequences.items() if p in keep}
    findings = list(order(evidence))
    if findings[1].verdict != "violated":
        # Snapshots of members that contradict each other can make a circle that no member's own rows show.
        told = f"from message {merged.heads[0].message} on, snapshots and what was recorded contradict each other"
        findings = [Finding(name, "unknown", story=[told]) for name in ("P4", "P5")]
    return findings


def _pair(examination: "Examination", sequences: Sequences, plans: list[ChainPlan]) -> set[int] | None:
    """Two messages that two chains deliver in opposite orders: of the first pair of chains that does, if any."""
    left = [number for number, plan in enumerate(plans) if plan.segments]
    found = _in_common(examination, sequences, plans, dict.fromkeys(left))
    differ, again = unlike(found)
    limited = {**found, **_in_common(examination, sequences, plans, again)}
    for number, limits in again.items():
        # Compared up to the end of the shorter one; what was settled in the first walk is not looked at again.
        differ |= {
            (min(number, other), max(number, other))
            for other in limits
            if words_of(limited[number], other) != words_of(found[other], number)
        }
    open_ended = {number for number in left if plans[number].gap is not None}
    pairs = {pair for pair in differ if not open_ended.intersection(pair)}
    # Where entries are missing, fingerprints prove nothing: these pairs are merged one by one.
    pairs |= {
        (min(number, other), max(number, other))
        for number in left
        for other in found[number].others.tolist()
        if open_ended.intersection((number, other)) and other in found
    }
    every = sorted(pairs)
    for at in range(0, len(every), PAIRS_AT_ONCE):
        calls = [(stuck_pair, (sequences, plans[i], plans[j])) for i, j in every[at : at + PAIRS_AT_ONCE]]
        for answer in examination.runner(calls):
            if answer is not None:
                return set(answer)
    return None


def _in_common(
    examination: "Examination",
    sequences: Sequences,
    plans: list[ChainPlan],
    walked: Mapping[int, dict[int, int] | None],
) -> dict[int, Common]:
    calls = [(in_common, (sequences, plans, number, limits)) for number, limits in walked.items()]
    return dict(zip(walked, examination.runner(calls), strict=True))


def counted_anew(plan: ChainPlan, lawful: LawfulSequences, unfit: list[int]) -> ChainPlan:
    """The same plan, by the positions that are left when unlawful deliveries do not count."""
    segments: list[Segment] = []
    for process, low, high in plan.segments:
        cuts = [at for at in unfit if low <= at < high] if process != plan.process else []
        for begin, end in zip([low, *(at + 1 for at in cuts)], [*cuts, high], strict=True):
            segments.append((process, lawful.anew(process, begin), lawful.anew(process, end)))
    gap = lawful.anew(plan.process, plan.gap) if plan.gap is not None else None
    return replace(plan, segments=tuple(segments), gap=gap)
