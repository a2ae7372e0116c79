"""The queue of reads: when a replica may answer, and when it refuses."""

from collections.abc import Generator

import msgspec

from amcast.services.calls import CallSession
from amcast.services.declaration import SECOND_NS, At, Key, Service, command, describe_service, query
from amcast.services.executor import Executor
from amcast.services.messages import Consistency, Query, Success
from amcast.services.reads import PATIENCE_NS, PendingRead, ReadQueue

GROUPS = ("north", "south")


class Register(Service):
    """A number, which may be set after a vote."""

    def __init__(self, group: str) -> None:
        self.value: int = 0

    @command
    def put(self, at: At, name: Key, value: int) -> None:
        self.value = value

    @command
    def put_after_vote(self, at: At, name: Key, value: int) -> Generator[int, dict[str, int], None]:
        yield 1
        self.value = value

    @query
    def get(self, name: Key) -> int:
        return self.value


class Replica:
    """An executor with its reads; delivers calls at the next position."""

    def __init__(self) -> None:
        self.executor = Executor(Register, "north", GROUPS)
        self.queue = ReadQueue(self.executor)
        self.session = CallSession(describe_service(Register), GROUPS, 7)
        self.position = self.now_ns = 0

    def deliver(self, name: str, value: int, groups: tuple[str, ...] = ("north",)) -> None:
        call = self.session.make(name, ("x", value), {}, 0, groups)
        self.executor.deliver(self.position, call.destinations, call.payload)
        self.position += 1

    def read(self, consistency: Consistency, position: int = 0, max_age_ns: int = 0) -> PendingRead:
        arguments = msgspec.msgpack.encode(["x"])
        return self.queue.add(Query(1, 1, "get", arguments, consistency, position, max_age_ns), self.now_ns)

    def confirm(self, position: int) -> None:
        self.queue.confirm(self.queue.take_unconfirmed(), self.now_ns, position)

    def advance(self, closed: int | None = None) -> list[int | str]:
        """Values and refusals that are given now."""
        given: list[int | str] = []
        for read in self.queue.advance(self.position, closed, self.now_ns):
            assert read.answer is not None
            result = read.answer.result
            if result is None:
                given.append(read.answer.refusal)
            else:
                assert isinstance(result.outcome, Success)
                given.append(msgspec.msgpack.decode(result.outcome.data))
        return given


def test_a_linearizable_read_waits_for_its_majority_for_execution_and_for_closing() -> None:
    replica = Replica()
    replica.deliver("put", 1)
    replica.read("linearizable")
    assert replica.advance(closed=0) == []
    replica.confirm(position=2)
    assert replica.advance(closed=9) == [], "the majority knows of a second command"
    replica.deliver("put", 2)
    assert replica.advance(closed=1) == [], "what it has read is not closed"
    assert replica.advance(closed=2) == [2]


def test_a_read_sees_nothing_of_a_command_that_waits_and_waits_for_it_if_it_must() -> None:
    replica = Replica()
    replica.deliver("put", 1)
    replica.deliver("put_after_vote", 2, GROUPS)
    replica.read("group", position=1)
    assert replica.advance() == [1]
    replica.read("linearizable")
    replica.confirm(position=2)
    assert replica.advance() == []
    replica.now_ns += PATIENCE_NS + 1
    assert replica.advance() == ["it has not executed what its group has after 2.0 s"]


def test_a_stale_read_is_answered_at_once_within_its_bound_and_refused_beyond_it() -> None:
    replica = Replica()
    replica.deliver("put", 1)
    replica.read("stale", max_age_ns=SECOND_NS)
    assert replica.advance() == [], "nobody knows how old the state is"
    replica.confirm(position=1)
    replica.now_ns += SECOND_NS
    assert replica.advance() == [1]
    replica.read("stale", max_age_ns=SECOND_NS)
    assert replica.advance() == [1], "it was confirmed exactly a second ago"
    replica.now_ns += 1
    replica.read("stale", max_age_ns=SECOND_NS)
    assert replica.advance() == []
    replica.now_ns += PATIENCE_NS + 1
    assert replica.advance() == [
        "its state is up to 3.0 s old, and no majority of its group answers; expected at most 1 s (max_age_s)"
    ]


def test_a_confirmation_that_comes_too_late_does_not_make_a_state_fresh() -> None:
    replica = Replica()
    replica.read("stale", max_age_ns=SECOND_NS)
    reads = replica.queue.take_unconfirmed()
    replica.now_ns += SECOND_NS + 1
    replica.queue.confirm(reads, 0, 0)
    assert replica.advance() == [
        "its state is up to 1.0 s old, and it has not executed what its group has; expected at most 1 s (max_age_s)"
    ]
