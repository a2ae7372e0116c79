"""The fair ending of a run: faults heal, oracles tell the truth, and every pending action happens in the end.

The deliveries that a protocol promises are demanded after this. Nothing is random: the oldest packet arrives first,
disks answer at once, and when nothing else can happen the timer that fired least often fires.
"""

from collections.abc import Iterator
from random import Random
from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Claims
from amcast.simulation.inputs.faults import FaultInjector
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import AnyAction, Arrive, Fire, Heal, Lossy, Recover, Resume, Sync
from amcast.simulation.world.membership import present_topology

SETTLE_STEPS: Final = 20_000
"""The liveness bound: actions after healing within which every due delivery must happen."""


def run_fair_ending(pending: PendingActions, claims: Claims, bound: int = SETTLE_STEPS) -> list[AnyAction]:
    """Runs a fair ending until no delivery is due, nothing can happen, or the bound is reached; returns its actions."""
    done: list[AnyAction] = []
    world = pending.world
    for action in _list_healing_actions(pending, claims):
        if pending.apply(action):
            done.append(action)
    fair = _list_fair_actions(pending)
    while len(done) < bound and not world.violations and world.find_due_message() is not None:
        chosen = next(fair, None)
        if chosen is None:
            break
        done.append(chosen)
        pending.apply(chosen)
    return done


def describe_stuck(pending: PendingActions, ending: list[AnyAction]) -> str:
    """A sentence that names a delivery that is due."""
    owed = pending.world.list_due_deliveries()
    message, process = owed[0]
    more = f" ({len(owed)} deliveries are due in all)" if len(owed) > 1 else ""
    end = "within the liveness bound of" if len(ending) >= SETTLE_STEPS else "and nothing more can happen after"
    return f"process {process} never delivers message {message}, {end} {len(ending)} fair steps{more}"


def _list_healing_actions(pending: PendingActions, claims: Claims) -> Iterator[AnyAction]:
    world = pending.world
    if world.blocked:
        yield Heal()
    if pending.loss:
        yield Lossy(0.0)
    for process in sorted(world.paused):
        yield Resume(process)
    lost = world.down.keys() - world.absent
    if not claims.tolerates(present_topology(world), frozenset(lost)):
        for process in sorted(lost):
            yield Recover(process)
    injector = FaultInjector(frozenset(), claims, Random(0), 1)
    if claims.faults & {"leaders", "crash", "recovery", "amnesia"}:
        yield from injector.list_stable_leaders(world)
    if "suspects" in claims.faults:
        yield from injector.list_true_suspicions(world)


def _list_fair_actions(pending: PendingActions) -> Iterator[AnyAction]:
    """Actions that fairness demands, until there is none. The caller applies each before it asks for the next."""
    fired: dict[tuple[ProcessId, str], int] = {}
    disks = pending.world.disks
    while True:
        busy = [process for process in sorted(disks) if disks[process].busy]
        if busy:
            yield Sync(busy[0])
        elif pending.links:
            source, target = min(pending.links, key=lambda pair: pending.links[pair][0][0])
            yield Arrive(target, ((source, 0),))
        else:
            timers = pending.list_timers()
            if not timers:
                return
            timer = min(timers, key=lambda key: (fired.get(key, 0), pending.timers[key][2], key))
            fired[timer] = fired.get(timer, 0) + 1
            yield Fire(*timer)
