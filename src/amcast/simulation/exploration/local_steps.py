"""Steps of single processes, each taken once.

Everything but a fault of a link concerns one process: what it does depends on its own state and on the event, and
consists of its next state and of what it sends. The same process meets the same event in thousands of states of the
world, so the step is taken in a real world when it is first met, and looked up afterwards. Only a state that is
transferred from another member depends on more, on the deliveries that it stands for: these are part of the event.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from amcast.kernel.errors import Error
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.simulation.exploration.components import Components
from amcast.simulation.narration import describe_failure
from amcast.simulation.schedulers.scope import Scope
from amcast.simulation.world.failure import ProcessFailedError
from amcast.simulation.world.world_snapshot import BranchingActions, ProcessSnapshot

INSTALLED: Final = "installed"
"""The note of a process that adopted the deliveries of another one."""


class Arrival(NamedTuple):
    """A body arrives. Events are tuples, so that each needs a kind to differ from the others."""

    source: ProcessId
    body: int
    kind: str = "arrival"


class Writing(NamedTuple):
    """The first waiting record becomes durable."""

    records: int = 1
    kind: str = "writing"


class Firing(NamedTuple):
    timer: str
    kind: str = "firing"


class Suggestion(NamedTuple):
    group: GroupId
    leader: ProcessId
    kind: str = "suggestion"


class Submission(NamedTuple):
    message: MessageId
    kind: str = "submission"


class Stop(NamedTuple):
    """A crash that leaves the first `kept` of the waiting records durable."""

    kept: int
    kind: str = "stop"


LocalEvent = Arrival | Writing | Firing | Suggestion | Submission | Stop


class LocalStep(NamedTuple):
    """What a process does."""

    cell: int
    """Its next state."""
    sends: tuple[tuple[ProcessId, int], ...]
    """Target and body of each packet, in order."""
    delivers: bool
    """Whether its deliveries are others than before."""
    is_silent: bool
    """Only its disk and what waited for it are changed: the step commutes with every other step, crashes apart."""
    notes: tuple[str, ...]
    """The names of the notes that the process made."""
    needs_prefix: bool = False
    """The step adopted deliveries of another member."""


class ForbiddenStepError(Error):
    """A process took a step that no process may take."""

    def __init__(self, story: str, failure: ProcessFailedError | None) -> None:
        super().__init__(story)
        self.story = story
        self.failure = failure


class LocalSteps(BranchingActions):
    """Takes the steps of single processes."""

    def __init__(self, scope: Scope, components: Components) -> None:
        super().__init__(scope.topology, scope.make, scope.links, scope.monitoring)
        self._components = components
        self._multicasts = {action.message: action for action in scope.make_multicasts()}
        self._known: dict[tuple[int, LocalEvent], LocalStep] = {}
        self._known_with_prefix: dict[tuple[int, LocalEvent, tuple[MessageId, ...]], LocalStep] = {}

    @property
    def count(self) -> int:
        return len(self._known) + len(self._known_with_prefix)

    def take(
        self, process: ProcessId, cell: int, event: LocalEvent, prefix: Callable[[], tuple[MessageId, ...]]
    ) -> LocalStep:
        """The step of a process; `prefix` are the most deliveries of any member of its group."""
        step = self._known.get((cell, event))
        if step is None:
            step = self._known[(cell, event)] = self._execute(process, cell, event, None)
        if not step.needs_prefix:
            return step
        delivered = prefix()
        known = self._known_with_prefix.get((cell, event, delivered))
        if known is None:
            known = self._execute(process, cell, event, delivered)
            self._known_with_prefix[(cell, event, delivered)] = known
        return known

    def _execute(
        self, process: ProcessId, number: int, event: LocalEvent, prefix: tuple[MessageId, ...] | None
    ) -> LocalStep:
        """Takes a step in the world; what others have delivered may not matter (None)."""
        before = self._components.cells[number]
        self._prepare(process, before, prefix or ())
        world = self.branching_world
        world.note_counts.clear()
        self._run_guarded(lambda: self._happen(process, event))
        needs_prefix = prefix is None and INSTALLED in world.note_counts
        if not needs_prefix:
            self.report_violations()
        after = world.snapshot_process(process)
        return LocalStep(
            self._components.add_cell(self._places[process], after),
            tuple((target, self._components.add_body(body)) for _, (_, target, body, *_) in self.offered),
            after.history != before.history,
            after.state == before.state and after.timers == before.timers and isinstance(event, Writing),
            tuple(world.note_counts),
            needs_prefix,
        )

    def _prepare(self, process: ProcessId, cell: ProcessSnapshot, prefix: tuple[MessageId, ...]) -> None:
        """Restores one process in a world where nothing else is going on."""
        world = self.branching_world
        self._restored = None
        world.changed.clear()
        world.clear_deliveries()
        world.stale.clear()
        world.violations.clear()
        if world.monitors is not None:
            world.monitors.clear()
        self.links.clear()
        self.multicasts.clear()
        self._restore_process(process, cell)
        group = world.topology.group_of(process)
        if group is not None:
            for member in world.topology.members(group):
                if member != process:
                    world.history[member] = list(prefix)
        self.offered.clear()

    def _happen(self, process: ProcessId, event: LocalEvent) -> None:
        world = self.branching_world
        match event:
            case Arrival(source, body):
                world.arrive(0, (source, process, self._components.bodies[body], None, 0, 0))
            case Writing(records):
                world.complete_writes(process, records)
            case Firing(timer):
                world.fire(process, timer, 0)
            case Suggestion(group, leader):
                world.suggest(process, group, leader)
            case Submission(message):
                self.apply(self._multicasts[message])
            case Stop(kept):
                world.crash(process, kept)

    def _run_guarded(self, happen: Callable[[], object]) -> None:
        try:
            happen()
        except ProcessFailedError as failure:
            raise ForbiddenStepError(describe_failure(failure), failure) from failure

    def report_violations(self) -> None:
        """Raises an error if a process took a step that no process may take."""
        if self.world.violations:
            story = self.world.violations[0]
            self.world.violations.clear()
            raise ForbiddenStepError(story, None)

    def run_in_world(self, happen: Callable[[], object]) -> None:
        """Runs steps in the whole world; an exception or a forbidden step of a process is reported."""
        self._run_guarded(happen)
        self.report_violations()
