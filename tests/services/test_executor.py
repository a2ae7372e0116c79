"""Executors: results, exchange between groups, restarts from snapshots, exactly once."""

import json
from collections.abc import Generator, Iterator
from typing import Any

import msgspec
import pytest

from amcast.services.declaration import At, Key, Service, command, describe_service, query
from amcast.services.errors import CommandError, ServiceFailedError
from amcast.services.executor import MAX_RESULT_BYTES, MAX_TEXT_LENGTH, MAX_VALUE_BYTES, Executor
from amcast.services.fields import PIECE_BYTES
from amcast.services.loader import load_service
from amcast.services.messages import Command, Query, Value, decode_payload, encode_payload
from tests.services.order import GROUPS, OrderedGroups

NAMES = [f"account-{number}" for number in range(8)]


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> type[Service]:
    monkeypatch.syspath_prepend(str(request.config.rootpath / "examples"))
    return load_service("bank:Bank").service


@pytest.mark.parametrize("seed", range(25))
def test_replicas_agree_and_money_stays_through_restarts_between_yield_and_resume(
    bank: type[Service], seed: int
) -> None:
    groups = OrderedGroups(bank, seed)
    for name in NAMES:
        groups.call("deposit", name, 10)
    for _ in range(20):
        source, target = groups.random.sample(NAMES, 2)
        groups.call("transfer", source, target, groups.random.randint(1, 15))
        for _ in range(groups.random.randint(0, 40)):
            groups.step(faults=True)
    groups.settle()
    assert all(len(groups.digests(group)) == 1 for group in GROUPS)
    assert sum(groups.executors[group, 0].service.total() for group in GROUPS) == 10 * len(NAMES)  # type: ignore[attr-defined]
    for call in groups.calls:
        outcome = groups.outcome(call)
        assert set(outcome.by_group) == set(call.destinations)
        assert len(set(outcome.by_group.values())) == 1, "the groups decided differently"


def test_a_snapshot_while_a_command_waits_resumes_where_it_was(bank: type[Service]) -> None:
    groups = OrderedGroups(bank, 1, replicas=1)
    deposits = [groups.call("deposit", name, 10) for name in NAMES]
    source, target = next((a, b) for a in NAMES for b in NAMES if _owner(groups, a) != _owner(groups, b))
    call = groups.call("transfer", source, target, 4)
    first = (call.destinations[0], 0)
    while groups.next[first] < len(groups.order[first[0]]):
        groups.advance(first)
    executor = groups.executors[first]
    assert "waits at yield 0 for the values of" in executor.describe_waiting()
    assert executor.result(1, call.request) is None
    assert len(executor.owed) == 1
    groups.saved[first] = (groups.next[first], executor.snapshot())
    groups.restart(first)
    assert groups.executors[first].owed == executor.owed
    groups.settle()
    assert groups.outcome(call).value is True
    assert groups.outcome(deposits[0]).value == 10


def _owner(groups: OrderedGroups, key: str) -> str:
    return groups.description.service.partition(key, GROUPS)


class Counter(Service):
    """Counts, with ways to go wrong."""

    def __init__(self, group: str) -> None:
        self.counts: dict[str, int] = {}

    @command
    def add(self, at: At, name: Key, amount: int = 1) -> int:
        if amount < 0:
            raise ValueError(f"amount {amount} is negative")
        self.counts[name] = self.counts.get(name, 0) + amount
        return self.counts[name]

    @command
    def add_both(self, at: At, one: Key, other: Key) -> Generator[int, dict[str, int], int]:
        if at.owns(one) and one not in self.counts:
            raise KeyError(one)
        seen = yield 1
        seen = yield sum(seen.values())
        self.counts["both"] = max(seen.values())
        return self.counts["both"]

    @command
    def look(self, at: At, name: Key) -> tuple[str, int, float, float, bool]:
        return at.group, at.position, at.now, at.random.random(), at.owns(name)

    @command
    def cheat(self, at: At, name: Key, other: str) -> bool:
        return at.owns(other)

    @query
    def read(self, name: Key) -> int:
        return self.counts[name]


class Rude(Service):
    """Gives what cannot be sent, and does not end when it is told to."""

    def __init__(self, group: str) -> None:
        self.count: int = 0

    @command
    def count_up(self, at: At, key: Key) -> int:
        self.count += 1
        return self.count

    @command
    def give(self, at: At, size: int) -> Generator[bytes, dict[str, bytes], int]:
        values = yield bytes(size)
        return sum(map(len, values.values()))

    @command
    def insist(self, at: At) -> Generator[object, object, None]:
        while True:
            try:
                yield object()
            except BaseException:
                self.count += 1

    @command
    def answer(self, at: At, key: Key, size: int) -> bytes:
        return bytes(size)

    @command
    def quote(self, at: At, key: Key, size: int) -> None:
        raise ValueError(json.loads(r'"\ud800"') * size)

    @command
    def sink(self, at: At, key: Key) -> int:
        return self._sink(0)

    @query
    def look(self, key: Key) -> int:
        return self._sink(0)

    def _sink(self, depth: int) -> int:
        return self._sink(depth + 1) + 1


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # of the method that insists
@pytest.mark.parametrize(
    ("name", "arguments", "kind", "text"),
    [
        (
            "give",
            (MAX_VALUE_BYTES + 1,),
            "ValueError",
            "the value of a yield has 262150 bytes; expected at most 262144",
        ),
        ("insist", (), "TypeError", "Encoding objects of type object is unsupported"),
        ("answer", ("x", MAX_RESULT_BYTES), "ValueError", "the result has 1048581 bytes; expected at most 1048576"),
        ("quote", ("x", 1), "ValueError", "\\ud800"),
        ("quote", ("x", 9999), "ValueError", "\\ud800" * MAX_TEXT_LENGTH),
        ("look", ("x",), "RecursionError", "maximum recursion depth exceeded"),
    ],
)
def test_what_cannot_be_sent_is_the_error_of_its_command_alone(
    name: str, arguments: tuple[Any, ...], kind: str, text: str
) -> None:
    groups = OrderedGroups(Rude, 5, checks=False)
    call = groups.call(name, *arguments)
    after = groups.call("count_up", "x")
    groups.settle()
    with pytest.raises(CommandError) as raised:
        groups.outcome(call)
    assert (raised.value.kind, raised.value.text[: len(text)]) == (kind, text)
    assert groups.outcome(after).value > 0
    for group in GROUPS:
        assert len({groups.executors[group, number].snapshot() for number in range(3)}) == 1


def test_a_group_that_raises_tells_those_that_wait_at_once() -> None:
    """They need not ask first, and it need not remember the call until they do."""
    groups = OrderedGroups(Counter, 3, replicas=1)
    one, other = next((a, b) for a in NAMES for b in NAMES if _owner(groups, a) != _owner(groups, b))
    groups.call("add_both", one, other)
    raising, waiting = _owner(groups, one), _owner(groups, other)
    groups.advance((raising, 0))
    [owed] = groups.executors[raising, 0].owed.values()
    assert (owed.destinations, owed.value.ended) == ((waiting,), f"raised KeyError: {one!r}")
    groups.settle()
    values = [decode_payload(payload) for _, payload in groups.order[waiting][1:]]
    assert [type(value) for value in values] == [Value, Value], "one of each group, and no answer to an answer"


def test_the_largest_values_and_results_are_sent() -> None:
    groups = OrderedGroups(Rude, 5, replicas=1)
    calls = [groups.call("give", MAX_VALUE_BYTES - 5), groups.call("answer", "x", MAX_RESULT_BYTES - 5)]
    groups.settle()
    assert groups.outcome(calls[0]).value == len(GROUPS) * (MAX_VALUE_BYTES - 5)
    assert len(groups.outcome(calls[1]).value) == MAX_RESULT_BYTES - 5


def test_what_depends_on_the_machine_is_no_result() -> None:
    groups = OrderedGroups(Rude, 5, replicas=1)
    groups.call("sink", "x")
    with pytest.raises(ServiceFailedError, match=r"sink at position 0 raised RecursionError: .* mend the method"):
        groups.settle()


def test_a_command_is_executed_once_however_often_it_is_multicast() -> None:
    groups = OrderedGroups(Counter, 3, replicas=1)
    call = groups.call("add", "x", 5)
    groups.multicast(call.destinations, call.payload)
    groups.settle()
    groups.multicast(call.destinations, call.payload)
    groups.settle()
    executor = groups.executors[call.owner, 0]
    assert executor.service.counts == {"x": 5}  # type: ignore[attr-defined]
    restored = Executor(Counter, call.owner, GROUPS)
    restored.restore(executor.snapshot(), 0)
    restored.deliver(9, call.destinations, call.payload)
    assert restored.service.counts == {"x": 5}  # type: ignore[attr-defined]
    assert restored.result(1, call.request) == executor.result(1, call.request)


def test_a_result_is_forgotten_when_its_caller_has_it_and_the_call_stays_executed_once() -> None:
    groups = OrderedGroups(Counter, 3, replicas=1)
    call = groups.call("add", "x", 5)
    groups.session.close(call)
    groups.call("add", "x", 1)
    groups.multicast(call.destinations, call.payload)
    groups.settle()
    executor = groups.executors[call.owner, 0]
    assert executor.result(1, call.request) is None
    assert executor.is_acknowledged(1, call.request)
    assert executor.service.counts == {"x": 6}  # type: ignore[attr-defined]


def test_a_retry_of_a_session_that_was_forgotten_is_not_executed() -> None:
    executor = Executor(Counter, "north", GROUPS)
    digest = describe_service(Counter).digest
    executor.deliver(0, ("north",), encode_payload(Command(7, 4, 1, True, 0, digest, "add", b"\x92\xa1x\x01")))
    result = executor.result(7, 4)
    assert result is not None
    assert "SessionForgotten" in repr(result.outcome)
    assert executor.service.counts == {}  # type: ignore[attr-defined]


def test_an_exception_is_the_result_at_every_replica_and_execution_goes_on() -> None:
    groups = OrderedGroups(Counter, 3)
    wrong, right = groups.call("add", "x", -1), groups.call("add", "x", 2)
    groups.settle()
    with pytest.raises(CommandError, match="add raised ValueError: amount -1 is negative"):
        groups.outcome(wrong)
    assert groups.outcome(right).value == 2
    assert len(groups.digests(wrong.owner)) == 1


def test_a_group_that_raises_before_its_yield_ends_the_command_in_the_others() -> None:
    groups = OrderedGroups(Counter, 5)
    one, other = next((a, b) for a in NAMES for b in NAMES if _owner(groups, a) != _owner(groups, b))
    call, later = groups.call("add_both", one, other), groups.call("add", other, 3)
    groups.settle()
    with pytest.raises(CommandError, match="add_both raised KeyError"):
        groups.outcome(call)
    assert "raised KeyError" in call.results[_owner(groups, other)].outcome.text  # type: ignore[union-attr]
    assert groups.outcome(later).value == 3
    assert not any(executor.owed for executor in groups.executors.values())


def test_commands_with_two_yields_see_the_values_of_each() -> None:
    groups = OrderedGroups(Counter, 5)
    one, other = next((a, b) for a in NAMES for b in NAMES if _owner(groups, a) != _owner(groups, b))
    groups.call("add", one, 1)
    call = groups.call("add_both", one, other)
    groups.settle()
    assert groups.outcome(call).by_group == dict.fromkeys(call.destinations, 2)


def test_at_is_the_same_at_every_replica_and_now_never_falls() -> None:
    groups = OrderedGroups(Counter, 5)
    calls = []
    for now_ns in (5_000_000_000, 1_000_000_000, 7_000_000_000):
        call = groups.session.make("look", ("x",), {}, now_ns)
        groups.multicast(call.destinations, call.payload)
        calls.append(call)
    groups.settle()
    outcomes = [groups.outcome(call).value for call in calls]
    assert [value[2] for value in outcomes] == [5.0, 5.0, 7.0]
    assert [value[1] for value in outcomes] == [0, 1, 2]
    assert len({value[3] for value in outcomes}) == 3
    owner = calls[0].owner
    assert all(value[0] == owner and value[4] for value in outcomes)
    results = {groups.executors[owner, number].result(1, calls[1].request) for number in range(3)}
    assert len(results) == 1


def test_a_key_that_is_not_annotated_is_found_at_the_first_call() -> None:
    groups = OrderedGroups(Counter, 5)
    call = groups.call("cheat", "x", "y")
    groups.settle()
    with pytest.raises(CommandError, match=r"has no argument of type amcast\.Key with this value"):
        groups.outcome(call)


def test_a_caller_with_another_class_gets_an_error_and_nothing_is_executed() -> None:
    executor = Executor(Counter, "north", GROUPS)
    executor.deliver(0, ("north",), encode_payload(Command(7, 1, 1, False, 0, "other", "add", b"\x92\xa1x\x01")))
    assert "has digest other; expected" in repr(executor.result(7, 1))
    executor.deliver(1, ("north",), b"not of a service")
    executor.deliver(2, ("north",), b"\xc1service\x01garbage")
    assert executor.service.counts == {}  # type: ignore[attr-defined]


class Impure(Service):
    """Changes state before it yields."""

    def __init__(self, group: str) -> None:
        self.total: int = 0

    @command
    def spend(self, at: At, one: Key, other: Key) -> Generator[int, dict[str, int], int]:
        self.total -= 1
        yield self.total
        return self.total

    @query
    def read(self, name: Key) -> int:
        self.total += 1
        return self.total


def test_state_that_changes_before_a_yield_or_in_a_query_is_refused_by_the_checks() -> None:
    for name, arguments in (("spend", ("a", "b")), ("read", ("a",))):
        groups = OrderedGroups(Impure, 5)
        groups.call(name, *arguments)
        with pytest.raises(ServiceFailedError, match="the state has changed"):
            groups.settle()


def test_a_command_that_gives_another_value_after_a_restart_stops_the_replica() -> None:
    groups = OrderedGroups(Impure, 5, replicas=1, checks=False)
    one, other = next((a, b) for a in NAMES for b in NAMES if _owner(groups, a) != _owner(groups, b))
    call = groups.call("spend", one, other)
    first = (call.destinations[0], 0)
    groups.advance(first)
    groups.saved[first] = (groups.next[first], groups.executors[first].snapshot())
    with pytest.raises(ServiceFailedError, match="gave another value at yield 0 when it was executed again"):
        groups.restart(first)


def test_replicas_that_compute_different_values_are_found_when_a_value_is_delivered() -> None:
    groups = OrderedGroups(Counter, 5, replicas=1)
    one, other = next((a, b) for a in NAMES for b in NAMES if _owner(groups, a) != _owner(groups, b))
    groups.call("add", one, 1)
    call = groups.call("add_both", one, other)
    group = call.owner
    while groups.next[group, 0] < len(groups.order[group]):
        groups.advance((group, 0))
    groups.multicast(call.destinations, encode_payload(Value(1, call.request, 0, group, b"\x07")))
    with pytest.raises(ServiceFailedError, match="not deterministic, or differs between replicas"):
        groups.settle()


def test_queries_read_the_state_and_name_wrong_arguments() -> None:
    executor: Any = Executor(Counter, "north", GROUPS)
    executor.service.counts["x"] = 4
    assert executor.read(Query(1, 1, "read", b"\x91\xa1x", "group")).data == b"\x04"
    assert executor.read(Query(1, 1, "read", b"\x91\xa1y", "group")).kind == "KeyError"
    assert executor.read(Query(1, 1, "read", b"\x91\x07", "group")).kind == "UsageError"


def test_a_prepared_snapshot_changes_nothing_before_it_is_adopted() -> None:
    source: Any = Executor(Counter, "north", GROUPS)
    source.service.counts["x"] = 4
    executor: Any = Executor(Counter, "north", GROUPS)
    before = executor.snapshot()
    prepared = executor.prepare(source.snapshot_pieces(), 7)
    assert executor.snapshot() == before
    executor.adopt(prepared, 7)
    assert executor.snapshot() == source.snapshot()
    assert executor.finished_until == 7


class Shelf(Service):
    """Has fields of all kinds."""

    def __init__(self, group: str) -> None:
        self.books: dict[str, list[str]] = {}
        self.pages: list[bytes] = []
        self.tags: set[str] = set()
        self.owner: str | None = None
        self.empty: dict[str, int] = {}

    @command
    def clear(self, at: At) -> None:
        self.books.clear()


def fill(shelf: Any) -> None:
    """More than fits one piece."""
    shelf.books.update({f"book-{3_000 - number}": ["a" * 900] for number in range(3_000)})
    shelf.tags.update(f"tag-{number}" for number in range(50_000))
    shelf.pages += [b"p" * 700_000, b"q", b"r"]


def test_a_large_state_is_cut_into_pieces_that_are_restored_one_by_one() -> None:
    source: Any = Executor(Shelf, "north", GROUPS)
    fill(source.service)
    sizes = [len(piece) for piece in source.snapshot_pieces()]
    assert sum(sizes) > 3_900_000
    assert sorted(sizes)[-2] < 4 * PIECE_BYTES, "only one item is longer by itself"
    restored: Any = Executor(Shelf, "north", GROUPS)
    fill(restored.service)
    restored.restore(source.snapshot_pieces(), 5)
    assert vars(restored.service) == vars(source.service)
    assert list(restored.service.books) == list(source.service.books), "commands may see the order"
    assert restored.snapshot() == source.snapshot()


class Reel(Service):
    """Has a snapshot of its own, in pieces."""

    def __init__(self, group: str) -> None:
        self.rows = ["old"]

    @command
    def clear(self, at: At) -> None:
        self.rows.clear()

    def snapshot(self) -> Iterator[bytes]:
        for row in self.rows:
            yield row.encode()

    def restore(self, pieces: Iterator[bytes]) -> None:
        assert not isinstance(pieces, bytes | list | tuple)
        self.rows = [piece.decode() for piece in pieces]


@pytest.mark.parametrize("rows", [[], ["a", "b", "c"]])
def test_a_service_may_give_its_snapshot_in_pieces(rows: list[str]) -> None:
    source: Any = Executor(Reel, "north", GROUPS)
    source.service.rows = rows
    restored: Any = Executor(Reel, "north", GROUPS)
    restored.restore(source.snapshot_pieces(), 1)
    assert restored.service.rows == rows


def test_a_piece_that_is_no_bytes_is_refused() -> None:
    executor: Any = Executor(Reel, "north", GROUPS)
    executor.service.snapshot = lambda: iter(["text"])
    with pytest.raises(ServiceFailedError, match=r"Reel.snapshot gave a piece of type str; expected bytes"):
        executor.snapshot()


@pytest.mark.parametrize("piece_bytes", [1 << 30, 100])
def test_a_state_of_an_earlier_version_is_restored(piece_bytes: int) -> None:
    """They wrote one document, and cut it anywhere."""
    source: Any = Executor(Counter, "north", GROUPS)
    source.service.counts.update({f"key-{number}": number for number in range(100)})
    encode = msgspec.msgpack.encode
    state = encode({"counts": encode(source.service.counts)})
    document = encode([source.description.digest, state, 7, 3, [], [], [], [], []])
    cut = [document[start : start + piece_bytes] for start in range(0, len(document), piece_bytes)]
    restored: Any = Executor(Counter, "north", GROUPS)
    restored.restore(cut[0] if len(cut) == 1 else cut, 5)
    assert restored.service.counts == source.service.counts
    assert (restored.executed, restored.finished_until) == (3, 5)
