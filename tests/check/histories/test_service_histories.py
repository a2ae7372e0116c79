"""Histories of services in the simulator are strictly serializable; those of a mutant are not."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import msgspec
import pytest

from amcast.check.histories.history import HistoryLine, pair_lines
from amcast.check.histories.list_append import check_list_append
from amcast.check.histories.report import HistoryReport
from amcast.lab.service_search import ServiceSearch
from amcast.parts.node.read_index import ReadIndex
from amcast.services.declaration import At, Key, Service, command, query
from amcast.simulation.services.fuzzer import ServiceFuzzer
from amcast.simulation.services.run import SimulatedClient, SimulatedCluster

KEYS = ("a", "b", "c", "d")


class Lists(Service):
    """Lists that are appended to and read, two at a time."""

    def __init__(self, group: str) -> None:
        self.lists: dict[str, list[int]] = {}

    @command
    def append(self, at: At, one: Key, other: Key, element: int) -> None:
        for key in (one, other):
            if at.owns(key):
                self.lists.setdefault(key, []).append(element)

    @query
    def read(self, one: Key, other: Key) -> dict[str, list[int]]:
        return {key: self.lists[key] for key in (one, other) if key in self.lists}


class LateLists(Lists):
    """A mutant: its reads lack the last element, now and then."""

    @query
    def read(self, one: Key, other: Key) -> dict[str, list[int]]:
        lists = super().read(one, other)
        return {key: elements[: len(elements) - len(elements) % 2] for key, elements in lists.items()}


def judge_seeds(service: type[Service], seeds: range, calls: int = 6, single: bool = False) -> list[HistoryReport]:
    """`single`: reads are of one list, and so of one group, which answers them without ordering."""

    async def call(client: SimulatedClient) -> None:
        stub = client.service(service)
        for number in range(calls):
            one, other = client.random.sample(KEYS, 2)
            if client.random.random() < 0.5:
                await stub.append(one, other, 100 * client.number + number)
            else:
                await stub.read(one, one if single else other)

    async def main(cluster: SimulatedCluster) -> None:
        await cluster.gather(*(call(client) for client in cluster.clients))

    reports = []
    for seed in seeds:
        prepared = ServiceSearch(main).prepare(seed)
        case = replace(prepared.make_case(), monitoring=None, storage=False, is_audited=False)
        fuzzer = ServiceFuzzer(case, seed, main, 3, ())
        assert fuzzer.search().status == "holds"
        lines = [_translate(line) for line in fuzzer.services.history]
        reports.append(check_list_append(pair_lines([msgspec.convert(line, HistoryLine) for line in lines])))
    return reports


_given: dict[int, list[Any]] = {}


def _translate(line: Mapping[str, Any]) -> dict[str, Any]:
    """A line of a simulated run as one of list-append."""
    if line["type"] == "invoke":
        _given[line["process"]] = line["value"]
    keys = list(dict.fromkeys(_given[line["process"]][:2]))
    if line["f"] == "append":
        steps = [["append", key, _given[line["process"]][2]] for key in keys]
    else:
        groups = line["value"].values() if line["type"] == "ok" else ()
        found = {key: elements for lists in groups for key, elements in lists.items()}
        steps = [["r", key, found.get(key, [])] for key in keys]
    return {**line, "f": "txn", "value": steps}


def test_services_are_strictly_serializable_under_faults() -> None:
    reports = judge_seeds(Lists, range(8))
    assert [report.story for report in reports if report.verdict == "violated"] == []
    assert sum(report.verdict == "holds" for report in reports) >= 6


def test_a_service_with_late_reads_is_found() -> None:
    stories = [report.story for report in judge_seeds(LateLists, range(4)) if report.verdict == "violated"]
    assert stories
    assert any("come before the next" in story[0] for story in stories)


def test_reads_without_ordering_are_strictly_serializable_under_faults() -> None:
    reports = judge_seeds(Lists, range(12), calls=8, single=True)
    assert [report.story for report in reports if report.verdict == "violated"] == []
    assert sum(report.verdict == "holds" for report in reports) >= 9


Confirm = Callable[[ReadIndex, tuple[int, ...], int, int], None]
confirm = ReadIndex._confirm


def trust_a_leader(self: ReadIndex, members: tuple[int, ...], quorum: int, configuration: int) -> None:
    """Whoever takes itself for the leader asks nobody: it may have been deposed."""
    confirm(self, members, 1 if self._owner.is_leader else quorum, configuration)


def forget_what_is_on_its_way(self: ReadIndex, members: tuple[int, ...], quorum: int, configuration: int) -> None:
    """A majority has accepted more than it has delivered, and somebody else may have been answered for that."""
    confirm(self, members, quorum, configuration)
    for confirmed in self._confirmed:
        confirmed.messages.clear()


SEEDS = 300


@pytest.mark.parametrize(("mutant", "first"), [(trust_a_leader, 96), (forget_what_is_on_its_way, 8)])
def test_reads_without_a_safeguard_are_found(monkeypatch: pytest.MonkeyPatch, mutant: Confirm, first: int) -> None:
    """`first` is a seed that finds it soon; others do as well."""
    monkeypatch.setattr(ReadIndex, "_confirm", mutant)
    for seed in (*range(first, SEEDS), *range(first)):
        (report,) = judge_seeds(Lists, range(seed, seed + 1), calls=8, single=True)
        if report.verdict == "violated":
            monkeypatch.undo()
            (report,) = judge_seeds(Lists, range(seed, seed + 1), calls=8, single=True)
            assert report.verdict == "holds", "the mutant is at fault"
            return
    raise AssertionError(f"no seed below {SEEDS} finds a history that is not strictly serializable")
