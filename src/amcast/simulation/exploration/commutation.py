"""Commutation: arrivals that may come first, because nothing that could come before them at their process matters.

Steps of different processes commute. So a search that tries some arrivals D at one process, and nothing else in that
state, loses no ending if each of them commutes with whatever could happen at that process before the first of them:
every path that takes others first is equal to one that begins with an arrival of D. (D is a persistent set. On a path
to an ending, one of D is taken some time, since nothing but itself removes it from the head of its link.) Single
acknowledgements are like that most of the time.

What could happen there before an arrival a? Nothing that the search does not meet there afterwards, so this is checked
while it goes on. Let x be the state of the process and y the state after a. For each event e that is ever taken in y,
other than those of D and what follows them on their links, e must be possible in x, a must then lead where e leads from
y, and both ways must send the same bodies to each target, in the same order. Then the states after e are such a pair,
too, and so on. A pair that fails refutes the choice of D it came from: the states where it was used are expanded again.

Why this suffices. Let w be any path to an ending from a state s where D was chosen, and a the first arrival of D in w.
Let f be the first event in w at the same process that comes before a and has not been checked. All before f have been,
so a path begins with a and continues like w up to f, where f happens in some y. That path starts at the state after a,
from which fewer steps remain; by induction the search, or one of these checks, has taken f in y, so it was checked
against a in x, and that counts as a step taken in x. Hence there is no such f, w may begin with a, and the rest follows
by induction. The same holds up to symmetry: with each step, its images count as taken. The induction needs paths that
end: a state that leads to one that was met at no greater depth is expanded in full (`Explorer`).

Excluded are arrivals that change what else can happen at the process (its timers, what waits for its disk), and those
from a process that may still crash, which would take the packet with it.
"""

from collections.abc import Callable
from typing import NamedTuple

from amcast.kernel.ids import ProcessId
from amcast.simulation.exploration.components import Components
from amcast.simulation.exploration.local_steps import Arrival, ForbiddenStepError, LocalEvent, LocalStep, Stop

Choice = tuple[int, tuple[Arrival, ...]]
"""Arrivals in a state of a process that were tried there alone."""
Walk = Callable[[ProcessId, int, LocalEvent], LocalStep]


class _Pair(NamedTuple):
    """States of a process without and with an arrival that was taken first."""

    without: int
    taken: int
    arrival: Arrival
    choice: Choice


class Commutation:
    """The choices that were made, and what they were checked against."""

    def __init__(self, components: Components, walk: Walk, is_ordered: bool) -> None:
        self._cells = components.cells
        self._walk = walk
        """Takes a step and reports it, with its images, to `add_step`."""
        self._is_ordered = is_ordered
        self._events: dict[int, dict[LocalEvent, None]] = {}
        """By state of a process: the events that were ever taken there."""
        self._pairs: dict[int, list[_Pair]] = {}
        """By state with the arrival."""
        self._known_pairs: set[_Pair] = set()
        self._choices: dict[Choice, bool] = {}
        self._owners: dict[int, ProcessId] = {}
        self._open: list[tuple[_Pair, LocalEvent]] = []
        self.refuted: list[Choice] = []
        """Choices that turned out to be wrong since the list was last emptied."""

    def choose(self, process: ProcessId, choice: Choice) -> bool:
        """Whether these arrivals may be tried alone, as far as is known."""
        known = self._choices.get(choice)
        if known is None:
            cell, arrivals = choice
            self._owners[cell] = process
            self._choices[choice] = True
            for arrival in arrivals:
                try:
                    step = self._walk(process, cell, arrival)
                except ForbiddenStepError:
                    step = None
                if step is None or step.needs_prefix or not self._is_alike(cell, step.cell):
                    self._choices[choice] = False
                    return False
                self._add_pair(process, _Pair(cell, step.cell, arrival, choice))
            self.check()
            known = self._choices[choice]
        return known

    def add_step(self, process: ProcessId, cell: int, event: LocalEvent) -> None:
        """An event was taken in a state of a process."""
        self._owners[cell] = process
        events = self._events.setdefault(cell, {})
        if event in events:
            return
        events[event] = None
        self._open += [(pair, event) for pair in self._pairs.get(cell, ())]

    def check(self) -> None:
        """Compares until nothing is left to compare."""
        while self._open:
            pair, event = self._open.pop()
            if not self._choices[pair.choice]:
                continue
            if isinstance(event, Arrival) and self._is_chosen(event, pair.choice[1]):
                continue
            if not self._commutes(pair, event):
                self._choices[pair.choice] = False
                self.refuted.append(pair.choice)

    def _is_chosen(self, event: Arrival, arrivals: tuple[Arrival, ...]) -> bool:
        """Whether an event is one of these, or follows one of them on its link."""
        return event in arrivals or (self._is_ordered and any(one.source == event.source for one in arrivals))

    def _commutes(self, pair: _Pair, event: LocalEvent) -> bool:
        process, arrival = self._owners[pair.taken], pair.arrival
        try:
            first = self._walk(process, pair.without, arrival)
            second = self._walk(process, pair.taken, event)
            early = self._walk(process, pair.without, event)
            if isinstance(event, Stop):
                return early.cell == second.cell
            late = self._walk(process, early.cell, arrival)
        except ForbiddenStepError:
            return False  # if this can happen, it happens where all moves are tried
        steps = (first, second, early, late)
        if (
            late.cell != second.cell
            or any(step.needs_prefix for step in steps)
            or not self._is_alike(early.cell, late.cell)
        ):
            return False
        if _sort_sends(first, second) != _sort_sends(early, late):
            return False
        self._add_pair(process, _Pair(early.cell, late.cell, arrival, pair.choice))
        return True

    def _add_pair(self, process: ProcessId, pair: _Pair) -> None:
        if pair not in self._known_pairs:
            self._known_pairs.add(pair)
            self._owners[pair.taken] = process
            self._pairs.setdefault(pair.taken, []).append(pair)
            self._open += [(pair, event) for event in self._events.get(pair.taken, ())]

    def _is_alike(self, without: int, taken: int) -> bool:
        """Whether the same timers and disk writes are possible in both states."""
        one, other = self._cells[without], self._cells[taken]
        return (
            one.timers == other.timers and one.waiting == other.waiting and (one.state is None) == (other.state is None)
        )


def _sort_sends(one: LocalStep, other: LocalStep) -> dict[ProcessId, list[int]]:
    sends: dict[ProcessId, list[int]] = {}
    for target, body in (*one.sends, *other.sends):
        sends.setdefault(target, []).append(body)
    return sends
