"""States as numbers: every part of a state is kept once, under a digest of its content.

A state of a small world is a tuple of numbers: one for each process (with its timers, disk and deliveries), one for
each link (the bodies in flight), and one for what is left to happen. A number is a digest of 64 bits. Tens of thousands
of parts make up millions of states.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Final, NamedTuple

import msgspec

from amcast.kernel.ids import MessageId
from amcast.kernel.message import Body
from amcast.simulation.schedulers.scope import Budget
from amcast.simulation.world.world import Hello, Pair
from amcast.simulation.world.world_snapshot import ProcessSnapshot

EMPTY: Final = 0
"""The number of a link without packets."""
_encode: Final = msgspec.msgpack.Encoder(order="deterministic").encode

State = tuple[int, ...]
"""The numbers of all processes, in the order of the topology; of all links, by place of source and target; and of the
control."""


class Control(NamedTuple):
    """What is left to happen, and what else a state consists of."""

    left: Budget
    multicasts: tuple[MessageId, ...]
    """What was multicast so far, sorted."""
    stale: tuple[Pair, ...]


def digest_of(*parts: bytes) -> int:
    """A number of 64 bits."""
    return int.from_bytes(blake2b(b"|".join(parts), digest_size=8).digest(), "big")


class Components:
    """The parts that were seen, by number."""

    def __init__(self, is_ordered: bool) -> None:
        self._is_ordered = is_ordered
        """Links are FIFO: the order of bodies in flight makes a difference."""
        self.cells: dict[int, ProcessSnapshot] = {}
        self.bodies: dict[int, Body] = {}
        self.links: dict[int, tuple[int, ...]] = {EMPTY: ()}
        self.controls: dict[int, Control] = {}
        self._body_numbers: dict[Body, int] = {}
        self._link_numbers: dict[tuple[int, ...], int] = {(): EMPTY}
        self._control_numbers: dict[Control, int] = {}
        self._longer: dict[tuple[int, int], int] = {}
        self._shorter: dict[tuple[int, int], int] = {}

    def add_cell(self, place: int, cell: ProcessSnapshot) -> int:
        number = digest_of(b"cell %d" % place, cell.code)
        self.cells.setdefault(number, cell)
        return number

    def add_body(self, body: Body) -> int:
        number = self._body_numbers.get(body)
        if number is None:
            number = digest_of(type(body).__name__.encode(), _encode(body))
            self._body_numbers[body] = number
            self.bodies[number] = body
        return number

    def add_link(self, bodies: Sequence[int]) -> int:
        """On links without order, the order of sending makes no difference, but for a Hello, which comes first."""
        content = tuple(bodies)
        if not self._is_ordered and len(content) > 1:
            first = int(type(self.bodies[content[0]]) is Hello)
            content = content[:first] + tuple(sorted(content[first:]))
        number = self._link_numbers.get(content)
        if number is None:
            number = digest_of(b"link", *(body.to_bytes(8, "big") for body in content))
            self._link_numbers[content] = number
            self.links[number] = content
        return number

    def add_control(self, control: Control) -> int:
        number = self._control_numbers.get(control)
        if number is None:
            number = digest_of(b"control", _encode(control))
            self._control_numbers[control] = number
            self.controls[number] = control
        return number

    def append(self, link: int, body: int) -> int:
        """The link with one body more."""
        number = self._longer.get((link, body))
        if number is None:
            number = self._longer[(link, body)] = self.add_link((*self.links[link], body))
        return number

    def remove(self, link: int, place: int) -> int:
        """The link with one body less."""
        number = self._shorter.get((link, place))
        if number is None:
            bodies = self.links[link]
            number = self._shorter[(link, place)] = self.add_link(bodies[:place] + bodies[place + 1 :])
        return number
