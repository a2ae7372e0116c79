"""The exhaustive scheduler: every action that can happen in a small scope.

A scope is a topology, a few messages and a budget of faults. The search goes breadth-first from state to state. Three
properties are checked:

    always      no state breaks the order (a predicate that is passed in), and no process takes a forbidden step;
    sometimes   the notes that a trustworthy search must see were seen;
    eventually  wherever only faults can happen, every due delivery has happened, after a fair ending if need be.

What need not be seen twice is left out (docs/search.md#exhaustive-search): states that differ in the names of replicas
and clients alone (`exploration/symmetry.py`), and other moves where one commutes with all that could come before it
(`exploration/commutation.py`). Both are checked while the search goes on. A broken order stays broken in all states
that follow, and endings are never left out; but a path that is found may be longer than the shortest. A limit that is
reached makes the verdict unknown, never "holds". A counterexample is replayed in a world that uses no snapshots.

Only digests of 64 bits are kept of the states that were seen: `Exploration.omission` bounds the probability that one
was taken for another.
"""

import gc
from array import array
from collections.abc import Callable
from dataclasses import replace
from typing import Final

from amcast.kernel.ids import MessageId
from amcast.simulation.exploration.commutation import Choice
from amcast.simulation.exploration.components import State
from amcast.simulation.exploration.expansion import BrokenPropertyError, Expander, Follower
from amcast.simulation.exploration.local_steps import ForbiddenStepError
from amcast.simulation.exploration.partition import maps_to_itself
from amcast.simulation.exploration.symmetry import Permutation, find_subgroup, list_candidates
from amcast.simulation.schedulers.fuzz import Status
from amcast.simulation.schedulers.replay import replay
from amcast.simulation.schedulers.scope import Counterexample, Exploration, Scope
from amcast.simulation.schedulers.script import Script
from amcast.simulation.world.actions import AnyAction, Arrive, Drop, Repeat
from amcast.simulation.world.world_snapshot import BranchingActions

REPORT_EVERY: Final = 1_000
CHEAP: Final = 10_000
"""So many states are searched again to keep the symmetries apart from those that were refuted."""
Progress = Callable[[int, int], None]


def explore(scope: Scope, progress: Progress | None = None) -> Exploration:
    """Searches a scope until a violation, the end, or a limit. `progress` is called now and then with states and
    depth."""
    budget = scope.budget
    candidates = [tuple(range(len(scope.topology.processes)))]
    if scope.reduced and not (budget.recoveries or budget.renewals):
        candidates = list_candidates(scope)
    refuted: set[Permutation] = set()
    was_enabled = gc.isenabled()
    gc.disable()  # tables of states only grow, and hold no cycles
    try:
        while True:
            group = find_subgroup(candidates, refuted)
            explorer = Explorer(scope, group, progress)
            found = explorer.run()
            if found is not None:
                lost = set(candidates) - (set(group) - explorer.refuted)
                return replace(found, refuted=tuple(sorted(lost)))
            refuted |= explorer.refuted
    finally:
        if was_enabled:
            gc.enable()


class Explorer:
    """One exhaustive search, with permutations that may turn out to be no symmetries."""

    def __init__(self, scope: Scope, permutations: list[Permutation], progress: Progress | None) -> None:
        self.scope = scope
        self._progress = progress
        merging = [one for one in permutations if maps_to_itself(one, scope)]
        others = [one for one in permutations if one not in merging]
        self._merging = frozenset(merging)
        self._expander = Expander(scope, merging + others, len(merging))
        self._numbers: dict[int, int] = {}
        """By digest: the number of the state."""
        self._parents = array("q")
        self._depths = array("H")
        self._moves: list[tuple[AnyAction, int] | None] = []
        """By state: the action that led to it, and the body that it is about."""
        self._transitions = self._terminals = self._unspent = self._chosen = self._again = 0
        self._endings: set[tuple[tuple[MessageId, ...], ...]] = set()
        self.ending_keys: set[int] = set()
        """The digests of the states in which only faults can happen."""
        self._used: dict[Choice, list[tuple[int, State]]] = {}
        """By choice of arrivals: the states in which they stood for all moves."""

    @property
    def refuted(self) -> set[Permutation]:
        return self._expander.symmetry.refuted

    def run(self) -> Exploration | None:
        """Searches; None if a permutation is no symmetry, so that the search must start again without it."""
        try:
            state = self._expander.start()
        except ForbiddenStepError as error:
            return self._result(Counterexample("violated", error.story, []))
        level = [(self._add(self._expander.key_of(state), -1, None), state)]
        while level and not self._is_full():
            following: list[tuple[int, State]] = []
            for number, state in level:
                try:
                    self._expand(number, state, following)
                except BrokenPropertyError as error:
                    return self._result(self._counterexample(number, error))
                if self.refuted and (self.refuted & self._merging or len(self._parents) < CHEAP):
                    return None
                if self._is_full():
                    break
            level = following
        return None if self.refuted & self._merging else self._result(None)

    def _add(self, key: int, parent: int, move: tuple[AnyAction, int] | None) -> int:
        number = self._numbers[key] = len(self._parents)
        self._parents.append(parent)
        self._depths.append(self._depths[parent] + 1 if parent >= 0 else 0)
        self._moves.append(move)
        if self._progress is not None and number % REPORT_EVERY == 0 and number:
            self._progress(number, self._depths[number])
        return number

    def _is_full(self) -> bool:
        return len(self._parents) >= self.scope.max_states

    def _expand(self, number: int, state: State, following: list[tuple[int, State]]) -> None:
        """Adds the states that follow; where a choice was wrong, those of all moves."""
        found = self._expander.expand(state)
        if found.choice is not None and any(self._is_earlier(follower, number) for follower in found.followers):
            found = self._expander.expand(state, tries_all=True)  # on a cycle, other moves might be put off for ever
        if found.choice is not None:
            self._chosen += 1
            self._used.setdefault(found.choice, []).append((number, state))
        if found.ending is not None:
            self._terminals += 1
            self._unspent += found.ending.has_timers
            self._endings.add(found.ending.deliveries)
            self.ending_keys.add(self._expander.key_of(state))
        self._follow(number, state, found.followers, following)
        commutation = self._expander.commutation
        commutation.check()
        while commutation.refuted:
            for earlier in self._used.pop(commutation.refuted.pop(), ()):
                self._again += 1
                following.append(earlier)

    def _is_earlier(self, follower: Follower, number: int) -> bool:
        """Whether a state that follows was met at no greater depth."""
        known = self._numbers.get(follower.key)
        return known is not None and self._depths[known] <= self._depths[number]

    def _follow(self, number: int, state: State, followers: list[Follower], following: list[tuple[int, State]]) -> None:
        for follower in followers:
            self._transitions += 1
            if follower.key not in self._numbers and not self._is_full():
                move = follower.move
                after = self._add(follower.key, number, (move.action, move.body))
                following.append((after, self._expander.build(state, follower)))

    # Results

    def _result(self, counterexample: Counterexample | None) -> Exploration:
        full = self._is_full() and counterexample is None
        goals = self._expander.goals
        return Exploration(
            verdict="violated" if counterexample is not None else "unknown" if full else "holds",
            states=len(self._parents),
            transitions=self._transitions,
            deepest=max(self._depths, default=0),
            terminals=self._terminals,
            endings=frozenset(self._endings),
            goals={goal: goal in goals for goal in self.scope.goals},
            limit=f"the limit of {self.scope.max_states} states was reached; there may be more" if full else None,
            unspent=self._unspent,
            counterexample=counterexample,
            symmetries=len(self._merging),
            chosen=self._chosen,
            again=self._again,
            steps=self._expander.steps.count,
        )

    def _path_to(self, number: int) -> list[tuple[AnyAction, int]]:
        path = []
        while (move := self._moves[number]) is not None:
            path.append(move)
            number = self._parents[number]
        return path[::-1]

    def _counterexample(self, number: int, error: BrokenPropertyError) -> Counterexample:
        path = self._path_to(number)
        if error.move is not None:
            path.append((error.move.action, error.move.body))
        script = [*self._place_packets(path), *error.ending]
        story = self._confirm(error.status, script)
        return Counterexample(error.status, story if error.is_failure else error.story, script)

    def _place_packets(self, path: list[tuple[AnyAction, int]]) -> list[AnyAction]:
        """The actions of a path, with the places of packets: on links without order, the search knows bodies alone."""
        scope = self.scope
        if scope.links == "fifo":
            return [action for action, _ in path]
        pending = BranchingActions(scope.topology, scope.make, scope.links)
        pending.world.start()
        actions: list[AnyAction] = []
        for action, number in path:
            if isinstance(action, Arrive):
                source = action.packets[0][0]
                action = Arrive(action.target, ((source, self._find_place(pending, source, action.target, number)),))
            elif isinstance(action, Drop | Repeat):
                place = self._find_place(pending, action.source, action.target, number)
                action = type(action)(action.source, action.target, place)
            actions.append(action)
            if len(actions) < len(path):
                pending.apply(action)
        return actions

    def _find_place(self, pending: BranchingActions, source: int, target: int, number: int) -> int:
        body = self._expander.components.bodies[number]
        bodies = [packet[1][2] for packet in pending.links[(source, target)]]
        return bodies.index(body)

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
