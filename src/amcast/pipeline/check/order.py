"""P4 and P5 of one run: the merge decides; where it stopped, the cycle is found and the plain checker describes it.

A group whose members agree is one chain. Where they do not, or where entries are missing that no member recorded, every
member is a chain of its own, exact up to its first gap.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

import numpy as np

from amcast.check.order import check_order
from amcast.check.verdict import Finding
from amcast.pipeline.check.evidence import ExactFindings, reduce_evidence
from amcast.pipeline.check.real_time import MergedOrder
from amcast.pipeline.check.survey import (
    ChainPlan,
    Segment,
    collect_first_messages,
    find_blocked_pair,
    find_shared_entries,
    merge_chains,
    plan_comparison,
    plan_longest_chain,
)
from amcast.pipeline.check.surveyed_run import SurveyedRun
from amcast.pipeline.kernels.fingerprints import find_buckets
from amcast.pipeline.kernels.merge import MergeResult
from amcast.pipeline.kernels.pairs import SharedEntries, compare_pairs, pair_fingerprint
from amcast.pipeline.kernels.replicas import ReplicaComparison
from amcast.pipeline.rows.sequences import Sequences, ValidSequences
from amcast.pipeline.rows.tables import Table

WINDOW_ENTRIES: Final = 20_000
"""Entries of each chain, from where a merge stopped, in which the shortest cycle is searched."""
PAIRS_AT_ONCE: Final = 64
"""Pairs of chains that are merged in parallel before the next ones are."""


def judge_order(
    run: SurveyedRun,
    replicas: list[ReplicaComparison],
    merged: MergeResult | None,
    late: Table | None,
    exact: list[ExactFindings],
) -> tuple[list[Finding], MergedOrder]:
    """Judges P4 and P5; returns also the order, by which P9 is judged."""
    view, sent = run.view, run.multicasts
    invalid = _merge_positions([part.invalid for part in exact])
    invalid_filled = _merge_positions([part.invalid_filled for part in exact])
    sequences: Sequences = view.sequences
    valid: ValidSequences | None = None
    if invalid or invalid_filled:
        sequences = valid = ValidSequences(view.sequences, invalid)
        ends = {process: extent.end for process, extent in sequences.extents().items()}
        plan = plan_comparison(run.runner, view.members.values(), sequences, ends)
        compared = run.runner(plan.build_calls(sequences))
        replicas = [replica for piece in compared for replica in piece]
    conflicting = {replica.process for replica in replicas if replica.conflict >= 0 or replica.disorder >= 0}
    # Invalid rows shift what comes after them against what a snapshot stands for: positions then prove no agreement.
    conflicting |= {p for members in view.members.values() if _is_shifted(run, members, invalid) for p in members}
    plans = [plan for group in view.members for plan in _plan_chains(run, group, conflicting, valid, invalid_filled)]
    if merged is None or late is None or valid is not None or conflicting:
        merged, _, late = run.runner([(merge_chains, (sequences, plans, run.buckets, run.make_scratch_path()))])[0]
    assert merged is not None
    assert late is not None
    messages = sent.rows - sum(part.rows for part in exact) + sum(part.valid for part in exact)
    findings = [Finding("P4", "holds"), Finding("P5", "holds")]
    if merged.heads:
        findings = _examine_cycle(run, sequences, plans, merged)
        findings[1].checked["blocked"] = messages - merged.removed
    elif run.gaps.first:
        nothing = np.zeros(run.buckets, np.bool_)
        findings = list(check_order(reduce_evidence(view, nothing, {}, {}, run.gaps.first, only=set()))[:2])
    for finding in findings:
        finding.checked = {**finding.checked, "messages": messages, "chains": len(plans)}
    return findings, MergedOrder(sequences, plans, merged, late, messages, findings[1])


def _is_shifted(run: SurveyedRun, members: tuple[int, ...], invalid: dict[int, list[int]]) -> bool:
    return not invalid.keys().isdisjoint(members) and not run.gaps.ranges.keys().isdisjoint(members)


def _merge_positions(parts: list[dict[int, list[int]]]) -> dict[int, list[int]]:
    """process -> positions, from findings about parts of the messages."""
    processes = sorted({process for part in parts for process in part})
    return {process: sorted(at for part in parts for at in part.get(process, ())) for process in processes}


def _plan_chains(
    run: SurveyedRun,
    group: int,
    conflicting: set[int],
    valid: ValidSequences | None,
    invalid_filled: dict[int, list[int]],
) -> list[ChainPlan]:
    """One chain for a group whose members agree, as far as the trace shows; else one for each of them."""
    members = run.view.members[group]
    if {*conflicting, *invalid_filled, *run.gaps.first}.intersection(members):
        plans = [run.gaps.plan_member_chain(group, member) for member in members]
    elif any(member in run.gaps.ranges for member in members):
        plans = [run.gaps.plan_group_chain(group)]
    elif valid is not None:
        ends = {member: valid.renumber(member, run.ends.get(member, 0)) for member in members}
        longest = max(members, key=lambda member: ends[member])
        plans = [ChainPlan.of_process(group, longest, run.ends.get(longest, 0))]
    else:
        plans = [plan_longest_chain(group, members, run.ends)]
    if valid is None:
        return plans
    return [renumber_plan(plan, valid, invalid_filled.get(plan.process, [])) for plan in plans]


def _examine_cycle(
    run: SurveyedRun, sequences: Sequences, plans: list[ChainPlan], merged: MergeResult
) -> list[Finding]:
    """The plain checker's findings about the messages of the cycle at which a merge stopped."""
    # Removed messages precede all that are left: cycles are among the rest.
    starts = {head.chain: head.index for head in merged.heads}
    rest = [
        replace(plan, skipped=starts[number]) if number in starts else replace(plan, segments=())
        for number, plan in enumerate(plans)
    ]
    cycle_messages = _find_blocked_pair(run, sequences, rest)
    if cycle_messages is None:
        cycle_messages = run.runner([(collect_first_messages, (sequences, rest, WINDOW_ENTRIES))])[0]
    assert cycle_messages is not None
    readers = {process for plan in plans for process, _, _ in plan.segments} | {plan.process for plan in plans}
    evidence = reduce_evidence(
        run.view,
        find_buckets(cycle_messages, run.buckets),
        {process: run.ends.get(process, 0) for process in sorted(readers)},
        run.gaps.fills,
        run.gaps.first,
        cycle_messages,
    )
    # The chains of the whole run, not those of the few messages.
    chosen: dict[int, tuple[int, ...]] = {}
    for plan in plans:
        chosen[plan.group] = (*chosen.get(plan.group, ()), plan.process)
    evidence.members = chosen
    keep = {plan.process for plan in plans} | set(run.gaps.first)
    evidence.sequences = {p: sequence for p, sequence in evidence.sequences.items() if p in keep}
    findings = list(check_order(evidence)[:2])
    if findings[1].verdict != "violated":
        # Contradicting snapshots of members can make a cycle that no member's own rows show.
        sentence = f"from message {merged.heads[0].message} on, snapshots and what was recorded contradict each other"
        findings = [Finding(name, "unknown", story=[sentence]) for name in ("P4", "P5")]
    return findings


def _find_blocked_pair(run: SurveyedRun, sequences: Sequences, plans: list[ChainPlan]) -> set[int] | None:
    """Two messages that two chains deliver in opposite orders: of the first pair of chains that does, if any."""
    left = [number for number, plan in enumerate(plans) if plan.segments]
    shared = _find_shared_entries(run, sequences, plans, dict.fromkeys(left))
    differ, unequal = compare_pairs(shared)
    limited = {**shared, **_find_shared_entries(run, sequences, plans, unequal)}
    for number, limits in unequal.items():
        # Compared up to the end of the shorter one; pairs decided in the first pass are not read again.
        differ |= {
            (min(number, other), max(number, other))
            for other in limits
            if pair_fingerprint(limited[number], other) != pair_fingerprint(shared[other], number)
        }
    open_ended = {number for number in left if plans[number].gap is not None}
    pairs = {pair for pair in differ if not open_ended.intersection(pair)}
    # Where entries are missing, fingerprints prove nothing: these pairs are merged.
    pairs |= {
        (min(number, other), max(number, other))
        for number in left
        for other in shared[number].others.tolist()
        if open_ended.intersection((number, other)) and other in shared
    }
    ordered_pairs = sorted(pairs)
    for at in range(0, len(ordered_pairs), PAIRS_AT_ONCE):
        calls = [
            (find_blocked_pair, (sequences, plans[i], plans[j])) for i, j in ordered_pairs[at : at + PAIRS_AT_ONCE]
        ]
        for answer in run.runner(calls):
            if answer is not None:
                return set(answer)
    return None


def _find_shared_entries(
    run: SurveyedRun,
    sequences: Sequences,
    plans: list[ChainPlan],
    read_chains: Mapping[int, dict[int, int] | None],
) -> dict[int, SharedEntries]:
    calls = [(find_shared_entries, (sequences, plans, number, limits)) for number, limits in read_chains.items()]
    return dict(zip(read_chains, run.runner(calls), strict=True))


def renumber_plan(plan: ChainPlan, valid: ValidSequences, invalid_filled: list[int]) -> ChainPlan:
    """The same plan, by the positions that are left without invalid deliveries."""
    segments: list[Segment] = []
    certain = 0
    for number, (process, low, high) in enumerate(plan.segments):
        cuts = [at for at in invalid_filled if low <= at < high] if process != plan.process else []
        for begin, end in zip([low, *(at + 1 for at in cuts)], [*cuts, high], strict=True):
            segments.append((process, valid.renumber(process, begin), valid.renumber(process, end)))
        certain = len(segments) if number < plan.certain_segments else certain
    return replace(plan, segments=tuple(segments), certain_segments=certain)
