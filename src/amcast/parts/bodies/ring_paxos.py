"""What travels round a ring."""

from amcast.kernel.message import Body
from amcast.parts.bodies import paxos
from amcast.parts.bodies.paxos import Value


class Pass(Body, frozen=True):
    """Phases 2a and 2b in one: a proposal and the votes (bits by place) it has collected."""

    ballot: int
    instance: int
    value: Value
    votes: int
    left: int
    """Members that have not seen the value; from 0 down, members that have not seen all votes."""


BODIES: tuple[type[Body], ...] = (*paxos.BODIES, Pass)
