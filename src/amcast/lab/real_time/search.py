"""The search for runs that break real-time order (P9) without any fault: unequal delays and skewed clocks are enough.

A cycle needs a message m1 that is answered, a message m2 that is multicast afterwards, and a path of |-> from m2 back
to m1 (docs/MODEL.md). The search is adaptive. It draws a *prelude*: multicasts that overlap in two groups, in a chain
of three or on a path of five, the delay of every link, and clocks. It runs the prelude and looks for messages that are
answered while something that precedes them is still undelivered in some group; without that there is no cycle. Then it
runs the same again, but multicasts m2 to that group just behind the answer. From that moment on, it may also hold back
what others send to that group. What happened before does not change, because the simulation is deterministic.

A schedule is plain data, `run_schedule` runs it again, and `shrink` leaves out what a cycle does not need.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from random import Random
from typing import Any, Final

from msgspec.structs import replace

from amcast.assembly import Order
from amcast.check.verdict import Finding
from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.lab.real_time.schedule import REPLICAS, Schedule, judge_real_time, run_schedule
from amcast.lab.worst_case import MOMENT_NS, UNIT_NS, Cast, Link
from amcast.simulation.inputs.random_streams import make_stream
from amcast.trace.run import Run

FAST: Final = UNIT_NS // 50
START: Final = 20 * UNIT_NS
"""When the prelude's overlapping messages begin; messages before put clocks ahead."""
FOLLOWERS: Final = 3
"""How many of the chances of a prelude are tried."""
SKEW: Final = 3 * UNIT_NS


@dataclass(frozen=True)
class Attempt:
    """A prelude, and the message that follows the answer of one of its messages."""

    prelude: Schedule
    after: int
    """The place of the answered message among the casts."""
    destinations: tuple[GroupId, ...]
    holds: bool
    """Whether what other groups send to these destinations is held back from the answer on."""


def _draw_prelude(random: Random) -> Schedule:
    groups, casts = random.choice((_draw_pair, _draw_chain, _draw_chain, _draw_path, _draw_mixture))(random)
    topology = Topology.grid(groups, REPLICAS, len(casts))
    return Schedule(groups, casts, _draw_links(random, topology), _draw_skews(random, topology))


def _draw_warm_up(random: Random, groups: int) -> list[Cast]:
    """Draws local messages that put the clock of one group ahead."""
    ahead = random.randrange(groups)
    return [Cast(number * UNIT_NS, (ahead,)) for number in range(random.choice((0, 2, 4)))]


def _draw_time(random: Random, most: int) -> int:
    return START + random.randrange(4 * most + 1) * UNIT_NS // 4


def _draw_overlap(random: Random, groups: Sequence[GroupId], most: int) -> list[Cast]:
    """Draws a message to each two neighbours, and one to the first group alone, at which the others meet."""
    pairs = [tuple(sorted(pair)) for pair in pairwise(groups)]
    times = sorted((_draw_time(random, most) for _ in pairs), reverse=random.random() < 0.8)
    last = Cast(max(times) + random.randrange(9) * UNIT_NS // 4, (groups[0],))
    return [*(Cast(at, pair) for at, pair in zip(times, pairs, strict=True)), last]


def _draw_pair(random: Random) -> tuple[int, tuple[Cast, ...]]:
    return 2, (*_draw_warm_up(random, 2), *_draw_overlap(random, random.sample(range(2), 2), 1))


def _draw_chain(random: Random) -> tuple[int, tuple[Cast, ...]]:
    return 3, (*_draw_warm_up(random, 3), *_draw_overlap(random, random.sample(range(3), 3), 3))


def _draw_path(random: Random) -> tuple[int, tuple[Cast, ...]]:
    return 5, (*_draw_warm_up(random, 5), *_draw_overlap(random, random.sample(range(5), 5), 4))


def _draw_mixture(random: Random) -> tuple[int, tuple[Cast, ...]]:
    groups = random.choice((2, 3))
    casts = [
        Cast(_draw_time(random, 4), tuple(sorted(random.sample(range(groups), random.choice((1, 2, 2))))))
        for _ in range(random.randint(3, 6))
    ]
    return groups, (*_draw_warm_up(random, groups), *casts)


def _draw_links(random: Random, topology: Topology) -> dict[Link, int]:
    style = random.choice(("slow pair", "pairs", "processes"))
    choices = (FAST, FAST, UNIT_NS // 4, UNIT_NS, 5 * UNIT_NS, 20 * UNIT_NS)
    inside = random.choice((FAST, FAST, UNIT_NS // 4))
    slow = tuple(random.sample(topology.groups, 2))
    links: dict[Link, int] = {}
    for source in topology.processes:
        home = topology.group_of(source)
        for group in topology.groups:
            together = _draw_pair_delay(random, style, choices, (home, group) == slow)
            for target in topology.members(group):
                alone = random.choice(choices) if style == "processes" and random.random() < 0.3 else together
                links[source, target] = inside if home == group else alone
        for client in topology.clients:
            links[source, client] = FAST
    return links


def _draw_pair_delay(random: Random, style: str, choices: tuple[int, ...], is_slow: bool) -> int:
    if style == "slow pair":
        return 20 * UNIT_NS if is_slow else FAST
    return random.choice(choices)


def _draw_skews(random: Random, topology: Topology) -> dict[ProcessId, int]:
    if random.random() < 0.5:
        return {}
    by_group = {group: random.choice((-SKEW, 0, SKEW)) for group in topology.groups}
    return {process: START + by_group[group] for group in topology.groups for process in topology.members(group)}


# The search


@dataclass
class RealTimeSearch:
    """The result of a search for one protocol."""

    protocol: str
    runs: int
    """How many schedules were run, preludes included."""
    seed: int
    exposed: int = 0
    """Preludes in which a message was answered while one that precedes it was undelivered somewhere."""
    stuck: int = 0
    """Runs that did not deliver and answer everything."""
    schedule: Schedule | None = None
    """A schedule that breaks real-time order, if one was found."""

    @property
    def holds(self) -> bool:
        return self.schedule is None

    def as_dict(self) -> dict[str, Any]:
        names = ("protocol", "runs", "seed", "exposed", "stuck", "holds")
        schedule = None if self.schedule is None else self.schedule.as_dict()
        return {**{name: getattr(self, name) for name in names}, "schedule": schedule}


def search_real_time(
    spec: Spec,
    runs: int,
    seed: int,
    shrinks: bool = True,
    progress: Callable[[int], None] = lambda done: None,
    order: Order = "acyclic",
) -> RealTimeSearch:
    """Draws preludes and follows their answers until a cycle is found or `runs` schedules were run. In the real-time
    setting there must not even be a chance (`exposed`): what precedes an answered message is delivered everywhere."""
    result = RealTimeSearch(spec.name, 0, seed)
    number = 0
    while result.runs < runs and result.schedule is None:
        random = make_stream(seed, "real-time", spec.name, number)
        number += 1
        for attempt, schedule, finding in _try_prelude(spec, random, result, order):
            if finding.verdict == "violated":
                result.schedule = shrink(spec, attempt) if shrinks and order == "acyclic" else schedule
                break
        progress(result.runs)
    return result


def _try_prelude(
    spec: Spec, random: Random, result: RealTimeSearch, order: Order
) -> Iterator[tuple[Attempt, Schedule, Finding]]:
    prelude = _draw_prelude(random)
    run = run_schedule(spec, prelude, order=order)
    result.runs += 1
    result.stuck += not run.meta.claims.complete
    chances = _list_chances(run)
    result.exposed += bool(chances)
    for after, group in random.sample(chances, min(FOLLOWERS, len(chances))):
        attempt = Attempt(prelude, after, (group,), random.random() < 0.7)
        schedule = follow_answer(attempt, run)
        assert schedule is not None, "a chance follows an answer"
        outcome = run_schedule(spec, schedule, order=order)
        result.runs += 1
        result.stuck += not outcome.meta.claims.complete
        yield attempt, schedule, judge_real_time(outcome)


def _list_chances(run: Run) -> list[tuple[int, GroupId]]:
    """(place of an answered message, group) such that something that precedes the message was undelivered there when
    it was answered."""
    first: dict[tuple[GroupId, MessageId], int] = {}
    sequences: dict[ProcessId, list[MessageId]] = {}
    table = run.deliveries
    for process, group, message, at in zip(
        table["process"], table["group"], table["message"], table["at_ns"], strict=True
    ):
        first[group, message] = min(at, first.get((group, message), at))
        sequences.setdefault(process, []).append(message)
    group_of = dict(zip(run.processes["process"], run.processes["group"], strict=True))
    chains: dict[GroupId, list[MessageId]] = {}
    for process, messages in sequences.items():
        chains[group_of[process]] = max(chains.get(group_of[process], []), messages, key=len)
    destinations = dict(zip(run.multicasts["message"], run.multicasts["destinations"], strict=True))
    assert run.answers is not None
    answered = dict(zip(run.answers["message"], run.answers["at_ns"], strict=True))
    places = {message: place for place, message in enumerate(sorted(destinations))}
    chances = {
        (places[message], group)
        for message, at in answered.items()
        for earlier in _find_predecessors(message, chains)
        for group in destinations[earlier]
        if first.get((group, earlier), at + 1) > at
    }
    return sorted(chances)


def _find_predecessors(message: MessageId, chains: dict[GroupId, list[MessageId]]) -> set[MessageId]:
    """All messages with a path of deliveries to a message."""
    found: set[MessageId] = set()
    stack = [message]
    while stack:
        after = stack.pop()
        for chain in chains.values():
            if after in chain:
                fresh = set(chain[: chain.index(after)]) - found
                found |= fresh
                stack += fresh
    return found - {message}


def follow_answer(attempt: Attempt, run: Run) -> Schedule | None:
    """The prelude, which ran so, and the message that follows; None if nothing was answered there."""
    prelude = attempt.prelude
    answered = message_id(prelude.topology.clients[attempt.after], 0)
    assert run.answers is not None
    if answered not in run.answers["message"]:
        return None
    at = run.answers["at_ns"][run.answers["message"].index(answered)] + MOMENT_NS
    whole = replace(prelude, casts=(*prelude.casts, Cast(at, attempt.destinations)))
    topology = whole.topology
    client = topology.clients[-1]
    reached = [process for group in attempt.destinations for process in topology.members(group)]
    links = {**whole.links, **{(client, process): FAST for process in reached}}
    links |= {(process, client): FAST for process in topology.servers}
    whole = replace(whole, links=links)
    if not attempt.holds:
        return whole
    others = [p for p in topology.processes if p != client and p not in reached]
    return replace(whole, held_ns=at, held=tuple((source, target) for source in others for target in reached))


def shrink(spec: Spec, attempt: Attempt) -> Schedule:
    """The schedule of an attempt that breaks real-time order, without what is not needed for it."""

    def breaks(candidate: Attempt) -> Schedule | None:
        schedule = follow_answer(candidate, run_schedule(spec, candidate.prelude))
        if schedule is None or judge_real_time(run_schedule(spec, schedule)).verdict != "violated":
            return None
        return schedule

    best = breaks(attempt)
    assert best is not None, "an attempt that broke real-time order breaks it again"
    is_smaller = True
    while is_smaller:
        is_smaller = False
        for candidate in _list_smaller(attempt):
            found = breaks(candidate)
            if found is not None:
                attempt, best, is_smaller = candidate, found, True
                break
    return best


def _list_smaller(attempt: Attempt) -> Iterator[Attempt]:
    prelude = attempt.prelude
    for place in range(len(prelude.casts)):
        if place != attempt.after:
            yield _leave_out(attempt, place)
    if attempt.holds:
        yield _with(attempt, holds=False)
    used = {group for cast in prelude.casts for group in cast.destinations} | set(attempt.destinations)
    for group in range(prelude.groups):
        if group not in used and prelude.groups > 2:
            yield _leave_out_group(attempt, group)
    if prelude.skews:
        yield _with(attempt, prelude=replace(prelude, skews={}))
    topology = prelude.topology
    groups: list[tuple[ProcessId, ...]] = [topology.members(group) for group in topology.groups]
    for sources in [*groups, *((client,) for client in topology.clients)]:
        for targets in groups:
            # D is the default, and FAST says that a link plays no role.
            for delay in (UNIT_NS, FAST):
                links = {(source, target): delay for source in sources for target in targets}
                changed = {**prelude.links, **links}
                if _weigh(changed, links) < _weigh(prelude.links, links):
                    yield _with(attempt, prelude=replace(prelude, links=changed))


def _weigh(links: dict[Link, int], some: dict[Link, int]) -> int:
    """How unusual some links are: D is usual, FAST is less so, other delays and different ones are not."""
    delays = {links.get(link, UNIT_NS) for link in some}
    return len(delays) * 4 + sum({UNIT_NS: 0, FAST: 1}.get(delay, 2) for delay in delays)


def _with(attempt: Attempt, **changes: Any) -> Attempt:
    values = {"prelude": attempt.prelude, "after": attempt.after, "destinations": attempt.destinations}
    return Attempt(**{**values, "holds": attempt.holds, **changes})


def _leave_out(attempt: Attempt, place: int) -> Attempt:
    """The attempt without one multicast; the clients behind it are numbered anew."""
    prelude = attempt.prelude
    clients = prelude.topology.clients
    fresh = {client: client - (number > place) for number, client in enumerate(clients) if number != place}
    fresh |= {process: process for process in prelude.topology.servers}
    links = {
        (fresh[source], fresh[target]): delay
        for (source, target), delay in prelude.links.items()
        if source in fresh and target in fresh
    }
    casts = (*prelude.casts[:place], *prelude.casts[place + 1 :])
    after = attempt.after - (place < attempt.after)
    return _with(attempt, prelude=replace(prelude, casts=casts, links=links), after=after)


def _leave_out_group(attempt: Attempt, group: GroupId) -> Attempt:
    """The attempt without a group that no message addresses; groups and processes behind it are numbered anew."""
    prelude = attempt.prelude
    members = prelude.topology.members(group)

    def renumber(process: ProcessId) -> ProcessId:
        return process - REPLICAS if process > members[-1] else process

    def shift(groups: tuple[GroupId, ...]) -> tuple[GroupId, ...]:
        return tuple(other - (other > group) for other in groups)

    links = {
        (renumber(source), renumber(target)): delay
        for (source, target), delay in prelude.links.items()
        if source not in members and target not in members
    }
    skews = {renumber(process): skew for process, skew in prelude.skews.items() if process not in members}
    casts = tuple(replace(cast, destinations=shift(cast.destinations)) for cast in prelude.casts)
    smaller = replace(prelude, groups=prelude.groups - 1, casts=casts, links=links, skews=skews)
    return _with(attempt, prelude=smaller, destinations=shift(attempt.destinations))
