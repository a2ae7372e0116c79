"""Calls with a key in the simulator: once, whoever makes them, under all faults."""

from collections.abc import Generator, Mapping

import pytest

from amcast.lab.service_search import ServiceSearch
from amcast.services.declaration import At, Key, Service, command
from amcast.services.executor import Executor
from amcast.simulation.services.drawn_calls import make_client_load
from amcast.simulation.services.run import SimulatedClient


class Tally(Service):
    """Counts by name."""

    def __init__(self, group: str) -> None:
        self.counts: dict[str, int] = {}

    @command
    def add(self, at: At, one: Key, other: Key) -> Generator[bool, dict[str, bool], None]:
        yield True
        for key in (one, other):
            if at.owns(key):
                self.counts[key] = self.counts.get(key, 0) + 1


async def add_twice(client: SimulatedClient) -> None:
    """Every call is made by two runs of a program, which know its key."""
    for number in range(3):
        keys = (f"{client.number}-{number}-a", f"{client.number}-{number}-b")
        await client.service(Tally).add(*keys, call_key=f"call-{client.number}-{number}")
        await client.service(Tally).add(*keys, call_key=f"call-{client.number}-{number}")


def counts_are_one(services: Mapping[str, Tally]) -> str | None:
    wrong = {key: count for tally in services.values() for key, count in tally.counts.items() if count != 1}
    return f"{wrong} were not executed once" if wrong else None


def test_calls_with_a_key_are_executed_once_under_faults() -> None:
    search = ServiceSearch(make_client_load(add_twice), [counts_are_one])
    assert [outcome.story for outcome in search.run(range(8)) if outcome.status != "holds"] == []


def test_a_snapshot_without_keys_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = Executor.snapshot

    def forget_keys(self: Executor) -> bytes:
        keyed, self._keyed = self._keyed, {}
        try:
            return snapshot(self)
        finally:
            self._keyed = keyed

    monkeypatch.setattr(Executor, "snapshot", forget_keys)
    search = ServiceSearch(make_client_load(add_twice), [counts_are_one])
    assert search.run(range(30))[-1].status == "violated"
