"""Partitioners: who owns a key, and what a cluster compares of it."""

from collections.abc import Sequence

import pytest

from amcast.kernel.errors import UsageError
from amcast.services.calls import CallSession
from amcast.services.declaration import At, Key, Service, command, describe_service
from amcast.services.executor import Executor
from amcast.services.messages import encode_payload
from amcast.services.partitioner import apply_partitioner

GROUPS = ("north", "south")
HERE = "tests.services.test_partitioner"


class Notes(Service):
    """Keeps texts."""

    def __init__(self, group: str) -> None:
        self.texts: dict[str, str] = {}

    @command
    def write(self, at: At, key: Key, text: str) -> bool:
        self.texts[key] = text
        return at.owns(key)


class OwnNotes(Notes):
    """Places its keys itself."""

    @classmethod
    def partition(cls, key: str, groups: Sequence[str]) -> str:
        return groups[0]


def by_prefix(key: str, groups: Sequence[str]) -> str:
    return key.partition(":")[0]


def by_length(key: str, groups: Sequence[str]) -> str:
    return groups[len(key) % len(groups)]


def test_keys_go_where_the_partitioner_of_the_cluster_says() -> None:
    description = apply_partitioner(describe_service(Notes), f"{HERE}:by_prefix", GROUPS)
    session = CallSession(description, GROUPS, 1)
    for group in GROUPS:
        for number in range(5):
            call = session.make("write", (f"{group}:{number}", "x"), {}, 0)
            assert call.destinations == (group,)
            executor = Executor(description, group, GROUPS)
            executor.deliver(0, call.destinations, encode_payload(call.command))
            result = executor.result(1, call.request)
            assert result is not None
            call.results[group] = result
            assert call.make_outcome().value is True, "at.owns agrees with the caller"


def test_services_with_different_partitioners_have_different_digests() -> None:
    plain = describe_service(Notes)
    digests = [
        apply_partitioner(plain, reference, groups).digest
        for reference in ("hash", f"{HERE}:by_prefix", f"{HERE}:by_length")
        for groups in (GROUPS, ("east", "west", "south"))
    ]
    assert digests[0] == digests[1] == plain.digest
    assert len(set(digests)) == 5, "where keys are placed among these groups counts as well"


def test_a_call_of_a_caller_with_another_partitioner_is_refused() -> None:
    there = apply_partitioner(describe_service(Notes), f"{HERE}:by_prefix", GROUPS)
    call = CallSession(describe_service(Notes), GROUPS, 1).make("write", ("north:1", "x"), {}, 0)
    executor = Executor(there, call.owner, GROUPS)
    executor.deliver(0, call.destinations, encode_payload(call.command))
    result = executor.result(1, 1)
    assert result is not None
    assert "the same class on both sides" in result.outcome.text  # type: ignore[union-attr]


@pytest.mark.parametrize(
    ("key", "sentence"),
    [
        ("mars:1", r"key 'mars:1': the partitioner gave 'mars'; expected one of \['north', 'south'\]"),
        ("", r"key '': the partitioner gave ''; expected one of"),
    ],
)
def test_a_key_that_no_group_owns_is_the_callers_error(key: str, sentence: str) -> None:
    description = apply_partitioner(describe_service(Notes), f"{HERE}:by_prefix", GROUPS)
    with pytest.raises(UsageError, match=sentence):
        CallSession(description, GROUPS, 1).make("write", (key, "x"), {}, 0)


@pytest.mark.parametrize(
    ("service", "reference", "sentence"),
    [
        (OwnNotes, f"{HERE}:by_prefix", "OwnNotes places its keys itself; expected 'hash' in cluster.toml"),
        (Notes, "by_prefix", "expected MODULE:NAME"),
        (Notes, f"{HERE}:GROUPS", r"expected a function \(key, groups\) that returns a group"),
        (Notes, f"{HERE}:by_nothing", "has no by_nothing; expected a name that it defines"),
    ],
)
def test_partitioners_that_cannot_be_used_are_refused(service: type[Service], reference: str, sentence: str) -> None:
    with pytest.raises(UsageError, match=sentence):
        apply_partitioner(describe_service(service), reference, GROUPS)
