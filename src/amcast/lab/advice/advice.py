"""Ranks candidates by what clients wait for, and says why the first one is first."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

from amcast.kernel.errors import CannotTellError
from amcast.lab.advice.candidate_run import CandidateRun, RegionLoss, list_losses, simulate_candidate, simulate_loss
from amcast.lab.advice.candidates import Candidate, make_plan
from amcast.lab.advice.request import AdviceRequest
from amcast.lab.protocol_lookup import find_protocol

Measure = Literal["mean", "p50", "p95", "p99"]
MEASURES: Final[tuple[Measure, ...]] = ("mean", "p50", "p95", "p99")


@dataclass(frozen=True)
class Judged:
    """A candidate with what its run showed."""

    candidate: Candidate
    plan: dict[str, Any]
    outcome: CandidateRun
    fragile: tuple[str, ...]
    """The regions whose death stops a group."""

    @property
    def survives(self) -> bool:
        return not self.fragile

    def value(self, by: Measure) -> float:
        found: float = getattr(self.outcome.total, by)
        return found


@dataclass(frozen=True)
class Advice:
    """All candidates, the best one first, and what the best one is worth."""

    request: AdviceRequest
    by: Measure
    ranked: tuple[Judged, ...]
    failed: tuple[tuple[Candidate, str], ...]
    """Candidates whose run failed, and why."""
    losses: tuple[RegionLoss, ...]
    """Of the best candidate, and each region that has replicas."""
    reasons: tuple[str, ...]

    @property
    def best(self) -> Judged:
        return self.ranked[0]

    @property
    def best_surviving(self) -> Judged | None:
        """The first candidate of which no region's death stops a group."""
        return next((one for one in self.ranked if one.survives), None)


def advise(
    request: AdviceRequest,
    candidates: Sequence[Candidate],
    messages: int,
    seed: int,
    by: Measure = "mean",
    must_survive: bool = False,
    progress: Callable[[int], None] = lambda done: None,
) -> Advice:
    """Simulates every candidate, ranks them, kills every region of the best one, and explains."""
    judged: list[Judged] = []
    failed: list[tuple[Candidate, str]] = []
    for place, candidate in enumerate(candidates):
        plan = make_plan(request, candidate, messages, seed)
        fragile = _list_fragile(candidate)
        if not (must_survive and fragile):
            try:
                judged.append(Judged(candidate, plan, simulate_candidate(plan), fragile))
            except CannotTellError as error:
                failed.append((candidate, str(error)))
        progress(place + 1)
    if not judged:
        reason = failed[0][1] if failed else "in every placement the death of some region stops a group"
        raise CannotTellError(f"no candidate has a result: {reason}")
    ranked = tuple(sorted(judged, key=lambda one: (one.value(by), one.candidate.choice.name)))
    regions = sorted({region for row in ranked[0].candidate.placement.rows for region in row})
    losses = tuple(simulate_loss(ranked[0].plan, region) for region in regions)
    return Advice(request, by, ranked, tuple(failed), losses, tuple(_explain(request, ranked, losses, by)))


def _list_fragile(candidate: Candidate) -> tuple[str, ...]:
    rows = candidate.placement.rows
    regions = sorted({region for row in rows for region in row})
    return tuple(region for region in regions if list_losses(rows, region)[0])


def _explain(request: AdviceRequest, ranked: Sequence[Judged], losses: Sequence[RegionLoss], by: Measure) -> list[str]:
    best = ranked[0]
    return [
        *_explain_quorums(request, best),
        *_explain_protocol(ranked, by),
        *_explain_placement(ranked, by),
        *_explain_losses(request, best, ranked, losses, by),
    ]


def _explain_quorums(request: AdviceRequest, best: Judged) -> list[str]:
    """How far the leader of each group is from a majority of it, and from its home."""
    sentences = []
    for group, row in enumerate(best.candidate.placement.rows):
        leader, home = row[0], request.home_of[group]
        trips = sorted(request.round_trip_ms(leader, region) for region in row[1:])
        # The leader itself is one of the majority.
        needed = len(row) // 2
        majority = trips[needed - 1] if needed else 0.0
        away = "at home" if leader == home else f"{request.round_trip_ms(home, leader):.1f} ms (both ways) from home"
        sentences.append(
            f"{request.names[group]}: its leader is in {leader}, {away}, and reaches a majority of its replicas in"
            f" {majority:.1f} ms both ways"
        )
    return sentences


def _describe_ratio(one: Judged, best: Judged, by: Measure) -> str:
    return f"{one.value(by):.1f} ms, {one.value(by) / best.value(by):.2f} times as long"


def _explain_protocol(ranked: Sequence[Judged], by: Measure) -> list[str]:
    best = ranked[0]
    same = [one for one in ranked[1:] if one.candidate.placement == best.candidate.placement]
    if not same:
        return []
    sentence = f"with the same placement {same[0].candidate.choice.name} takes {_describe_ratio(same[0], best, by)}"
    if len(same) > 1:
        sentence += f", {same[-1].candidate.choice.name} {_describe_ratio(same[-1], best, by)}"
    counts = []
    for one in (best, same[0], same[-1]):
        claims = find_protocol(one.candidate.choice.protocol).claims
        if claims.world == "unit":
            replicas = len(one.candidate.placement.rows[0])
            count = claims.delays("max", 2, 1 if claims.single_replica else replicas)
            counts.append(f"{one.candidate.choice.protocol} {count}")
    if counts:
        sentence += f"; message delays of a lone multicast to two groups: {', '.join(dict.fromkeys(counts))}"
    return [sentence]


def _explain_placement(ranked: Sequence[Judged], by: Measure) -> list[str]:
    best = ranked[0]
    other = next((one for one in ranked[1:] if one.candidate.choice == best.candidate.choice), None)
    if other is None:
        return []
    sentence = (
        f"the next best placement of {best.candidate.choice.name} is {other.candidate.placement.name!r}:"
        f" {_describe_ratio(other, best, by)}"
    )
    changes = []
    for region, kinds in best.outcome.by_region.items():
        for kind, waits in kinds.items():
            there = other.outcome.by_region.get(region, {}).get(kind)
            if there is not None:
                changes.append(
                    (there.p50 - waits.p50, f"{kind} messages of {region} {waits.p50:.1f} -> {there.p50:.1f}")
                )
    if changes:
        sentence += f" (medians: {max(changes)[1]}, {min(changes)[1]} ms)"
    return [sentence]


def _explain_losses(
    request: AdviceRequest, best: Judged, ranked: Sequence[Judged], losses: Sequence[RegionLoss], by: Measure
) -> list[str]:
    sentences = []
    for loss in losses:
        if loss.blocked:
            shares = [f"{done} of {total} {kind}" for kind, (done, total) in loss.answered.items() if kind != "stopped"]
            sentences.append(
                f"after the death of {loss.region} messages that need no stopped group stay unanswered, too:"
                f" {' and '.join(shares)} are answered"
            )
    if best.survives:
        sentences.append("no region's death stops a group: a majority of each remains")
        return sentences
    lost = ", ".join(
        f"{loss.region} ({', '.join(request.names[group] for group in loss.stopped)})"
        for loss in losses
        if loss.stopped
    )
    sentences.append(f"the death of a region stops groups: {lost}")
    safe = next((one for one in ranked if one.survives), None)
    if safe is not None:
        sentences.append(
            f"that no region's death stops a group costs: {safe.candidate.choice.name},"
            f" {safe.candidate.placement.name}, {_describe_ratio(safe, best, by)}"
        )
    return sentences
