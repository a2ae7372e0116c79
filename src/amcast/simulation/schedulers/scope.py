"""The scope of an exhaustive search, and its result."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, NamedTuple

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id
from amcast.kernel.message import State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Links
from amcast.kernel.topology import Topology
from amcast.simulation.monitors.monitors import Monitoring
from amcast.simulation.schedulers.fuzz import Status
from amcast.simulation.world.actions import AnyAction, Multicast, Suggest
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder

MAX_STATES: Final = 1_000_000

Always = Callable[[Mapping[ProcessId, Sequence[MessageId]], Mapping[MessageId, tuple[GroupId, ...]]], str | None]
"""Takes the deliveries of each process and the destinations of each message; returns the first violation as a sentence,
or None."""

Verdict = Literal["holds", "violated", "unknown"]


class Budget(NamedTuple):
    """How often each kind of action may happen on one path through the scope."""

    timers: int = 0
    crashes: int = 0
    recoveries: int = 0
    drops: int = 0
    repeats: int = 0
    renewals: int = 0
    suggestions: int = 0

    def spend(self, name: str) -> "Budget":
        return self._replace(**{name: getattr(self, name) - 1})


NO_FAULTS: Final = Budget()


@dataclass(frozen=True)
class Scope:
    """What an exhaustive search explores."""

    topology: Topology
    make: Callable[[ProcessId], Process]
    messages: tuple[tuple[ProcessId, tuple[GroupId, ...]], ...]
    """Sender and destinations; each sender multicasts its messages in this order."""
    always: Always
    claims: Claims
    links: Links = "fifo"
    budget: Budget = NO_FAULTS
    amnesia: bool = False
    """Whether a crashed process may also come back with an empty disk."""
    goals: tuple[str, ...] = ()
    max_states: int = MAX_STATES
    reduced: bool = True
    """Skip other orders of steps that commute."""
    is_answered: Callable[[State, MessageId], bool] | None = None
    """Says whether a client in a state has the answer to a message that it multicast. With it each sender waits for the
    answer to its last message before it multicasts the next."""
    mortal: tuple[ProcessId, ...] | None = None
    """The servers that may crash; None: all. A search with one server that may crash knows that packets of the others
    are not lost."""
    suggestions: tuple[Suggest, ...] | None = None
    """The suggestions of a leader that may happen; None: all."""
    monitoring: Monitoring | None = None
    """The invariants that are checked. A search visits a state once, whatever path led there, so it checks those that
    need no history: nothing leaves before its record is durable. The replay of a counterexample checks all."""

    def __post_init__(self) -> None:
        if self.max_states < 1:
            raise UsageError(f"max_states = {self.max_states}; expected at least 1")
        for name, value in zip(Budget._fields, self.budget, strict=True):
            if value < 0:
                raise UsageError(f"budget.{name} = {value}; expected 0 or more")
        if (self.budget.drops or self.budget.repeats) and self.links != "raw":
            raise UsageError(
                f"budget.drops and budget.repeats: links are {self.links!r}; only raw links lose and double"
            )
        for sender, destinations in self.messages:
            if sender not in self.topology.processes:
                raise UsageError(f"messages: sender {sender} does not exist; expected one of {self.topology.processes}")
            if self.topology.check_destinations(destinations) != destinations:
                raise UsageError(f"messages: destinations {destinations}; expected sorted and without repetition")

    def list_mortal(self) -> tuple[ProcessId, ...]:
        """The servers that may crash."""
        return self.topology.servers if self.mortal is None else self.mortal

    def list_suggestions(self) -> tuple[Suggest, ...]:
        """The suggestions of a leader that may happen: any member of any group, to any server."""
        if self.suggestions is not None:
            return self.suggestions
        leaders = [(group, leader) for group in self.topology.groups for leader in self.topology.members(group)]
        return tuple(Suggest(process, *leader) for process in self.topology.servers for leader in leaders)

    def judge(self, world: World, recorder: Recorder, complete: bool) -> str | None:
        """Judges a replayed run by `always`."""
        destinations: Any = {row[0]: row[2] for row in recorder.multicasts}
        return self.always(world.history, destinations)

    def make_multicasts(self) -> tuple[Multicast, ...]:
        """The multicasts, with message ids."""
        sent: dict[ProcessId, int] = {}
        actions = []
        for sender, destinations in self.messages:
            sequence = sent.get(sender, 0)
            sent[sender] = sequence + 1
            actions.append(Multicast(sender, message_id(sender, sequence), destinations))
        return tuple(actions)


@dataclass(frozen=True)
class Counterexample:
    """A shortest path to a violation. If it is "stuck", the fair ending after the script delivers too little."""

    status: Status
    story: str
    script: list[AnyAction]


@dataclass(frozen=True)
class Exploration:
    """The result of a search, and how far it looked."""

    verdict: Verdict
    states: int
    transitions: int
    deepest: int
    """The depth of the search: actions on the longest of the shortest paths."""
    terminals: int
    """States in which only faults can happen."""
    endings: frozenset[tuple[tuple[MessageId, ...], ...]]
    """The different deliveries of the servers in those states."""
    goals: dict[str, bool]
    """The `sometimes` of this search: which notes were seen."""
    limit: str | None = None
    """Why the search was not exhaustive, in a sentence."""
    unspent: int = 0
    """Terminal states with timers that the budget did not let fire; due deliveries happened there in a fair ending."""
    counterexample: Counterexample | None = None
    symmetries: int = 1
    """Permutations under which all states of an orbit were one."""
    refuted: tuple[tuple[int, ...], ...] = ()
    """Permutations of the places of processes that are no symmetries, or were not shown to be."""
    chosen: int = 0
    """States where some moves stood for all."""
    again: int = 0
    """States where it turned out not to, and that were expanded again."""
    steps: int = 0
    """Different steps of single processes."""

    @property
    def omission(self) -> float:
        """A bound on the probability that any state was taken for another, because their digests are equal: there are
        64 bits, and each state has a digest for each symmetry."""
        return min(1.0, self.symmetries * self.states**2 / 2**65)

    @property
    def missed_goals(self) -> list[str]:
        """Goals that were not reached: a reason not to trust this scope."""
        return [goal for goal, reached in self.goals.items() if not reached]
