"""The enumerated scheduler: everything that can happen in a small scope, shortest ways first.

A scope is a topology, a few messages and a budget of faults. The search goes breadth-first from state to state, so the
way to the first violation is a shortest one. Three questions are asked:

    always      no state breaks the order (a predicate that is handed in), and no process does what none may do;
    sometimes   the notes that a search worth trusting must have seen were seen;
    eventually  wherever nothing but faults can happen, everything owed is delivered, after a fair ending if need be.

Steps of different processes commute: whichever comes first, the same state results. Sleep sets (Godefroid) skip the
other order: every state is still visited, at the same depth, but most ways to it are not tried. A limit that is hit
makes the verdict unknown, never "holds". What was found is replayed in a world that never looked at a snapshot.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from amcast.kernel.effects import Persist
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MessageId, ProcessId
from amcast.simulation.schedulers.fuzz import Status
from amcast.simulation.schedulers.heal import describe_stuck, run_fair_ending
from amcast.simulation.schedulers.replay import replay
from amcast.simulation.schedulers.scope import Budget, Counterexample, Exploration, Scope
from amcast.simulation.schedulers.script import Script
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    Crash,
    Drop,
    Fire,
    Recover,
    Renew,
    Repeat,
    Suggest,
    Sync,
)
from amcast.simulation.world.world import Hello, Pair
from amcast.simulation.world.world_snapshot import BranchingActions, WorldSnapshot

REPORT_EVERY: Final = 1_000
EVERYWHERE: Final = -1


class Move(NamedTuple):
    """Something that can happen now."""

    action: AnyAction
    site: ProcessId = EVERYWHERE
    """Whose step it is; what concerns more than one process commutes with nothing."""
    bit: int = 0
    """Names the move across states, for sleep sets."""
    spends: str = ""
    """Whose budget it uses."""


class _Work(NamedTuple):
    """A state whose moves are to be tried."""

    picture: WorldSnapshot
    left: Budget
    only: int = -1
    """If not -1: just these moves."""


class _CounterexampleFoundError(Exception):
    def __init__(self, status: Status, story: str, ending: list[AnyAction] | None = None) -> None:
        super().__init__(story)
        self.status: Status = status
        self.story = story
        self.ending = ending or []


class _Known:
    """The states seen so far, numbered: how each was reached first, and which moves were not tried from it."""

    def __init__(self) -> None:
        self.numbers: dict[bytes, int] = {}
        self.parents: list[int] = []
        self.actions: list[AnyAction | None] = []
        self.sleeps: list[int] = []
        self.expanded = bytearray()

    def add(self, fingerprint: bytes, parent: int, action: AnyAction | None, sleep: int) -> int:
        number = self.numbers[fingerprint] = len(self.parents)
        self.parents.append(parent)
        self.actions.append(action)
        self.sleeps.append(sleep)
        self.expanded.append(0)
        return number

    def way(self, number: int) -> list[AnyAction]:
        """The actions that lead to a state, first to last."""
        actions = []
        while (action := self.actions[number]) is not None:
            actions.append(action)
            number = self.parents[number]
        return actions[::-1]


def explore(scope: Scope, progress: Callable[[int, int], None] | None = None) -> Exploration:
    """Search a scope until a violation, the end, or a limit. `progress` hears of states and depth now and then."""
    return Explorer(scope, progress).run()


class Explorer(BranchingActions):
    """One search."""

    def __init__(self, scope: Scope, progress: Callable[[int, int], None] | None = None) -> None:
        super().__init__(scope.topology, scope.make, scope.links)
        self.scope = scope
        self._progress = progress
        self._multicasts = scope.make_multicasts()
        self._known = _Known()
        self._root: WorldSnapshot
        self._trying: tuple[int, AnyAction | None] = (-1, None)
        """The state and the move that is being tried."""
        self._depth = 0
        self._transitions = 0
        self._terminals = 0
        self._unspent = 0
        self._endings: set[tuple[tuple[MessageId, ...], ...]] = set()
        self._servers = [self._places[process] for process in scope.topology.servers]
        self._bits: dict[object, int] = {}
        self._clashes: dict[ProcessId, int] = dict.fromkeys(scope.topology.processes, 0)
        """The bits of all moves of a process: among themselves they do not commute."""
        self._firing = 0
        """The bits of all timers: they share one budget."""
        self._arrivals: dict[tuple[Pair, int], Arrive] = {}

    def run(self) -> Exploration:
        try:
            self._guarded(self.world.start)
            self._root = self.take_snapshot()
            left = self.scope.budget
            first = self._known.add(self.fingerprint(self._root, left), -1, None, 0)
            level = {first: _Work(self._root, left)}
            while level and not self._full():
                level = self._next_level(level)
        except _CounterexampleFoundError as found:
            return self._result(self._counterexample(found))
        return self._result(None)

    def _next_level(self, level: dict[int, _Work]) -> dict[int, _Work]:
        """Try everything in all states of one depth; the states that are new, and old ones with more to try."""
        following: dict[int, _Work] = {}
        for number, work in level.items():
            self._expand(number, work, following)
            if self._full():
                break
        self._depth += 1 if following else 0
        return following

    def _full(self) -> bool:
        return len(self._known.parents) >= self.scope.max_states

    def _expand(self, number: int, work: _Work, following: dict[int, _Work]) -> None:
        """Try every move of a state that no sleep set excuses."""
        known = self._known
        known.expanded[number] = 1
        moves = self._moves(work)
        if not moves and work.only == -1:
            self._trying = (number, None)
            self._end(work)
        moves += self._faults(work)
        sleep = tried = known.sleeps[number] if self.scope.reduced else 0
        for move in moves:
            wanted = not move.bit & sleep if work.only == -1 else move.bit & work.only
            if wanted and not self._full():
                self._trying = (number, move.action)
                self._follow(work, move, tried, following)
                tried |= move.bit

    def _follow(self, work: _Work, move: Move, tried: int, following: dict[int, _Work]) -> None:
        """Let a move happen and note the state that it leads to."""
        self._transitions += 1
        picture = self._tried(work.picture, move.action)
        self._check(work.picture, picture)
        left = work.left.spend(move.spends) if move.spends else work.left
        sleep = self._asleep(move, tried)
        fingerprint = self.fingerprint(picture, left)
        known = self._known
        number = known.numbers.get(fingerprint)
        if number is None:
            number = known.add(fingerprint, *self._trying, sleep)
            following[number] = _Work(picture, left)
            if self._progress is not None and number % REPORT_EVERY == 0:
                self._progress(number, self._depth)
        elif known.sleeps[number] & ~sleep:
            self._wake(number, sleep, left, following)

    def _tried(self, picture: WorldSnapshot, action: AnyAction) -> WorldSnapshot:
        """The world after an action."""

        def happen() -> None:
            self._guarded(lambda: self.apply(action))

        if type(action) is Arrive:
            source, place = action.packets[0]
            return self.advance_snapshot(picture, (source, action.target), place, happen)
        self.restore_snapshot(picture)
        happen()
        return self.take_snapshot()

    def _asleep(self, move: Move, tried: int) -> int:
        """After a move, what was tried before it need not be tried again if the two commute."""
        if move.site == EVERYWHERE:
            return 0
        clash = self._clashes[move.site]
        return tried & ~(clash | self._firing) if move.spends else tried & ~clash

    def _wake(self, number: int, sleep: int, left: Budget, following: dict[int, _Work]) -> None:
        """A known state was reached by a way that excuses fewer moves: try those that only earlier ways excused."""
        known = self._known
        awake = known.sleeps[number] & ~sleep
        known.sleeps[number] &= sleep
        if not known.expanded[number]:
            return
        before = following.get(number)
        if before is not None:
            following[number] = before._replace(only=before.only | awake)
            return
        self.restore_snapshot(self._root)
        for action in known.way(number):
            self.apply(action)
        following[number] = _Work(self.take_snapshot(), left, awake)

    # What can happen

    def _moves(self, work: _Work) -> list[Move]:
        """Everything but faults."""
        picture = work.picture
        moves = self._multicasting(picture)
        ordered = self.link_kind == "fifo"
        for pair in sorted(picture.links):
            target = pair[1]
            if ordered:
                moves.append(Move(self._arrival(pair, 0), target, self._bit(pair, target)))
                continue
            link = picture.links[pair]
            seen = set()
            for place in range(1 if type(link[0][1][2]) is Hello else len(link)):
                body = link[place][1][2]
                if body not in seen:
                    seen.add(body)
                    moves.append(Move(self._arrival(pair, place), target, self._bit((pair, body), target)))
        for process, place in self._places.items():
            cell = picture.cells[place]
            if cell.waiting:
                moves.append(Move(Sync(process, 1), process, self._bit(("sync", process), process)))
            if cell.timers and work.left.timers:
                moves += [self._firing_of(process, name) for name in cell.timers]
        return moves

    def _multicasting(self, picture: WorldSnapshot) -> list[Move]:
        """The next message of each sender that is up."""
        if len(picture.multicasts) == len(self._multicasts):
            return []
        sent = {message.id for message in picture.multicasts}
        nexts: dict[ProcessId, Move] = {}
        for action in self._multicasts:
            sender = action.sender
            if action.message not in sent and picture.cells[self._places[sender]].state is not None:
                nexts.setdefault(sender, Move(action, sender, self._bit(("multicast", sender), sender)))
        return list(nexts.values())

    def _arrival(self, pair: Pair, place: int) -> Arrive:
        known = self._arrivals.get((pair, place))
        if known is None:
            known = self._arrivals[(pair, place)] = Arrive(pair[1], ((pair[0], place),))
        return known

    def _firing_of(self, process: ProcessId, name: str) -> Move:
        bit = self._bit(("fire", process, name), process)
        self._firing |= bit
        return Move(Fire(process, name), process, bit, "timers")

    def _bit(self, key: object, site: ProcessId) -> int:
        bit = self._bits.get(key)
        if bit is None:
            bit = self._bits[key] = 1 << len(self._bits)
            self._clashes[site] |= bit
        return bit

    def _faults(self, work: _Work) -> list[Move]:
        """What the budget still allows to go wrong."""
        picture, left = work.picture, work.left
        if not any(left[1:]):
            return []
        moves: list[Move] = []
        cells = [(process, picture.cells[place]) for process, place in self._places.items()]
        up = [process for process, cell in cells if cell.state is not None]
        servers = [process for process in self.scope.topology.servers if process in up]
        if left.crashes:
            for process in servers:
                waiting = picture.cells[self._places[process]].waiting
                records = sum(isinstance(effect, Persist) for effect in waiting)
                moves += [Move(Crash(process, kept), spends="crashes") for kept in range(records + 1)]
        if left.recoveries:
            down = [process for process, cell in cells if cell.state is None]
            ways = (False, True) if self.scope.amnesia else (False,)
            moves += [Move(Recover(process, lost), spends="recoveries") for process in down for lost in ways]
        if left.renewals:
            moves += [Move(Renew(a, b), spends="renewals") for a in up for b in up if a < b]
        if left.suggestions:
            topology = self.scope.topology
            said = [(group, leader) for group in topology.groups for leader in topology.members(group)]
            moves += [Move(Suggest(p, g, leader), spends="suggestions") for p in servers for g, leader in said]
        if left.drops or left.repeats:
            moves += self._losses(picture, left)
        return moves

    def _losses(self, picture: WorldSnapshot, left: Budget) -> list[Move]:
        moves: list[Move] = []
        for (source, target), link in sorted(picture.links.items()):
            for place in range(len(link) if source != target else 0):
                if type(link[place][1][2]) is Hello:
                    continue
                if left.drops:
                    moves.append(Move(Drop(source, target, place), spends="drops"))
                if left.repeats:
                    moves.append(Move(Repeat(source, target, place), spends="repeats"))
        return moves

    # Judging

    def _guarded(self, happen: Callable[[], object]) -> None:
        """A process that raises is a finding like any other."""
        try:
            happen()
        except UsageError:
            raise
        except Exception as error:
            raise _CounterexampleFoundError("error", f"{type(error).__name__}: {error}") from error
        if self.world.violations:
            raise _CounterexampleFoundError("violated", self.world.violations.pop(0))

    def _check(self, before: WorldSnapshot, after: WorldSnapshot) -> None:
        """Ask `always`, if anything was delivered."""
        for place in self._servers:
            if before.cells[place] is not after.cells[place] and (
                before.cells[place].history != after.cells[place].history
            ):
                self._judge(after)
                return

    def _judge(self, picture: WorldSnapshot, ending: list[AnyAction] | None = None) -> None:
        destinations = {message.id: message.destinations for message in picture.multicasts}
        histories = {process: picture.cells[self._places[process]].history for process in self.scope.topology.servers}
        story = self.scope.always(histories, destinations)
        if story is not None:
            raise _CounterexampleFoundError("violated", story, ending)

    def _end(self, work: _Work) -> None:
        """Nothing but faults can happen: what is owed must have come, or come when everything heals."""
        picture = work.picture
        self._terminals += 1
        self._endings.add(tuple(picture.cells[place].history for place in self._servers))
        if any(cell.timers for cell in picture.cells):
            self._unspent += 1
        self.restore_snapshot(picture)
        self.branching_world.rebuild_undelivered(picture.multicasts)
        if not self.world.list_due_deliveries():
            return
        ending: list[AnyAction] = []
        self._guarded(lambda: ending.extend(run_fair_ending(self, self.scope.claims)))
        self._judge(self.take_snapshot(), ending)
        if self.world.list_due_deliveries():
            raise _CounterexampleFoundError("stuck", describe_stuck(self, ending))

    # Telling

    def _result(self, counterexample: Counterexample | None) -> Exploration:
        full = self._full() and counterexample is None
        return Exploration(
            verdict="violated" if counterexample is not None else "unknown" if full else "holds",
            states=len(self._known.parents),
            transitions=self._transitions,
            deepest=self._depth,
            terminals=self._terminals,
            endings=frozenset(self._endings),
            goals={goal: goal in self.world.note_counts for goal in self.scope.goals},
            limit=f"the limit of {self.scope.max_states} states was reached; there may be more" if full else None,
            unspent=self._unspent,
            counterexample=counterexample,
        )

    def _counterexample(self, found: _CounterexampleFoundError) -> Counterexample:
        number, action = self._trying
        script = self._known.way(number) if number >= 0 else []
        script += [action] if action is not None else []
        script += found.ending
        self._confirm(found.status, script)
        return Counterexample(found.status, found.story, script)

    def _confirm(self, status: Status, actions: list[AnyAction]) -> None:
        """The same way in a world that never looked at a snapshot must end the same, or a snapshot lacks something."""
        scope = self.scope
        script = Script("", scope.topology, actions, links=scope.links, tick_ns=0)
        again = replay(script, scope.make, scope.claims, scope.judge)
        assert again.status == status, (
            f"a search found {status!r}, but its {len(actions)} actions lead to {again.status!r} without snapshots:"
            f" the snapshot or the restoring of a process is not complete"
        )
