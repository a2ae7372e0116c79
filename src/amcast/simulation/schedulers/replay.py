"""The scripted scheduler: repeats a run action by action, and narrates it.

Strict replay: an action that cannot happen is an error in the script, and its line is named. Lenient replay skips it,
which is what makes scripts shrink. If deliveries are due at the end of a script, a fair ending follows
(`simulation/schedulers/heal.py`), so that "stuck" can be judged.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import cast

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims
from amcast.simulation.monitors.monitors import Monitoring
from amcast.simulation.narration import NarratedProcess, ObservedStep, describe_action, describe_failure, narrate_action
from amcast.simulation.schedulers.fuzz import Judge, Status
from amcast.simulation.schedulers.heal import describe_stuck, run_fair_ending
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.schedulers.script import Script
from amcast.simulation.world.actions import AnyAction
from amcast.simulation.world.failure import ProcessFailedError
from amcast.simulation.world.world import NO_NODES, NodeBodies, World
from amcast.trace.recorder import Recorder

Tell = Callable[[str], None]


@dataclass
class ReplayResult:
    """The result of a replay."""

    status: Status
    story: str
    actions: list[AnyAction] = field(default_factory=list)
    """The actions of the script that happened."""
    skipped: int = 0
    ending: list[AnyAction] = field(default_factory=list)
    """The actions of the fair ending, if one was needed."""
    notes: dict[str, int] = field(default_factory=dict)


class Replayer(PendingActions):
    """The world that a script describes; whoever drives it chooses the actions."""

    def __init__(
        self,
        script: Script,
        make: Callable[[ProcessId], Process],
        recorder: Recorder | None = None,
        tell: Tell | None = None,
        node_bodies: NodeBodies = NO_NODES,
        monitoring: Monitoring | None = None,
    ) -> None:
        super().__init__(script.links, script.tick_ns)
        self._log: list[ObservedStep] = []
        self._tell = tell
        self._narrated = 0
        seen = make if tell is None else lambda process: cast(Process, NarratedProcess(make(process), self._log))
        self.world = World(
            script.topology,
            seen,
            self,
            recorder,
            absent=frozenset(script.absent),
            operator=script.operator,
            node_bodies=node_bodies,
            # A shorter script has fewer idle disks: a restart that fails must fail in it, too.
            monitoring=None if monitoring is None else replace(monitoring, rehearse_every=1),
            storage=script.storage,
        )

    def apply(self, action: AnyAction) -> bool:
        if self._tell is None:
            return super().apply(action)
        self._log.clear()
        try:
            happened = super().apply(action)
        except Exception:
            self._narrate(action)
            raise
        if happened:
            self._narrate(action)
        return happened

    def _narrate(self, action: AnyAction) -> None:
        assert self._tell is not None
        self._narrated += 1
        self._tell(f"{self._narrated}. {narrate_action(action, self._log)}")


def replay(
    script: Script,
    make: Callable[[ProcessId], Process],
    claims: Claims,
    judge: Judge,
    *,
    strict: bool = True,
    tell: Tell | None = None,
    node_bodies: NodeBodies = NO_NODES,
    monitoring: Monitoring | None = None,
    recorder: Recorder | None = None,
) -> ReplayResult:
    """Replays a script and judges it. `tell` is called with one line per action, as it happens; `recorder` keeps the
    run, for a picture of it."""
    recorder = recorder or Recorder()
    player = Replayer(script, make, recorder, tell, node_bodies, monitoring)
    result = ReplayResult("holds", "")
    result.notes = player.world.note_counts
    try:
        player.world.start()
        _play(script, player, result, strict)
        _judge(player, recorder, claims, judge, result, tell)
    except ProcessFailedError as failure:
        result.status, result.story = "violated", describe_failure(failure)
    if tell is not None:
        tell(f"{result.status}: {result.story}" if result.story else result.status)
    return result


def _play(script: Script, player: Replayer, result: ReplayResult, strict: bool) -> None:
    for place, action in enumerate(script.actions):
        result.actions.append(action)
        if not player.apply(action):
            if strict:
                raise UsageError(
                    f"{script.locate(place)} of the script: cannot happen there: {describe_action(action)}"
                )
            result.actions.pop()
            result.skipped += 1
        if player.world.violations:
            return


def _judge(
    player: Replayer, recorder: Recorder, claims: Claims, judge: Judge, result: ReplayResult, tell: Tell | None
) -> None:
    world = player.world
    story = judge_world(world, recorder, judge, complete=not world.list_due_deliveries())
    if story is None and world.list_due_deliveries():
        if tell is not None:
            tell("end of the script; a fair ending follows: faults heal, and every pending action happens:")
        result.ending = run_fair_ending(player, claims)
        story = judge_world(world, recorder, judge, complete=not world.list_due_deliveries())
    if story is not None:
        result.status, result.story = "violated", story
    elif world.list_due_deliveries():
        result.status, result.story = "stuck", describe_stuck(player, result.ending)


def judge_world(world: World, recorder: Recorder, judge: Judge, complete: bool) -> str | None:
    """The first violation. A judge may be called more than once for one run."""
    recorder.processes.clear()
    return world.violations[0] if world.violations else judge(world, recorder, complete)


def narrate(
    script: Script,
    make: Callable[[ProcessId], Process],
    claims: Claims,
    judge: Judge,
    node_bodies: NodeBodies = NO_NODES,
    monitoring: Monitoring | None = None,
) -> Sequence[str]:
    """Narrates a script: numbered actions, and the verdict at the end."""
    lines: list[str] = []
    replay(script, make, claims, judge, strict=False, tell=lines.append, node_bodies=node_bodies, monitoring=monitoring)
    return lines
