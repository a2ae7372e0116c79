"""Symmetry: permutations of replicas, groups and clients under which a world behaves alike.

Nobody declares that a protocol treats two replicas alike, and no program can read a permutation off its states: ballots
encode places, votes are bits, tables are keyed by processes. Symmetry is therefore observed. The first states of two
processes are images of each other by definition. Whenever the search takes a step for the first time, the process that
a permutation maps to takes the image of the step as well, and both must do the same: send images of the same bodies to
images of the same targets, deliver images of the same messages, wait for as many records, set the same timers. The
states that follow are images of each other from then on, and so are the bodies.

A permutation for which an image would have two originals, or an original two images, or for which the steps differ, is
no symmetry of this scope: it is dropped, and the search starts again with those that are left. If none is refuted until
the end, then every step that the search has taken has an image, so the permutation is an automorphism of the states
that can be reached: all states of an orbit lead to violations, or to endings, that differ in names alone. The search
visits one of them.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import permutations, product
from typing import Final

from amcast.kernel.effects import Persist
from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id, sender_of, sequence_of
from amcast.kernel.topology import Topology
from amcast.simulation.exploration.components import Components, Control, digest_of
from amcast.simulation.exploration.local_steps import (
    Arrival,
    ForbiddenStepError,
    LocalEvent,
    LocalStep,
    LocalSteps,
    Submission,
    Suggestion,
)
from amcast.simulation.schedulers.scope import Scope
from amcast.simulation.world.world_snapshot import ProcessSnapshot

Permutation = tuple[int, ...]
"""The place in the topology that each place is mapped to."""
MAX_PERMUTATIONS: Final = 2_000


def list_candidates(scope: Scope) -> list[Permutation]:
    """The permutations that map groups to groups, and senders to senders of the same messages; the identity first."""
    topology = scope.topology
    places = {process: place for place, process in enumerate(topology.processes)}
    sent: dict[ProcessId, list[tuple[GroupId, ...]]] = {process: [] for process in topology.processes}
    for sender, destinations in scope.messages:
        sent[sender].append(destinations)
    found = []
    for groups in permutations(topology.groups):
        renamed = dict(zip(topology.groups, groups, strict=True))
        members = [(topology.members(old), topology.members(new)) for old, new in renamed.items()]
        if any(len(old) != len(new) for old, new in members):
            continue
        choices = [[list(zip(old, some, strict=True)) for some in permutations(new)] for old, new in members]
        choices.append([list(zip(topology.clients, some, strict=True)) for some in permutations(topology.clients)])
        for choice in product(*choices):
            pairs = [pair for part in choice for pair in part]
            mapped = dict(pairs)
            if all(_rename(sent[one], renamed) == sent[other] for one, other in pairs):
                found.append(tuple(places[mapped[process]] for process in topology.processes))
                if len(found) > MAX_PERMUTATIONS:
                    return [tuple(range(len(places)))]
    return sorted(found)


def _rename(messages: Sequence[tuple[GroupId, ...]], groups: Mapping[GroupId, GroupId]) -> list[tuple[GroupId, ...]]:
    return [tuple(sorted(groups[group] for group in destinations)) for destinations in messages]


def find_subgroup(candidates: Sequence[Permutation], refuted: Iterable[Permutation]) -> list[Permutation]:
    """A large set of permutations without a refuted one that contains all products of its members; identity first."""
    bad = set(refuted)
    group = {candidates[0]}
    for one in candidates:
        if one not in group and one not in bad:
            larger = _close(group | {one})
            if not larger & bad:
                group = larger
    return sorted(group)


def _close(members: set[Permutation]) -> set[Permutation]:
    """All products of some permutations."""
    closed = set(members)
    new = closed
    while new:
        made = {tuple(one[place] for place in other) for one in new for other in members}
        new = made - closed
        closed = closed | new
    return closed


class Symmetry:
    """The images of all parts under each permutation, and the digests of states."""

    def __init__(
        self, topology: Topology, components: Components, permutations: Sequence[Permutation], merging: int
    ) -> None:
        """Only the states of orbits under the first `merging` permutations, the identity among them, are one."""
        self._topology = topology
        self._components = components
        self.permutations = list(permutations)
        self._merging = list(permutations[:merging])
        self.refuted: set[Permutation] = set()
        self._size = len(topology.processes)
        numbers = {one: number for number, one in enumerate(self.permutations)}
        self._between = [
            [numbers[tuple(two[place] for place in _invert(one))] for two in self.permutations]
            for one in self.permutations
        ]
        """By two permutations: the one that leads from the image under the first to that under the second."""
        self._places = {process: place for place, process in enumerate(topology.processes)}
        self.images: list[dict[int, int]] = [{} for _ in self.permutations]
        """By permutation: the images of processes and bodies. The identity has none."""
        self._followed: set[tuple[int, LocalEvent]] = set()
        self._hashes: list[dict[int, int]] = [{0: 0} for _ in range(self._size * (self._size + 1))]
        self._control_hashes: dict[int, int] = {}

    def begin(self, cells: Sequence[int], links: Sequence[int]) -> None:
        """Declares the first states of processes, and the first bodies in flight, images of each other."""
        size = self._size
        for place, cell in enumerate(cells):
            self._relate_cells(cell, [cells[one[place]] for one in self.permutations])
        for source in range(size):
            for target in range(size):
                places = [one[source] * size + one[target] for one in self.permutations]
                self._relate_lists([self._components.links[links[place]] for place in places])

    def follow(
        self,
        steps: LocalSteps,
        process: ProcessId,
        cell: int,
        event: LocalEvent,
        step: LocalStep,
        prefix: tuple[MessageId, ...],
    ) -> None:
        """Takes the images of a step, and compares."""
        if (cell, event) in self._followed and not step.needs_prefix:
            return
        self._followed.add((cell, event))
        taken: list[LocalStep | None] = [step]
        for number, one in enumerate(self.permutations[1:], 1):
            taken.append(None)
            if one in self.refuted:
                continue
            other = self._topology.processes[one[self._places[process]]]
            mapped = tuple(self._map_message(one, message) for message in prefix)
            try:
                image = self.images[number][cell]
                taken[-1] = steps.take(other, image, self._map_event(number, event), lambda: mapped)  # noqa: B023
            except (ForbiddenStepError, KeyError):  # a part has no image where a product of symmetries was refuted
                self._refute(number)
        self._relate_cells(step.cell, [None if one is None else one.cell for one in taken])
        self._relate_sends(taken)

    def list_event_images(
        self, process: ProcessId, cell: int, event: LocalEvent
    ) -> Iterator[tuple[ProcessId, int, LocalEvent]]:
        """An event of a process, and its images."""
        yield process, cell, event
        for number, one in enumerate(self.permutations[1:], 1):
            image = self.images[number].get(cell)
            if image is not None and one not in self.refuted and self._has_image(number, event):
                other = self._topology.processes[one[self._places[process]]]
                mapped = self._map_event(number, event)
                if (image, mapped) != (cell, event):
                    yield other, image, mapped

    def _has_image(self, number: int, event: LocalEvent) -> bool:
        return not isinstance(event, Arrival) or event.body in self.images[number]

    def _map_event(self, number: int, event: LocalEvent) -> LocalEvent:
        one = self.permutations[number]
        processes = self._topology.processes
        match event:
            case Arrival(source, body):
                return Arrival(processes[one[self._places[source]]], self.images[number][body])
            case Suggestion(group, leader):
                mapped = processes[one[self._places[leader]]]
                inside = self._topology.group_of(processes[one[self._places[self._topology.members(group)[0]]]])
                assert inside is not None
                return Suggestion(inside, mapped)
            case Submission(message):
                return Submission(self._map_message(one, message))
            case _:
                return event

    def _map_message(self, one: Permutation, message: MessageId) -> MessageId:
        sender = self._topology.processes[one[self._places[sender_of(message)]]]
        return message_id(sender, sequence_of(message))

    def _relate_sends(self, taken: Sequence[LocalStep | None]) -> None:
        """Each target must get images of the same bodies, in the same order."""
        processes = self._topology.processes
        by_target: list[dict[ProcessId, list[int]] | None] = []
        for step in taken:
            sends: dict[ProcessId, list[int]] = {}
            for target, body in () if step is None else step.sends:
                sends.setdefault(target, []).append(body)
            by_target.append(None if step is None else sends)
        first = by_target[0]
        assert first is not None
        for number, sends_of_image in enumerate(by_target):
            one = self.permutations[number]
            targets = {processes[one[self._places[target]]] for target in first}
            if sends_of_image is not None and sends_of_image.keys() != targets:
                self._refute(number)
                by_target[number] = None
        for target in first:
            mapped = [processes[one[self._places[target]]] for one in self.permutations]
            self._relate_lists(
                [None if sends is None else sends[image] for sends, image in zip(by_target, mapped, strict=True)]
            )

    def _relate_lists(self, lists: Sequence[Sequence[int] | None]) -> None:
        """Bodies that were sent to one target, and those of all images."""
        first = lists[0]
        assert first is not None
        kept = list(lists)
        for number, bodies in enumerate(lists):
            if bodies is not None and len(bodies) != len(first):
                self._refute(number)
                kept[number] = None
        for place in range(len(first)):
            self._relate([None if bodies is None else bodies[place] for bodies in kept])

    def _relate_cells(self, cell: int, images: Sequence[int | None]) -> None:
        cells = self._components.cells
        kept = list(images)
        for number, image in enumerate(images):
            one = self.permutations[number]
            if image is not None and self._look_at(cells[cell], one) != self._look_at(cells[image], None):
                self._refute(number)
                kept[number] = None
        self._relate(kept)

    def _relate(self, images: Sequence[int | None]) -> None:
        """Adds a part, given its images under all permutations (None: refuted), and with it its whole orbit."""
        for first, part in enumerate(images):
            for number, image in enumerate(images):
                if part is not None and image is not None:
                    between = self._between[first][number]
                    if self.images[between].setdefault(part, image) != image:
                        self._refute(between)

    def _look_at(self, cell: ProcessSnapshot, one: Permutation | None) -> tuple[object, ...]:
        """What others can tell of a process: whether it is up, its timers, deliveries, and what waits for its disk."""
        history = cell.history
        if one is not None:
            history = tuple(self._map_message(one, message) for message in history)
        waiting = tuple(type(effect) is Persist for effect in cell.waiting)
        return cell.state is None, cell.incarnation, cell.timers, history, waiting, len(cell.records)

    def _refute(self, number: int) -> None:
        self.refuted.add(self.permutations[number])

    # Digests of states

    def hash_part(self, position: int, part: int) -> int:
        """The share of a part in the digests of a state and of all its images, 64 bits each, side by side."""
        known = self._hashes[position].get(part)
        return self._hash_new(position, part) if known is None else known

    def _hash_new(self, position: int, part: int) -> int:
        size = self._size
        joined = 0
        for number, one in enumerate(self._merging):
            image = part
            if position < size:
                place = one[position]
                image = self.images[number].get(part, part) if number else part
            else:
                source, target = divmod(position - size, size)
                place = size + one[source] * size + one[target]
                if number:
                    bodies = self._components.links[part]
                    image = self._components.add_link([self.images[number].get(body, body) for body in bodies])
            joined = joined << 64 | digest_of(b"part %d" % place, image.to_bytes(8, "big"))
        self._hashes[position][part] = joined
        return joined

    def hash_control(self, part: int) -> int:
        """The same for the control, whose images follow from the names of messages."""
        joined = self._control_hashes.get(part)
        if joined is None:
            joined = 0
            control = self._components.controls[part]
            for one in self._merging:
                names = tuple(sorted(self._map_message(one, message) for message in control.multicasts))
                image = self._components.add_control(Control(control.left, names, control.stale))
                joined = joined << 64 | digest_of(b"control", image.to_bytes(8, "big"))
            self._control_hashes[part] = joined
        return joined


def _invert(one: Permutation) -> Permutation:
    inverse = [0] * len(one)
    for place, target in enumerate(one):
        inverse[target] = place
    return tuple(inverse)
