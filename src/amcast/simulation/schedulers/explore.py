"""The exhaustive scheduler: every action that can happen in a small scope, shortest paths first.

A scope is a topology, a few messages and a budget of faults. The search goes breadth-first from state to state, so the
path to the first violation is a shortest one. Three properties are checked:

    always      no state breaks the order (a predicate that is passed in), and no process takes a forbidden step;
    sometimes   the notes that a trustworthy search must see were seen;
    eventually  wherever only faults can happen, every due delivery has happened, after a fair ending if need be.

Steps of different processes commute: the resulting state is the same in either order. Sleep sets (Godefroid) skip the
other order: every state is still visited, at the same depth, but most paths to it are not tried. A limit that is
reached makes the verdict unknown, never "holds". A counterexample is replayed in a world that uses no snapshots.
"""

from collections.abc import Callable
from typing import Final, NamedTuple

from amcast.kernel.effects import Persist
from amcast.kernel.ids import MessageId, ProcessId
from amcast.simulation.narration import describe_failure
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
from amcast.simulation.world.failure import ProcessFailedError
from amcast.simulation.world.world import Hello, Pair
from amcast.simulation.world.world_snapshot import BranchingActions, WorldSnapshot

REPORT_EVERY: Final = 1_000
EVERYWHERE: Final = -1


class Move(NamedTuple):
    """An action that can happen now."""

    action: AnyAction
    site: ProcessId = EVERYWHERE
    """The process that takes the step; an action that concerns several processes commutes with no other."""
    bit: int = 0
    """Identifies the move across states, for sleep sets."""
    spends: str = ""
    """The field of the budget that it uses."""


class _Work(NamedTuple):
    """A state whose moves are to be tried."""

    snapshot: WorldSnapshot
    left: Budget
    only: int = -1
    """If not -1: only these moves."""


class _CounterexampleFoundError(Exception):
    def __init__(self, status: Status, story: str, ending: list[AnyAction] | None = None) -> None:
        super().__init__(story)
        self.status: Status = status
        self.story = story
        self.ending = ending or []


class _SeenStates:
    """The states seen so far, numbered: how each was first reached, and which moves were not tried from it."""

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

    def path_to(self, number: int) -> list[AnyAction]:
        """The actions that lead to a state, in order."""
        actions = []
        while (action := self.actions[number]) is not None:
            actions.append(action)
            number = self.parents[number]
        return actions[::-1]


def explore(scope: Scope, progress: Callable[[int, int], None] | None = None) -> Exploration:
    """Searches a scope until a violation, the end, or a limit. `progress` is called now and then with states and
    depth."""
    return Explorer(scope, progress).run()


class Explorer(BranchingActions):
    """One exhaustive search."""

    def __init__(self, scope: Scope, progress: Callable[[int, int], None] | None = None) -> None:
        super().__init__(scope.topology, scope.make, scope.links, scope.monitoring)
        self.scope = scope
        self._progress = progress
        self._multicasts = scope.make_multicasts()
        self._seen = _SeenStates()
        self._root: WorldSnapshot
        self._trying: tuple[int, AnyAction | None] = (-1, None)
        """The state and the move that are being tried."""
        self._depth = 0
        self._transitions = 0
        self._terminals = 0
        self._unspent = 0
        self._endings: set[tuple[tuple[MessageId, ...], ...]] = set()
        self._servers = [self._places[process] for process in scope.topology.servers]
        self._bits: dict[object, int] = {}
        self._process_bits: dict[ProcessId, int] = dict.fromkeys(scope.topology.processes, 0)
        """By process: the bits of its moves, which do not commute among themselves."""
        self._timer_bits = 0
        """The bits of all timers, which share one budget."""
        self._arrivals: dict[tuple[Pair, int], Arrive] = {}

    def run(self) -> Exploration:
        try:
            self._run_guarded(self.world.start)
            self._root = self.take_snapshot()
            left = self.scope.budget
            first = self._seen.add(self.fingerprint(self._root, left), -1, None, 0)
            level = {first: _Work(self._root, left)}
            while level and not self._full():
                level = self._next_level(level)
        except _CounterexampleFoundError as found:
            return self._result(self._counterexample(found))
        return self._result(None)

    def _next_level(self, level: dict[int, _Work]) -> dict[int, _Work]:
        """Tries all moves of all states of one depth; returns new states, and known ones with more moves to try."""
        following: dict[int, _Work] = {}
        for number, work in level.items():
            self._expand(number, work, following)
            if self._full():
                break
        self._depth += 1 if following else 0
        return following

    def _full(self) -> bool:
        return len(self._seen.parents) >= self.scope.max_states

    def _expand(self, number: int, work: _Work, following: dict[int, _Work]) -> None:
        """Tries every move of a state that no sleep set excludes."""
        known = self._seen
        known.expanded[number] = 1
        moves = self._list_moves(work)
        if not moves and work.only == -1:
            self._trying = (number, None)
            self._check_terminal(work)
        moves += self._list_faults(work)
        sleep = tried = known.sleeps[number] if self.scope.reduced else 0
        for move in moves:
            wanted = not move.bit & sleep if work.only == -1 else move.bit & work.only
            if wanted and not self._full():
                self._trying = (number, move.action)
                self._follow(work, move, tried, following)
                tried |= move.bit

    def _follow(self, work: _Work, move: Move, tried: int, following: dict[int, _Work]) -> None:
        """Applies a move and adds the state that it leads to."""
        self._transitions += 1
        snapshot = self._apply_move(work.snapshot, move.action)
        self._check(work.snapshot, snapshot)
        left = work.left.spend(move.spends) if move.spends else work.left
        sleep = self._sleep_set(move, tried)
        fingerprint = self.fingerprint(snapshot, left)
        known = self._seen
        number = known.numbers.get(fingerprint)
        if number is None:
            number = known.add(fingerprint, *self._trying, sleep)
            following[number] = _Work(snapshot, left)
            if self._progress is not None and number % REPORT_EVERY == 0:
                self._progress(number, self._depth)
        elif known.sleeps[number] & ~sleep:
            self._wake_moves(number, sleep, left, following)

    def _apply_move(self, snapshot: WorldSnapshot, action: AnyAction) -> WorldSnapshot:
        """The snapshot after an action."""

        def happen() -> None:
            self._run_guarded(lambda: self.apply(action))

        if type(action) is Arrive:
            source, place = action.packets[0]
            return self.advance_snapshot(snapshot, (source, action.target), place, happen)
        self.restore_snapshot(snapshot)
        happen()
        return self.take_snapshot()

    def _sleep_set(self, move: Move, tried: int) -> int:
        """The sleep set after a move: moves tried before it that commute with it."""
        if move.site == EVERYWHERE:
            return 0
        clash = self._process_bits[move.site]
        return tried & ~(clash | self._timer_bits) if move.spends else tried & ~clash

    def _wake_moves(self, number: int, sleep: int, left: Budget, following: dict[int, _Work]) -> None:
        """A known state was reached by a path that excludes fewer moves: tries the moves that only earlier paths
        excluded."""
        known = self._seen
        awake = known.sleeps[number] & ~sleep
        known.sleeps[number] &= sleep
        if not known.expanded[number]:
            return
        before = following.get(number)
        if before is not None:
            following[number] = before._replace(only=before.only | awake)
            return
        self.restore_snapshot(self._root)
        for action in known.path_to(number):
            self.apply(action)
        following[number] = _Work(self.take_snapshot(), left, awake)

    # What can happen

    def _list_moves(self, work: _Work) -> list[Move]:
        """All moves but faults."""
        snapshot = work.snapshot
        moves = self._list_multicasts(snapshot)
        ordered = self.link_kind == "fifo"
        for pair in sorted(snapshot.links):
            target = pair[1]
            if ordered:
                moves.append(Move(self._arrival(pair, 0), target, self._bit(pair, target)))
                continue
            link = snapshot.links[pair]
            seen = set()
            for place in range(1 if type(link[0][1][2]) is Hello else len(link)):
                body = link[place][1][2]
                if body not in seen:
                    seen.add(body)
                    moves.append(Move(self._arrival(pair, place), target, self._bit((pair, body), target)))
        for process, place in self._places.items():
            cell = snapshot.cells[place]
            if cell.waiting:
                moves.append(Move(Sync(process, 1), process, self._bit(("sync", process), process)))
            if cell.timers and work.left.timers:
                moves += [self._timer_move(process, name) for name in cell.timers]
        return moves

    def _list_multicasts(self, snapshot: WorldSnapshot) -> list[Move]:
        """The next multicast of each client that is up."""
        if len(snapshot.multicasts) == len(self._multicasts):
            return []
        sent = {message.id for message in snapshot.multicasts}
        nexts: dict[ProcessId, Move] = {}
        is_answered = self.scope.is_answered
        waiting: set[ProcessId] = set()
        for action in self._multicasts:
            sender = action.sender
            state = snapshot.cells[self._places[sender]].state
            if state is None:
                continue
            if action.message in sent:
                if is_answered is not None and not is_answered(state, action.message):
                    waiting.add(sender)
            elif sender not in waiting:
                nexts.setdefault(sender, Move(action, sender, self._bit(("multicast", sender), sender)))
        return list(nexts.values())

    def _arrival(self, pair: Pair, place: int) -> Arrive:
        known = self._arrivals.get((pair, place))
        if known is None:
            known = self._arrivals[(pair, place)] = Arrive(pair[1], ((pair[0], place),))
        return known

    def _timer_move(self, process: ProcessId, name: str) -> Move:
        bit = self._bit(("fire", process, name), process)
        self._timer_bits |= bit
        return Move(Fire(process, name), process, bit, "timers")

    def _bit(self, key: object, site: ProcessId) -> int:
        bit = self._bits.get(key)
        if bit is None:
            bit = self._bits[key] = 1 << len(self._bits)
            self._process_bits[site] |= bit
        return bit

    def _list_faults(self, work: _Work) -> list[Move]:
        """The faults that the budget still allows."""
        snapshot, left = work.snapshot, work.left
        if not any(left[1:]):
            return []
        moves: list[Move] = []
        cells = [(process, snapshot.cells[place]) for process, place in self._places.items()]
        up = [process for process, cell in cells if cell.state is not None]
        servers = [process for process in self.scope.topology.servers if process in up]
        if left.crashes:
            for process in servers:
                waiting = snapshot.cells[self._places[process]].waiting
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
            leaders = [(group, leader) for group in topology.groups for leader in topology.members(group)]
            moves += [Move(Suggest(p, g, leader), spends="suggestions") for p in servers for g, leader in leaders]
        if left.drops or left.repeats:
            moves += self._list_losses(snapshot, left)
        return moves

    def _list_losses(self, snapshot: WorldSnapshot, left: Budget) -> list[Move]:
        moves: list[Move] = []
        for (source, target), link in sorted(snapshot.links.items()):
            for place in range(len(link) if source != target else 0):
                if type(link[place][1][2]) is Hello:
                    continue
                if left.drops:
                    moves.append(Move(Drop(source, target, place), spends="drops"))
                if left.repeats:
                    moves.append(Move(Repeat(source, target, place), spends="repeats"))
        return moves

    # Judging

    def _run_guarded(self, happen: Callable[[], object]) -> None:
        """Runs a step; an exception or a forbidden step of a process is a counterexample."""
        try:
            happen()
        except ProcessFailedError as failure:
            raise _CounterexampleFoundError("violated", describe_failure(failure)) from failure
        if self.world.violations:
            raise _CounterexampleFoundError("violated", self.world.violations.pop(0))

    def _check(self, before: WorldSnapshot, after: WorldSnapshot) -> None:
        """Checks `always`, if anything was delivered."""
        for place in self._servers:
            if before.cells[place] is not after.cells[place] and (
                before.cells[place].history != after.cells[place].history
            ):
                self._judge(after)
                return

    def _judge(self, snapshot: WorldSnapshot, ending: list[AnyAction] | None = None) -> None:
        destinations = {message.id: message.destinations for message in snapshot.multicasts}
        histories = {process: snapshot.cells[self._places[process]].history for process in self.scope.topology.servers}
        story = self.scope.always(histories, destinations)
        if story is not None:
            raise _CounterexampleFoundError("violated", story, ending)

    def _check_terminal(self, work: _Work) -> None:
        """Checks a state in which only faults can happen: every due delivery has happened, or happens after healing."""
        snapshot = work.snapshot
        self._terminals += 1
        self._endings.add(tuple(snapshot.cells[place].history for place in self._servers))
        if any(cell.timers for cell in snapshot.cells):
            self._unspent += 1
        self.restore_snapshot(snapshot)
        self.branching_world.rebuild_undelivered(snapshot.multicasts)
        if not self.world.list_due_deliveries() or not self._claims_liveness():
            return
        ending: list[AnyAction] = []
        self._run_guarded(lambda: ending.extend(run_fair_ending(self, self.scope.claims)))
        self._judge(self.take_snapshot(), ending)
        if self.world.list_due_deliveries():
            raise _CounterexampleFoundError("stuck", describe_stuck(self, ending))

    def _claims_liveness(self) -> bool:
        """Whether the protocol claims to survive the crashes so far: it survives crashes at all, and these ones for
        good, or each process comes back with what it had made durable."""
        down = frozenset(self.world.down)
        claims = self.scope.claims
        if not down or ("crash" in claims.faults and claims.tolerates(self.scope.topology, down)):
            return True
        return "recovery" in claims.faults and all(self.world.disks[process].records for process in sorted(down))

    # Results

    def _result(self, counterexample: Counterexample | None) -> Exploration:
        full = self._full() and counterexample is None
        return Exploration(
            verdict="violated" if counterexample is not None else "unknown" if full else "holds",
            states=len(self._seen.parents),
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
        script = self._seen.path_to(number) if number >= 0 else []
        script += [action] if action is not None else []
        script += found.ending
        story = self._confirm(found.status, script)
        if not isinstance(found.__cause__, ProcessFailedError):  # the step of a failure is counted on its own path
            story = found.story
        return Counterexample(found.status, story, script)

    def _confirm(self, status: Status, actions: list[AnyAction]) -> str:
        """Replays the path in a world that uses no snapshots: a different end means that a snapshot lacks something.
        Returns the story of that world."""
        scope = self.scope
        script = Script("", scope.topology, actions, links=scope.links, tick_ns=0)
        monitoring = scope.monitoring if status == "violated" else None
        again = replay(script, scope.make, scope.claims, scope.judge, monitoring=monitoring)
        assert again.status == status, (
            f"a search found {status!r}, but its {len(actions)} actions lead to {again.status!r} without snapshots:"
            f" the snapshot or the restoring of a process is not complete"
        )
        return again.story
