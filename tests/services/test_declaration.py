"""What a service may look like, and the sentences about those that cannot work."""

import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from socket import gethostname
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.services.calls import CallSession
from amcast.services.declaration import At, Key, Service, command, describe_service, query
from amcast.services.errors import ServiceFailedError
from amcast.services.executor import Executor
from amcast.services.fields import FieldCodec

GROUPS = ("north", "south")


class Notes(Service):
    """Every kind of field and argument."""

    size: int = 0

    def __init__(self, group: str) -> None:
        self.tags: dict[str, set[str]] = {}
        self.lines: list[tuple[int, str]] = []

    @command
    def write(self, at: At, key: Key, tags: list[str], more: list[Key] | None = None) -> int:
        self.tags[key] = set(tags)
        self.size += 1
        return self.size

    @query
    def read(self, key: Key) -> set[str]:
        return self.tags[key]


def test_keys_say_where_a_call_goes_and_groups_override_them() -> None:
    session = CallSession(describe_service(Notes), GROUPS, 1)
    owners = {key: Notes.partition(key, GROUPS) for key in "abcdefgh"}
    assert set(owners.values()) == set(GROUPS)
    call = session.make("write", ("a", []), {}, 0)
    assert call.destinations == (owners["a"],)
    far = next(key for key in owners if owners[key] != owners["a"])
    both = session.make("write", ("a", [], [far]), {}, 0)
    assert both.destinations == GROUPS
    assert both.owner == owners["a"]
    assert session.make("write", ("a", []), {}, 0, groups=["south"]).destinations == ("south",)
    with pytest.raises(UsageError, match=r"groups = \['east'\]; expected some of \['north', 'south'\]"):
        session.make("write", ("a", []), {}, 0, groups=["east"])


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("a",), r"write: missing a required argument: 'tags'; expected write\(key: amcast.Key, tags: list\[str\]"),
        ((7, []), r"write: key = 7: Expected `str`, got `int`; expected write\("),
        (("a", ["x", 3]), r"write: tags\[1\] = \['x', 3\]: Expected `str`, got `int`"),
        (("a", [], None, 4), "write: too many positional arguments"),
    ],
)
def test_wrong_arguments_are_named_before_anything_is_ordered(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        CallSession(describe_service(Notes), GROUPS, 1).make("write", arguments, {}, 0)


def test_an_argument_of_a_command_line_that_is_not_of_its_type_is_named() -> None:
    write = describe_service(Notes).find("write")
    assert write.parse(["ann", '["a"]']) == ["ann", ["a"]]
    with pytest.raises(UsageError, match=r"tags = 'much': not JSON, .*; expected write"):
        write.parse(["ann", "much"])
    with pytest.raises(UsageError, match="tags = '5': Expected `array`, got `int`; expected write"):
        write.parse(["ann", "5"])


def test_unknown_commands_are_named() -> None:
    with pytest.raises(UsageError, match=r"Notes.erase does not exist; expected one of: read, write"):
        describe_service(Notes).find("erase")


def test_a_snapshot_has_all_fields_and_equal_states_have_equal_bytes() -> None:
    one, other = Executor(Notes, "north", GROUPS), Executor(Notes, "north", GROUPS)
    tags = [f"tag-{number}" for number in range(50)]
    for executor, order in ((one, tags), (other, tags[::-1])):
        executor.service.tags["k"] = set(order)  # type: ignore[attr-defined]
        executor.service.size = 1  # type: ignore[attr-defined]
    assert one.snapshot() == other.snapshot()
    restored = Executor(Notes, "north", GROUPS)
    restored.restore(one.snapshot(), 0)
    assert vars(restored.service) == vars(one.service)


def test_a_field_without_annotation_is_refused_at_once() -> None:
    class Forgetful(Notes):
        def __init__(self, group: str) -> None:
            super().__init__(group)
            self.cache = {"a": 1}

    with pytest.raises(UsageError, match=r"Forgetful.cache has no annotation, and a snapshot would lose it"):
        Executor(Forgetful, "north", GROUPS)


def test_state_of_another_type_than_annotated_is_refused_at_restore() -> None:
    codec = FieldCodec(Notes, describe_service(Notes).fields)
    notes = Notes("north")
    notes.size = "many"  # type: ignore[assignment]
    with pytest.raises(ServiceFailedError, match=r"Notes.size: the state is not of the annotated type"):
        codec.decode(Notes("north"), *codec.encode(notes))


class Diary(Service):
    """Has its own snapshot."""

    def __init__(self, group: str) -> None:
        self.text = "empty"

    @command
    def write(self, at: At, text: str) -> None:
        self.text = text

    def snapshot(self) -> bytes:
        return self.text.encode()

    def restore(self, state: bytes) -> None:
        self.text = state.decode()


def test_a_service_may_have_its_own_snapshot() -> None:
    executor = Executor(Diary, "north", GROUPS)
    executor.service.text = "full"  # type: ignore[attr-defined]
    restored = Executor(Diary, "north", GROUPS)
    restored.restore(executor.snapshot(), 0)
    assert restored.service.text == "full"  # type: ignore[attr-defined]


def _read_clock(self: Any, at: At) -> float:
    return time.time()


def _draw(self: Any, at: At) -> float:
    return random.random()


def _loop_over_set(self: Any, at: At) -> list[str]:
    return [tag.upper() for tag in {"a", "b"}]


def _read_order(self: Any, at: At) -> list[str]:
    return list(set("ab"))


def _hash(self: Any, at: At) -> int:
    return hash("a")


def _hash_in_helper(self: Any, at: At, key: Key) -> int:
    return _place(key)


def _place(key: str) -> int:
    return hash(key) % 7


def _read_environment(self: Any, at: At) -> str:
    return os.environ["HOME"]


def _name_machine(self: Any, at: At) -> str:
    return gethostname()


def _read_file(self: Any, at: At) -> str:
    with open("rates.csv") as file:  # noqa: PTH123, the mistake
        return file.read()


def _write_file(self: Any, at: At) -> None:
    Path("log").write_text("done")


def _start_thread(self: Any, at: At) -> None:
    threading.Thread(target=print).start()


def _exit(self: Any, at: At) -> None:
    sys.exit(1)


def _count_globally(self: Any, at: At) -> int:
    global counted
    counted = 1
    return counted


def _loop_over_local_set(self: Any, at: At, keys: list[Key]) -> list[str]:
    unique = set(keys) - {""}
    return [key.upper() for key in unique]


def _join_set(self: Any, at: At, keys: list[Key]) -> str:
    return ",".join(frozenset(keys))


async def _wait(self: Any, at: At) -> int:
    return 1


def _without_at(self: Any, key: Key) -> int:
    return 1


def _without_type(self: Any, at: At, key) -> int:  # type: ignore[no-untyped-def]
    return 1


def _hide_key(self: Any, at: At, pairs: list[tuple[Key, int]]) -> int:
    return 1


@pytest.mark.parametrize(
    ("method", "sentence"),
    [
        (_read_clock, r"reads a clock \(time.time\); expected at.now"),
        (_draw, r"draws random numbers \(random.random\); expected at.random"),
        (_loop_over_set, "loops over the set"),
        (_read_order, "reads the order of a set"),
        (_hash, "calls hash, which differs between processes"),
        (_hash_in_helper, "calls _place, which calls hash, which differs between processes"),
        (_read_environment, r"depends on the machine \(os.environ\); expected arguments and state"),
        (_name_machine, r"depends on the machine \(gethostname\)"),
        (_read_file, r"reads or writes files \(open\)"),
        (_write_file, r"reads or writes files \(Path\('log'\).write_text\)"),
        (_start_thread, r"starts what runs beside the order \(threading.Thread\)"),
        (_exit, r"ends the program \(sys.exit\); expected an exception"),
        (_count_globally, "assigns the global counted, which is no state"),
        (_loop_over_local_set, "loops over the set unique, whose order differs"),
        (_join_set, r"reads the order of a set \(','.join\(frozenset\(keys\)\)\)"),
        (_wait, "is an `async def`; expected a plain method"),
        (_without_at, "the first argument is not `at`"),
        (_without_type, "argument key has no type"),
        (_hide_key, "argument pairs has keys inside of"),
    ],
)
def test_methods_that_cannot_work_are_refused(method: Callable[..., Any], sentence: str) -> None:
    service = type("Wrong", (Service,), {"run": command(method)})
    with pytest.raises(UsageError, match=rf"Wrong.run:? {sentence}"):
        describe_service(service)


def test_sets_are_used_where_their_order_does_not_matter() -> None:
    class Sound(Service):
        def __init__(self, group: str) -> None:
            self.tags: set[str] = set()

        @command
        def add(self, at: At, keys: list[Key]) -> list[str]:
            requests = [os.path.basename(key) for key in keys]  # noqa: PTH119, allowed
            unique = set(requests)
            self.tags.update(unique)
            if any(key in keys for key in self.tags) and sum(1 for key in unique) < len(self.tags - unique):
                return sorted(key for key in self.tags)
            short = {key[:1] for key in self.tags}
            return [key.lower() for key in sorted(short | unique)]

    assert describe_service(Sound).operations.keys() == {"add"}


def test_what_instances_would_share_or_not_begin_with_alike_is_refused() -> None:
    class Common(Service):
        accounts: dict[str, int] = {}  # noqa: RUF012, the mistake

        @command
        def add(self, at: At, key: Key) -> None:
            self.accounts[key] = 1

    class Dated(Service):
        def __init__(self, group: str) -> None:
            self.begun: float = time.time()

        @command
        def add(self, at: At, key: Key) -> None: ...

    with pytest.raises(
        UsageError, match=r"Common.accounts = \{\} .*; expected self.accounts: dict\[str, int\] = \{\} in"
    ):
        describe_service(Common)
    with pytest.raises(UsageError, match=r"Dated.__init__ reads a clock"):
        describe_service(Dated)


def test_the_digest_tells_services_apart() -> None:
    class Other(Notes):
        pass

    class Elsewhere(Notes):
        @classmethod
        def partition(cls, key: str, groups: Sequence[str]) -> str:
            return groups[-1]

    Elsewhere.__name__ = "Notes"
    assert describe_service(Notes).digest != describe_service(Other).digest
    assert describe_service(Notes).digest != describe_service(Elsewhere).digest
    assert describe_service(Notes).digest == describe_service(Notes).digest
