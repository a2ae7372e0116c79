"""The expansion of states: all moves of each, or so many that no ending is lost, and the states that they lead to.

A move changes a few parts of a state, and the digest of a state is the exclusive or of the digests of its parts. A
state that was seen before is therefore known by its digest before it is built.
"""

from collections.abc import Mapping, Sequence
from itertools import combinations
from typing import Final, NamedTuple

from amcast.kernel.effects import Persist
from amcast.kernel.errors import Error
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.simulation.exploration.commutation import Choice, Commutation
from amcast.simulation.exploration.components import EMPTY, Components, Control, State
from amcast.simulation.exploration.local_steps import (
    Arrival,
    Firing,
    ForbiddenStepError,
    LocalEvent,
    LocalStep,
    LocalSteps,
    Stop,
    Submission,
    Suggestion,
    Writing,
)
from amcast.simulation.exploration.symmetry import Permutation, Symmetry
from amcast.simulation.schedulers.fuzz import Status
from amcast.simulation.schedulers.heal import describe_stuck, run_fair_ending
from amcast.simulation.schedulers.scope import Scope
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    Crash,
    Drop,
    Fire,
    Recover,
    Renew,
    Repeat,
    Sync,
)
from amcast.simulation.world.world import POSITIONS_PER_STATE, Hello, Pair
from amcast.simulation.world.world_snapshot import Packet, WorldSnapshot

NOWHERE: Final = -1
MOST_CHOSEN: Final = 3
"""The most arrivals at one process that are tried alone."""


class Move(NamedTuple):
    """Something that can happen in a state."""

    action: AnyAction
    place: int = NOWHERE
    """The place of the process that takes a step of its own; NOWHERE if several processes or links change."""
    event: LocalEvent | None = None
    link: int = NOWHERE
    """The position of the link from which a packet is taken."""
    tail: int = EMPTY
    """What is left on that link."""
    spends: str = ""
    """The field of the budget that it uses."""
    body: int = 0
    """The packet that arrives or is lost."""


class BrokenPropertyError(Error):
    """A property does not hold after a move, or (None) in a state, after a fair ending."""

    def __init__(
        self, status: Status, story: str, move: Move | None, ending: Sequence[AnyAction] = (), is_failure: bool = False
    ) -> None:
        super().__init__(story)
        self.status: Status = status
        self.story = story
        self.move = move
        self.ending = list(ending)
        self.is_failure = is_failure
        """A process raised an exception."""


class Follower(NamedTuple):
    """A state that a move leads to."""

    key: int
    """The digest that it shares with all its images."""
    move: Move
    changes: dict[int, int] | State
    """The parts that differ, by position; or the whole state."""


class Ending(NamedTuple):
    """What a state in which only faults can happen shows."""

    deliveries: tuple[tuple[MessageId, ...], ...]
    has_timers: bool


class Expansion(NamedTuple):
    """What follows from a state."""

    followers: list[Follower]
    ending: Ending | None
    choice: Choice | None
    """The moves that stood for all; None if all were tried."""


class Expander:
    """Expands states, with tables that grow: of parts, of the steps of processes and of their images."""

    def __init__(self, scope: Scope, permutations: Sequence[Permutation], merging: int) -> None:
        """`permutations` are followed; states of orbits under the first `merging` of them are one."""
        self.scope = scope
        topology = scope.topology
        self._size = size = len(topology.processes)
        self.width = size + size * size + 1
        """Numbers per state."""
        self._processes = topology.processes
        self._places = {process: place for place, process in enumerate(topology.processes)}
        self._servers = [self._places[process] for process in topology.servers]
        self._is_ordered = scope.links == "fifo"
        self.components = Components(self._is_ordered)
        self.steps = LocalSteps(scope, self.components)
        self.symmetry = Symmetry(topology, self.components, permutations, merging)
        self._follows = len(permutations) > 1
        self._merging = merging
        self._multicasts = scope.make_multicasts()
        self._arrivals: list[dict[int, list[Move]]] = [{} for _ in range(size * size)]
        self._arrival_sets: dict[tuple[int, int, tuple[int, ...]], list[list[tuple[Choice, list[Move]]]]] = {}
        self._local_moves: dict[tuple[int, int, bool], list[Move]] = {}
        self._spent: dict[tuple[int, str], int] = {}
        self._walked: dict[tuple[int, LocalEvent], LocalStep] = {}
        """Steps that were taken, followed by their images and reported."""
        self.commutation = Commutation(self.components, self._walk, self._is_ordered)
        budget = scope.budget
        keeps_links = not (budget.recoveries or budget.renewals or budget.drops or budget.repeats)
        self._may_choose = scope.reduced and keeps_links
        """Nothing removes a packet from its link but its arrival, and crashes for good."""
        self._may_write_first = len(scope.messages) < POSITIONS_PER_STATE
        """No application takes its state within the scope, which is a step that waits for disks."""
        self.goals: set[str] = set()
        """The notes that processes made, checks of commutation apart."""
        self._judged: set[tuple[tuple[tuple[MessageId, ...], ...], tuple[MessageId, ...]]] = set()

    def start(self) -> State:
        """The first state."""
        steps = self.steps
        steps.run_in_world(steps.world.start)
        self.goals.update(steps.world.note_counts)
        state = self._number(steps.take_snapshot(), self.components.add_control(Control(self.scope.budget, (), ())))
        size = self._size
        self.symmetry.begin(state[:size], state[size:-1])
        return state

    def key_of(self, state: State) -> int:
        return self._choose_key(self._join(state))

    def _join(self, state: State) -> int:
        hash_part = self.symmetry.hash_part
        joined = self.symmetry.hash_control(state[-1])
        for position, part in enumerate(state[:-1]):
            if part:
                joined ^= hash_part(position, part)
        return joined

    def _choose_key(self, joined: int) -> int:
        """The least digest of the images of a state."""
        if self._merging == 1:
            return joined
        return min(memoryview(joined.to_bytes(8 * self._merging, "little")).cast("Q"))

    # Expanding

    def expand(self, state: State, tries_all: bool = False) -> Expansion:
        """The states that follow: those of some moves that stand for all, if there are such."""
        control = self.components.controls[state[-1]]
        chosen = None if tries_all or not self._may_choose else self._choose_moves(state, control)
        ending = None
        if chosen is not None:
            moves = chosen
        else:
            moves = self._list_moves(state, control)
            if not moves:
                ending = self._check_ending(state, control)
            if any(control.left):
                moves = moves + self._list_faults(state, control)
        joined = self._join(state)
        followers = []
        for move in moves:
            try:
                changes, key = self._apply(state, joined, control, move)
            except ForbiddenStepError as error:
                raise BrokenPropertyError("violated", error.story, move, (), error.failure is not None) from None
            followers.append(Follower(key, move, changes))
        return Expansion(followers, ending, None if chosen is None else self._name_choice(state, chosen))

    def build(self, state: State, follower: Follower) -> State:
        """The state that follows."""
        if isinstance(follower.changes, tuple):
            return follower.changes
        after = list(state)
        for position, part in follower.changes.items():
            after[position] = part
        return tuple(after)

    def _apply(self, state: State, joined: int, control: Control, move: Move) -> tuple[dict[int, int] | State, int]:
        """What a move changes, and the digest of the state that follows."""
        if control.stale or (move.event is None and type(move.action) not in (Drop, Repeat)):
            after = self._apply_in_world(state, control, move)
            self._check_order(after, state, self.components.controls[after[-1]], move)
            return after, self.key_of(after)
        changes = self._list_changes(state, move) if move.event is not None else self._change_link(state, move)
        if move.spends:
            changes[-1] = self._spend(state[-1], move.spends)
        hash_part = self.symmetry.hash_part
        for position, part in changes.items():
            if position >= 0:
                joined ^= hash_part(position, state[position]) ^ hash_part(position, part)
            else:
                joined ^= self.symmetry.hash_control(state[-1]) ^ self.symmetry.hash_control(part)
        return changes, self._choose_key(joined)

    def _list_changes(self, state: State, move: Move) -> dict[int, int]:
        """The parts that a step of one process changes."""
        place, event = move.place, move.event
        assert event is not None
        cell = state[place]
        process = self._processes[place]
        step = self._walked.get((cell, event)) or self._walk(process, cell, event, state)
        if step.notes:
            self.goals.update(step.notes)
        changes = {place: step.cell}
        if move.link >= 0:
            changes[move.link] = move.tail
        size, cells = self._size, self.components.cells
        if type(event) is Stop:
            changes |= {
                position: EMPTY
                for other in range(size)
                for position in (size + place * size + other, size + other * size + place)
                if state[position]
            }
        elif step.sends:
            append, places = self.components.append, self._places
            base = size + place * size
            for target, body in step.sends:
                position = base + places[target]
                if cells[state[places[target]]].state is not None:
                    changes[position] = append(changes.get(position, state[position]), body)
        if type(event) is Submission:
            changes[-1] = self._add_multicast(state[-1], event.message)
        if step.delivers:
            after = list(state)
            after[place] = step.cell
            self._check_order(tuple(after), state, self.components.controls[state[-1]], move)
        return changes

    def _walk(self, process: ProcessId, cell: int, event: LocalEvent, state: State | None = None) -> LocalStep:
        """Takes a step, with its images, and lets choices be checked against it. Without a `state` of the world nothing
        is known of other processes."""
        step = self._walked.get((cell, event))
        if step is not None:
            return step
        place = self._places[process]
        prefix = self._find_prefix(state, place) if state is not None else ()
        step = self.steps.take(process, cell, event, lambda: prefix)
        if step.needs_prefix and state is None:
            return step
        if self._follows:
            self.symmetry.follow(self.steps, process, cell, event, step, prefix)
        if not step.needs_prefix:
            self._walked[(cell, event)] = step
        if self.scope.reduced:
            for known in self.symmetry.list_event_images(process, cell, event):
                self.commutation.add_step(*known)
        return step

    def _change_link(self, state: State, move: Move) -> dict[int, int]:
        link = state[move.link]
        return {move.link: move.tail if type(move.action) is Drop else self.components.append(link, move.body)}

    def _find_prefix(self, state: State, place: int) -> tuple[MessageId, ...]:
        """The most deliveries of a member of a group."""
        topology = self.scope.topology
        group = topology.group_of(self._processes[place])
        members = topology.members(group) if group is not None else ()
        histories = [self.components.cells[state[self._places[member]]].history for member in members]
        return max(histories, key=len, default=())

    def _spend(self, control: int, name: str) -> int:
        number = self._spent.get((control, name))
        if number is None:
            known = self.components.controls[control]
            number = self.components.add_control(known._replace(left=known.left.spend(name)))
            self._spent[(control, name)] = number
        return number

    def _add_multicast(self, control: int, message: MessageId) -> int:
        known = self.components.controls[control]
        return self.components.add_control(known._replace(multicasts=tuple(sorted((*known.multicasts, message)))))

    # The whole world, for faults that concern several processes

    def _make_snapshot(self, state: State, control: Control) -> WorldSnapshot:
        size, components = self._size, self.components
        links: dict[Pair, tuple[Packet, ...]] = {}
        for source, sender in enumerate(self._processes):
            for target, receiver in enumerate(self._processes):
                link = state[size + source * size + target]
                if link:
                    links[(sender, receiver)] = tuple(
                        (0, (sender, receiver, components.bodies[body], None, 0, 0)) for body in components.links[link]
                    )
        sent = {action.message: action for action in self._multicasts}
        messages = tuple(
            Message(one, sent[one].sender, sent[one].destinations, bytes(sent[one].size)) for one in control.multicasts
        )
        cells = tuple(components.cells[cell] for cell in state[:size])
        return WorldSnapshot(cells, links, frozenset(control.stale), messages)

    def _number(self, snapshot: WorldSnapshot, control: int) -> State:
        components = self.components
        cells = [components.add_cell(place, cell) for place, cell in enumerate(snapshot.cells)]
        links = [
            components.add_link(
                [components.add_body(packet[1][2]) for packet in snapshot.links.get((sender, receiver), ())]
            )
            for sender in self._processes
            for receiver in self._processes
        ]
        return (*cells, *links, control)

    def _apply_in_world(self, state: State, control: Control, move: Move) -> State:
        steps = self.steps
        steps.restore_snapshot(self._make_snapshot(state, control))
        steps.world.note_counts.clear()
        steps.run_in_world(lambda: steps.apply(move.action))
        self.goals.update(steps.world.note_counts)
        snapshot = steps.take_snapshot()
        left = control.left.spend(move.spends) if move.spends else control.left
        multicasts = tuple(message.id for message in snapshot.multicasts)
        after = Control(left, multicasts, tuple(sorted(snapshot.stale)))
        return self._number(snapshot, self.components.add_control(after))

    # What can happen

    def _list_moves(self, state: State, control: Control) -> list[Move]:
        """All moves but faults."""
        size = self._size
        moves = [] if len(control.multicasts) == len(self._multicasts) else self._list_multicasts(state, control)
        for position in range(size * size):
            link = state[size + position]
            if link:
                moves += self._find_arrivals(position, link)
        has_timers = control.left.timers > 0
        for place in range(size):
            moves += self._find_local_moves(place, state[place], has_timers)
        return moves

    def _choose_moves(self, state: State, control: Control) -> list[Move] | None:
        """As few moves as commute with everything that could come before them, if there are such."""
        size, processes = self._size, self._processes
        if self._may_write_first:
            for place in range(size):
                for move in self._find_local_moves(place, state[place], False):
                    if self._walk(processes[place], state[place], Writing()).is_silent:
                        return [move]
        mortal = self._find_mortal(control)
        waiting = []
        for place in range(size):
            links = tuple(
                0 if source in mortal and source != place else state[size + source * size + place]
                for source in range(size)
            )
            if any(links):
                key = (place, state[place], links)
                sets = self._arrival_sets.get(key)
                if sets is None:
                    sets = self._arrival_sets[key] = self._list_arrival_sets(place, state[place], links)
                waiting.append((place, sets))
        for count in range(MOST_CHOSEN):
            for place, sets in waiting:
                for choice, moves in sets[count]:
                    if self.commutation.choose(processes[place], choice):
                        return moves
        return None

    def _list_arrival_sets(
        self, place: int, cell: int, links: tuple[int, ...]
    ) -> list[list[tuple[Choice, list[Move]]]]:
        """By size: the sets of arrivals at a process that may stand for all moves."""
        moves = [
            move
            for source, link in enumerate(links)
            if link
            for move in self._find_arrivals(source * self._size + place, link)
        ]
        return [
            [((cell, tuple(move.event for move in some)), list(some)) for some in combinations(moves, count)]  # type: ignore[misc]
            for count in range(1, MOST_CHOSEN + 1)
        ]

    def _name_choice(self, state: State, moves: list[Move]) -> Choice:
        events = tuple(move.event for move in moves if isinstance(move.event, Arrival))
        return state[moves[0].place], events

    def _find_arrivals(self, position: int, link: int) -> list[Move]:
        arrivals = self._arrivals[position].get(link)
        return self._list_arrivals(position, link) if arrivals is None else arrivals

    def _find_mortal(self, control: Control) -> list[int]:
        """The places of processes that may still crash."""
        if not control.left.crashes:
            return []
        return [self._places[process] for process in self.scope.list_mortal()]

    def _find_local_moves(self, place: int, cell: int, has_timers: bool) -> list[Move]:
        local = self._local_moves.get((place, cell, has_timers))
        if local is None:
            local = self._local_moves[(place, cell, has_timers)] = self._list_local_moves(place, cell, has_timers)
        return local

    def _list_arrivals(self, position: int, link: int) -> list[Move]:
        """The packets that may arrive next over a link: the first one, or each different one."""
        source, target = divmod(position, self._size)
        sender = self._processes[source]
        bodies = self.components.links[link]
        is_first = self._is_ordered or type(self.components.bodies[bodies[0]]) is Hello
        moves = []
        for place, body in enumerate(bodies[:1] if is_first else bodies):
            if body not in bodies[:place]:
                action = Arrive(self._processes[target], ((sender, place),))
                tail = self.components.remove(link, place)
                moves.append(Move(action, target, Arrival(sender, body), self._size + position, tail, "", body))
        self._arrivals[position][link] = moves
        return moves

    def _list_local_moves(self, place: int, number: int, has_timers: bool) -> list[Move]:
        process = self._processes[place]
        cell = self.components.cells[number]
        moves = [Move(Sync(process, 1), place, Writing())] if cell.waiting else []
        if has_timers:
            moves += [Move(Fire(process, name), place, Firing(name), spends="timers") for name in cell.timers]
        return moves

    def _list_multicasts(self, state: State, control: Control) -> list[Move]:
        """The next multicast of each client that is up."""
        nexts: dict[ProcessId, Move] = {}
        is_answered = self.scope.is_answered
        waiting: set[ProcessId] = set()
        for action in self._multicasts:
            sender = action.sender
            cell = self.components.cells[state[self._places[sender]]].state
            if cell is None:
                continue
            if action.message in control.multicasts:
                if is_answered is not None and not is_answered(cell, action.message):
                    waiting.add(sender)
            elif sender not in waiting:
                nexts.setdefault(sender, Move(action, self._places[sender], Submission(action.message)))
        return list(nexts.values())

    def _list_faults(self, state: State, control: Control) -> list[Move]:
        """The faults that the budget still allows."""
        left = control.left
        cells = {process: self.components.cells[state[place]] for process, place in self._places.items()}
        up = [process for process, cell in cells.items() if cell.state is not None]
        moves: list[Move] = []
        for process in self.scope.list_mortal() if left.crashes else ():
            if process in up:
                records = sum(isinstance(effect, Persist) for effect in cells[process].waiting)
                moves += [
                    Move(Crash(process, kept), self._places[process], Stop(kept), spends="crashes")
                    for kept in range(records + 1)
                ]
        if left.recoveries:
            ways = (False, True) if self.scope.amnesia else (False,)
            down = [process for process in cells if process not in up]
            moves += [Move(Recover(process, lost), spends="recoveries") for process in down for lost in ways]
        if left.renewals:
            moves += [Move(Renew(a, b), spends="renewals") for a in up for b in up if a < b]
        if left.suggestions:
            moves += [
                Move(
                    action, self._places[action.process], Suggestion(action.group, action.leader), spends="suggestions"
                )
                for action in self.scope.list_suggestions()
                if action.process in up
            ]
        if left.drops or left.repeats:
            moves += self._list_losses(state, control)
        return moves

    def _list_losses(self, state: State, control: Control) -> list[Move]:
        moves: list[Move] = []
        left, components = control.left, self.components
        for position in range(self._size * self._size):
            source, target = (self._processes[place] for place in divmod(position, self._size))
            link = state[self._size + position]
            for place, body in enumerate(components.links[link] if source != target else ()):
                if type(components.bodies[body]) is Hello:
                    continue
                where = self._size + position
                if left.drops:
                    tail = components.remove(link, place)
                    moves.append(Move(Drop(source, target, place), link=where, tail=tail, spends="drops", body=body))
                if left.repeats:
                    moves.append(Move(Repeat(source, target, place), link=where, spends="repeats", body=body))
        return moves

    # Judging

    def _check_order(self, after: State, before: State, control: Control, move: Move) -> None:
        """Checks `always`, if anything was delivered."""
        cells = self.components.cells
        histories = tuple(cells[after[place]].history for place in self._servers)
        if (histories, control.multicasts) in self._judged:
            return
        if histories == tuple(cells[before[place]].history for place in self._servers):
            return
        story = self._judge(histories, control)
        if story is not None:
            raise BrokenPropertyError("violated", story, move)
        self._judged.add((histories, control.multicasts))

    def _judge(self, histories: Sequence[Sequence[MessageId]], control: Control) -> str | None:
        sent = {action.message: action.destinations for action in self._multicasts}
        destinations = {message: sent[message] for message in control.multicasts}
        by_process: Mapping[ProcessId, Sequence[MessageId]] = dict(
            zip((self._processes[place] for place in self._servers), histories, strict=True)
        )
        return self.scope.always(by_process, destinations)

    def _check_ending(self, state: State, control: Control) -> Ending:
        """Checks a state in which only faults can happen: every due delivery has happened, or happens after healing."""
        cells = [self.components.cells[cell] for cell in state[: self._size]]
        histories = tuple(cells[place].history for place in self._servers)
        ending = Ending(histories, any(cell.timers for cell in cells))
        steps = self.steps
        steps.restore_snapshot(self._make_snapshot(state, control))
        steps.world.note_counts.clear()
        steps.branching_world.rebuild_undelivered(list(steps.multicasts.values()))
        if not steps.world.list_due_deliveries() or not self._claims_liveness():
            return ending
        actions: list[AnyAction] = []
        try:
            steps.run_in_world(lambda: actions.extend(run_fair_ending(steps, self.scope.claims)))
            self.goals.update(steps.world.note_counts)
        except ForbiddenStepError as error:
            is_failure = error.failure is not None
            raise BrokenPropertyError("violated", error.story, None, actions, is_failure) from None
        after = [steps.world.history[process] for process in self.scope.topology.servers]
        story = self._judge(after, control)
        if story is not None:
            raise BrokenPropertyError("violated", story, None, actions)
        if steps.world.list_due_deliveries():
            raise BrokenPropertyError("stuck", describe_stuck(steps, actions), None, actions)
        return ending

    def _claims_liveness(self) -> bool:
        """Whether the protocol claims to survive the crashes so far: it survives crashes at all, and these ones for
        good, or each process comes back with what it had made durable."""
        world = self.steps.world
        down = frozenset(world.down)
        claims = self.scope.claims
        if not down or ("crash" in claims.faults and claims.tolerates(self.scope.topology, down)):
            return True
        return "recovery" in claims.faults and all(world.disks[process].records for process in sorted(down))
