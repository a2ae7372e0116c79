"""Calls with a key: executed once over all sessions, remembered for a number and a time, in snapshots as well."""

from collections.abc import Generator

import pytest

from amcast.kernel.errors import UsageError
from amcast.services.calls import Call, CallSession
from amcast.services.declaration import SECOND_NS, At, Key, Service, command, describe_service, query
from amcast.services.errors import CommandError
from amcast.services.executor import Executor
from tests.services.order import GROUPS as ORDERED
from tests.services.order import OrderedGroups

GROUPS = ("north", "south")


class Orders(Service):
    """Counts orders; remembers three of them for ten seconds."""

    remembered_keys = 3
    remembered_s = 10.0

    def __init__(self, group: str) -> None:
        self.count: int = 0

    @command
    def place(self, at: At, name: Key, units: int) -> int:
        if not units:
            raise ValueError("nothing is ordered")
        self.count += units
        return self.count

    @command
    def place_both(self, at: At, name: Key) -> Generator[int, dict[str, int], int]:
        votes = yield self.count
        self.count += 1
        return sum(votes.values())

    @query
    def read(self, name: Key) -> int:
        return self.count


class Replica:
    """An executor that is fed with calls of sessions."""

    def __init__(self) -> None:
        self.executor = Executor(Orders, "north", GROUPS)
        self.position = 0

    def call(self, key: str | None, units: int = 1, now_s: float = 0.0, session: int = 1) -> Call:
        """A call of a program that has just started; its result if there is one."""
        made = CallSession(describe_service(Orders), GROUPS, session).make(
            "place", ("x", units), {}, int(now_s * SECOND_NS), ("north",), key
        )
        self.executor.deliver(self.position, made.destinations, made.payload)
        self.position += 1
        result = self.executor.result(*made.command.id)
        if result is not None:
            made.results["north"] = result
        return made


def test_a_call_with_a_key_is_executed_once_over_sessions() -> None:
    replica = Replica()
    first = replica.call("order-17").make_outcome()
    again = replica.call("order-17", session=2).make_outcome()
    assert (again.value, again.positions) == (first.value, first.positions) == (1, {"north": 0})
    assert replica.call("order-18", session=2).make_outcome().value == 2
    assert replica.call(None, session=3).make_outcome().value == 3


def test_keys_are_in_snapshots() -> None:
    replica, restarted = Replica(), Replica()
    replica.call("order-17")
    restarted.executor.restore(replica.executor.snapshot(), 1)
    assert restarted.call("order-17").make_outcome().value == 1
    assert restarted.executor.snapshot() == replica.executor.snapshot()


def test_an_exception_is_the_result_of_its_key() -> None:
    replica = Replica()
    for session in (1, 2):
        with pytest.raises(CommandError, match="nothing is ordered"):
            replica.call("order-17", 0, session=session).make_outcome()
    assert replica.executor.executed == 1


def test_a_key_of_another_call_is_refused() -> None:
    replica = Replica()
    replica.call("order-17")
    with pytest.raises(
        UsageError, match="place: call_key = 'order-17' was used for another call; expected a key of it"
    ):
        replica.call("order-17", units=2).make_outcome()
    assert replica.executor.executed == 1


@pytest.mark.parametrize("key", ["", "x" * 257, 7])
def test_wrong_keys_are_refused(key: str) -> None:
    with pytest.raises(UsageError, match="expected a text of 1 to 256 characters"):
        Replica().call(key)


def test_queries_take_no_key() -> None:
    session = CallSession(describe_service(Orders), GROUPS, 1)
    with pytest.raises(UsageError, match="read: call_key = 'a'; expected a command"):
        session.make("read", ("x",), {}, 0, None, "a")


def test_a_group_forgets_the_oldest_keys_beyond_number_and_time() -> None:
    replica = Replica()
    for number in range(4):
        replica.call(f"order-{number}")
    assert replica.executor.executed == 4
    assert replica.call("order-1").make_outcome().value == 2, "three are remembered"
    assert replica.call("order-0").make_outcome().value == 5, "the fourth is not"
    assert replica.call("late", now_s=10.0).make_outcome().value == 6
    assert replica.call("late", now_s=20.0).make_outcome().value == 6, "time passes with calls that are executed"
    replica.call(None, now_s=20.1, session=9)
    assert replica.call("late", now_s=20.1).make_outcome().value == 8, "it is older than ten seconds"


def test_a_retry_that_comes_while_the_first_call_waits_is_not_executed() -> None:
    replica = Replica()
    payloads = []
    for session in (1, 2):
        made = CallSession(describe_service(Orders), GROUPS, session).make("place_both", ("x",), {}, 0, GROUPS, "both")
        payloads.append(made.payload)
        replica.executor.deliver(replica.position, made.destinations, made.payload)
        replica.position += 1
    assert payloads[0] == payloads[1]
    assert len(replica.executor.owed) == 1
    assert "0 commands wait behind it" in replica.executor.describe_waiting()


def test_number_and_time_are_settings_of_the_class() -> None:
    class Short(Orders):
        remembered_keys = 0

    class Timeless(Orders):
        remembered_s = -1.0

    with pytest.raises(UsageError, match=r"Short.remembered_keys = 0; expected a number from 1 on"):
        describe_service(Short)
    with pytest.raises(UsageError, match=r"Timeless.remembered_s = -1.0; expected seconds above 0"):
        describe_service(Timeless)


def make_call(
    groups: OrderedGroups, now_ns: int, name: str, *arguments: object, to: tuple[str, ...] = (), key: str
) -> Call:
    made = CallSession(groups.description, ORDERED, 7).make(name, arguments, {}, now_ns, to or None, key)
    groups.multicast(made.destinations, made.payload)
    return made


def read_outcome(groups: OrderedGroups, call: Call) -> object:
    """What the caller gets, from the first replica of each group."""
    for group in call.destinations:
        result = groups.executors[group, 0].result(*call.command.id)
        assert result is not None, f"{group} has no result"
        call.results[group] = result
    return call.make_outcome().value


@pytest.mark.parametrize("seed", range(4))
def test_a_group_that_remembers_a_key_does_not_let_one_wait_that_has_forgotten_it(seed: int) -> None:
    groups = OrderedGroups(Orders, seed)
    both = ("north", "south")
    first = make_call(groups, 1, "place_both", "x", to=both, key="order-17")
    groups.settle()
    assert read_outcome(groups, first) == 0
    for number in range(3):
        make_call(groups, 2, "place", "x", 1, to=("north",), key=f"other-{number}")
    again = make_call(groups, 3, "place_both", "x", to=both, key="order-17")
    for _ in range(30):
        groups.step(faults=True)
    after = make_call(groups, 4, "place", "x", 1, to=("north",), key="last")
    groups.settle()
    with pytest.raises(CommandError, match="group south remembers an earlier call with this key"):
        read_outcome(groups, again)
    assert read_outcome(groups, after) == 5, "north goes on, and has not executed half of the call"
    assert {one.service.count for (group, _), one in groups.executors.items() if group == "south"} == {1}  # type: ignore[attr-defined]
    assert all(not one.owed for one in groups.executors.values())


def test_a_key_of_another_call_lets_no_group_wait() -> None:
    groups = OrderedGroups(Orders, 1)
    make_call(groups, 1, "place", "x", 1, to=("north",), key="order-17")
    wrong = make_call(groups, 2, "place_both", "x", to=("north", "south"), key="order-17")
    after = make_call(groups, 3, "place", "x", 1, to=("south",), key="order-18")
    groups.settle()
    assert read_outcome(groups, after) == 1
    with pytest.raises(UsageError, match="was used for another call"):
        read_outcome(groups, wrong)


def test_a_repeated_call_that_is_still_executed_is_one() -> None:
    groups = OrderedGroups(Orders, 1)
    both = ("north", "south")
    calls = [make_call(groups, 1 + number, "place_both", "x", to=both, key="order-17") for number in range(3)]
    groups.settle()
    assert [read_outcome(groups, call) for call in calls] == [0, 0, 0]
    assert {one.service.count for (group, _), one in groups.executors.items() if group in both} == {1}  # type: ignore[attr-defined]
