"""Feedback: runs that reach new abstract states breed others.

An abstract state is what processes have just noted: a note with its count (rounded to a power of two), with the note
before it at the same process, with the last one of another member of its group, and with the last fault there. A run
that reaches a state that no run before reached becomes a parent. Its children repeat it up to that moment, and are
drawn anew from there.
"""

from dataclasses import dataclass
from typing import Final

from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder

FRESH_SHARE: Final = 0.5
"""How many runs have no parent, once there are some."""
FAULT: Final = "fault-"
"""How the notes of faults begin."""

AbstractState = tuple[str, ...]


@dataclass(frozen=True)
class Lineage:
    """How a run is drawn: from a seed, and at some steps anew from other seeds."""

    seed: int
    turns: tuple[tuple[int, int], ...] = ()
    """Step and seed of each new beginning."""


class StateRecorder(Recorder):
    """A recorder that also collects the abstract states of a run."""

    def __init__(self, topology: Topology) -> None:
        super().__init__()
        self.world: World | None = None
        """The world that is recorded; it counts the steps."""
        self.states: dict[AbstractState, int] = {}
        """The abstract states of the run, each with its first step."""
        self._topology = topology
        self._counts: dict[str, int] = {}
        self._last: dict[ProcessId, str] = {}
        """By process: its last note."""
        self._last_of_group: dict[int | None, tuple[ProcessId, str]] = {}
        self._last_fault: dict[int | None, str] = {}

    def record_note(
        self,
        process: ProcessId,
        at_ns: int,
        name: str,
        message: MessageId | None = None,
        value: float | None = None,
    ) -> None:
        super().record_note(process, at_ns, name, message, value)
        group = self._topology.group_of(process)
        if name.startswith(FAULT):
            self._last_fault[group] = name
            return
        count = self._counts[name] = self._counts.get(name, 0) + 1
        if count & count - 1 == 0:
            self._add("count", name, str(count))
        self._add("after", self._last.get(process, ""), name)
        self._add("fault", self._last_fault.get(group, ""), name)
        other, before = self._last_of_group.get(group, (process, ""))
        if other != process:
            self._add("group", before, name)
        self._last[process] = name
        self._last_of_group[group] = (process, name)

    def _add(self, *state: str) -> None:
        if state not in self.states:
            assert self.world is not None, "the recorder does not know its world"
            self.states[state] = self.world.steps


@dataclass
class Parent:
    """A run that reached a new abstract state."""

    lineage: Lineage
    step: int
    """The step in which it reached the last one that was new."""
    children: int = 0


class Corpus:
    """The parents, and the abstract states that were ever reached."""

    def __init__(self) -> None:
        self.states: set[AbstractState] = set()
        self.parents: list[Parent] = []

    def breed(self, seed: int) -> Lineage:
        """The run of a seed: a new one, or a child of a parent that has had few."""
        random = make_stream(seed, "feedback")
        if not self.parents or random.random() < FRESH_SHARE:
            return Lineage(seed)
        parent = min(random.sample(self.parents, min(4, len(self.parents))), key=lambda one: one.children)
        parent.children += 1
        step = parent.step if random.random() < 0.7 else random.randint(0, parent.step)
        kept = tuple(turn for turn in parent.lineage.turns if turn[0] < step)
        return Lineage(parent.lineage.seed, (*kept, (step, seed)))

    def learn(self, lineage: Lineage, states: dict[AbstractState, int]) -> None:
        """Makes a run a parent if it reached a state that is new."""
        new = states.keys() - self.states
        if new:
            self.states |= new
            self.parents.append(Parent(lineage, max(states[state] for state in new)))
