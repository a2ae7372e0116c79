"""The fair end of any run: everything heals, the oracles tell the truth, and nothing waits for ever.

What a protocol promises to deliver in the end is demanded after this. No chance is involved: the oldest packet arrives
first, disks answer at once, and when nothing else can happen the timer that fired least often fires.
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
from amcast.simulation.world.world import World

SETTLE_STEPS: Final = 20_000
"""The liveness bound: so many actions after healing, everything owed must be delivered."""


def run_fair_ending(pool: PendingActions, claims: Claims, bound: int = SETTLE_STEPS) -> list[AnyAction]:
    """Let a run end fairly: until nothing is owed, nothing can happen, or the bound is reached. Says what happened."""
    done: list[AnyAction] = []
    world = pool.world
    for action in _healing(pool, claims):
        if pool.apply(action):
            done.append(action)
    fair = _fair(pool)
    while len(done) < bound and not world.violations and has_due_deliveries(world):
        chosen = next(fair, None)
        if chosen is None:
            break
        done.append(chosen)
        pool.apply(chosen)
    return done


def has_due_deliveries(world: World) -> bool:
    """Whether anything is owed (`World.owed`); asked after every step, so it stops at the first."""
    down = world.down
    for message, missing in world.undelivered.items():
        if not down:
            return True
        said = world.undelivered_messages[message]
        promised = said.sender not in down or len(missing) < len(world.topology.processes_of(said.destinations))
        if promised and any(process not in down for process in missing):
            return True
    return False


def describe_stuck(pool: PendingActions, settled: list[AnyAction]) -> str:
    """Who still waits for what, in a sentence."""
    owed = pool.world.list_due_deliveries()
    message, process = owed[0]
    more = f" ({len(owed)} deliveries are owed in all)" if len(owed) > 1 else ""
    end = "within the liveness bound of" if len(settled) >= SETTLE_STEPS else "and nothing more can happen after"
    return f"process {process} never delivers message {message}, {end} {len(settled)} fair steps{more}"


def _healing(pool: PendingActions, claims: Claims) -> Iterator[AnyAction]:
    world = pool.world
    if world.blocked:
        yield Heal()
    if pool.loss:
        yield Lossy(0.0)
    for process in sorted(world.paused):
        yield Resume(process)
    lost = world.down.keys() - world.absent
    if not claims.tolerates(present_topology(world), frozenset(lost)):
        for process in sorted(lost):
            yield Recover(process)
    dealer = FaultInjector(frozenset(), claims, Random(0), 1)
    if claims.faults & {"leaders", "crash", "recovery", "amnesia"}:
        yield from dealer.list_stable_leaders(world)
    if "suspects" in claims.faults:
        yield from dealer.list_true_suspicions(world)


def _fair(pool: PendingActions) -> Iterator[AnyAction]:
    """The next action that fairness demands, until there is none. The caller lets each happen before it asks again."""
    fired: dict[tuple[ProcessId, str], int] = {}
    disks = pool.world.disks
    while True:
        busy = [process for process in sorted(disks) if disks[process].busy]
        if busy:
            yield Sync(busy[0])
        elif pool.links:
            source, target = min(pool.links, key=lambda pair: pool.links[pair][0][0])
            yield Arrive(target, ((source, 0),))
        else:
            timers = pool.list_timers()
            if not timers:
                return
            timer = min(timers, key=lambda key: (fired.get(key, 0), pool.timers[key][2], key))
            fired[timer] = fired.get(timer, 0) + 1
            yield Fire(*timer)
