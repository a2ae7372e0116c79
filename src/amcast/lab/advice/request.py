"""What the adviser is asked: regions with their latencies, groups with their homes, and the traffic of clients.

A request comes from the command line, from a plan, or from the trace of a recorded run. Of the last two, the messages
of each region's clients are counted by destinations: they are the mix that all candidates are compared under, and a
group is at home where it is used most.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId
from amcast.lab.runs import PreparedRun
from amcast.simulation.inputs.environments import find_environment, load_environments
from amcast.simulation.inputs.latencies import Latencies
from amcast.trace.run import Run
from amcast.workloads.base import site_of_region
from amcast.workloads.mix import WORDS

DEFAULT_ENVIRONMENT: Final = "aws-2025"
DRAWS: Final = 2000
"""Messages drawn of a plan's workload, to count its destinations."""
MILLISECOND_NS: Final = 1_000_000

Counts = Mapping[str, Mapping[tuple[GroupId, ...], int]]
"""Region of clients -> destinations -> number of messages."""


@dataclass(frozen=True)
class AdviceRequest:
    """A question to the adviser."""

    latencies: Latencies
    """Milliseconds one way."""
    regions: tuple[str, ...]
    """Where replicas may be."""
    homes: dict[str, tuple[GroupId, ...]]
    """Region -> the groups that are at home there."""
    names: dict[GroupId, str]
    clients: tuple[str, ...]
    """The regions of clients; each has as many as the others."""
    mix: str
    by_region: dict[str, str]
    payload: int
    replicas: int
    rate_per_s: float = 2.0
    """Messages per second of each client."""

    def __post_init__(self) -> None:
        for what, names in (("regions", self.regions), ("clients", self.clients), ("groups", tuple(self.homes))):
            for name in names:
                if name not in self.latencies:
                    known = ", ".join(self.latencies)
                    raise UsageError(f"--{what}: region {name!r} has no latencies; expected some of: {known}")
        if not 1 <= self.replicas <= 9:
            raise UsageError(f"--replicas {self.replicas}; expected 1 to 9")
        if not 0 < self.rate_per_s <= 10_000:
            raise UsageError(f"--rate {self.rate_per_s}; expected more than 0, and at most 10000 messages per second")
        for region in self.homes:
            if region not in self.regions:
                raise UsageError(f"--groups: home {region!r}; expected one of --regions: {', '.join(self.regions)}")

    @property
    def home_of(self) -> dict[GroupId, str]:
        """The home region of each group."""
        return {group: region for region, groups in self.homes.items() for group in groups}

    def round_trip_ms(self, one: str, other: str) -> float:
        return self.latencies[one][other] + self.latencies[other][one]


def read_environment_latencies(name: str = DEFAULT_ENVIRONMENT) -> Latencies:
    """The latencies of an environment with a matrix, in milliseconds one way."""
    facts = load_environments()[name]
    made = find_environment(name, len(facts.regions), 1, 0)
    matrix: dict[str, dict[str, int]] = made.network["matrix_ns"]
    return {source: {target: ns / MILLISECOND_NS for target, ns in row.items()} for source, row in matrix.items()}


def halve(latencies: Latencies) -> Latencies:
    """Round trips as delays of one way."""
    return {source: {target: ms / 2 for target, ms in row.items()} for source, row in latencies.items()}


def parse_names(flag: str, text: str) -> tuple[str, ...]:
    """Names separated by commas."""
    names = tuple(name.strip() for name in text.split(","))
    if not all(names) or len(set(names)) < len(names):
        raise UsageError(f"{flag} {text!r}; expected different names separated by commas")
    return names


def parse_groups(text: str | None, regions: Sequence[str]) -> tuple[dict[str, tuple[GroupId, ...]], dict[GroupId, str]]:
    """Groups with their home regions: a number (homes in turn), or NAME=REGION separated by commas."""
    if text is None or re.fullmatch(r"[1-9]\d{0,2}", text):
        count = len(regions) if text is None else int(text)
        placed = [(f"g{group}", regions[group % len(regions)]) for group in range(count)]
    else:
        placed = []
        for part in parse_names("--groups", text):
            name, separator, region = part.partition("=")
            if not separator or not re.fullmatch(r"[A-Za-z_][\w-]*", name) or name in WORDS or not region:
                raise UsageError(f"--groups {text!r}: {part!r}; expected a number, or NAME=REGION separated by commas")
            placed.append((name, region))
    if len({name for name, _ in placed}) < len(placed):
        raise UsageError(f"--groups {text!r}: a name appears twice; expected different names")
    homes: dict[str, list[GroupId]] = defaultdict(list)
    for group, (_, region) in enumerate(placed):
        homes[region].append(group)
    return {region: tuple(groups) for region, groups in homes.items()}, {g: name for g, (name, _) in enumerate(placed)}


def number_mix(mix: str, names: Mapping[GroupId, str]) -> str:
    """A mix with groups' names replaced by their numbers."""
    numbers = {name: str(group) for group, name in names.items()}
    return re.sub(r"[A-Za-z_][\w-]*", lambda word: numbers.get(word[0], word[0]), mix)


def format_counts(counts: Mapping[tuple[GroupId, ...], int]) -> str:
    """Counted destinations as a mix."""
    return ", ".join(f"{count} {'+'.join(map(str, groups))}" for groups, count in sorted(counts.items()))


def count_plan(prepared: PreparedRun) -> Counts:
    """The destinations that the clients of a plan draw, by the region of the client."""
    topology, draw = prepared.topology, prepared.make_draw(prepared.plan.seed)
    found: dict[str, Counter[tuple[GroupId, ...]]] = defaultdict(Counter)
    for place in range(max(DRAWS, len(topology.clients))):
        client = topology.clients[place % len(topology.clients)]
        found[site_of_region(topology.region(client))][draw(client)[0]] += 1
    return found


def count_run(run: Run) -> tuple[Counts, int]:
    """The destinations of a recorded run's messages by the region of the sender, and their mean size in bytes. Clients
    of live clusters have no region in a trace: they count as beside the first replica of the group that they use
    most."""
    regions: dict[int, str] = dict((run.meta.topology or {}).get("regions", ()))
    first: dict[GroupId, int] = {}
    for process, group, region in zip(*(run.processes[name] for name in ("process", "group", "region")), strict=True):
        if region:
            regions[process] = region
        if group is not None:
            first[group] = min(process, first.get(group, process))
    sent: dict[int, Counter[tuple[GroupId, ...]]] = defaultdict(Counter)
    for sender, groups in zip(run.multicasts["sender"], run.multicasts["destinations"], strict=True):
        sent[sender][tuple(sorted(groups))] += 1
    if not sent or not first:
        raise UsageError("--trace: the run has no multicasts, or no groups; expected some to count destinations of")
    found: dict[str, Counter[tuple[GroupId, ...]]] = defaultdict(Counter)
    for sender, counts in sorted(sent.items()):
        home = _find_most_used(counts, first)
        region = site_of_region(regions.get(sender) or regions.get(first[home]) or "")
        if not region:
            raise UsageError(f"--trace: neither client {sender} nor group {home} has a region; expected one of them")
        found[region].update(counts)
    sizes = run.multicasts["bytes"]
    return found, round(sum(sizes) / len(sizes))


def _find_most_used(counts: Mapping[tuple[GroupId, ...], int], groups: Iterable[GroupId]) -> GroupId:
    return max(groups, key=lambda group: _weigh(counts, group))


def _weigh(counts: Mapping[tuple[GroupId, ...], int], group: GroupId) -> float:
    """How much a group is used; a message to several groups counts in part for each."""
    return sum(count / len(groups) for groups, count in counts.items() if group in groups)


def find_homes(counts: Counts, groups: Iterable[GroupId]) -> dict[str, tuple[GroupId, ...]]:
    """Region -> the groups that are used most by its clients; a message to several groups counts in part for each."""
    homes: dict[str, list[GroupId]] = defaultdict(list)
    for group in groups:
        uses = {region: _weigh(found, group) for region, found in sorted(counts.items())}
        homes[max(uses, key=lambda region: uses[region])].append(group)
    return {region: tuple(found) for region, found in sorted(homes.items())}
