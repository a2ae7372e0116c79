"""The auditor: multicasts behind answers, where real-time order is promised."""

from collections import Counter
from dataclasses import replace
from typing import ClassVar

import pytest

from amcast.kernel.topology import Topology
from amcast.lab.fuzz_campaign import SwarmRuns
from amcast.lab.runs import make_judge
from amcast.parts.node.real_time_order import RealTimeOrder
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.schedulers import fuzz
from amcast.simulation.schedulers.fuzz import Fuzzer
from amcast.simulation.world.actions import AnyAction, Arrive, Multicast
from amcast.trace.recorder import Recorder

SHAPE = {
    "protocol": "skeen",
    "order": "real-time",
    "topology": {"groups": 3, "replicas": 1, "clients": 3},
    "workload": {"destinations": [1, 2], "messages": 12, "outstanding": 8},
    "faults": {"profile": "none"},
}


class ObservedFuzzer(Fuzzer):
    """Counts what is multicast just behind an answer, and what arrives on links that are held."""

    counts: ClassVar[Counter[str]] = Counter()

    def _audit(self, auditor: fuzz.Auditor, answered: tuple[int, ...]) -> None:
        before = len(self.script)
        super()._audit(auditor, answered)
        if answered and any(isinstance(action, Multicast) for action in self.script[before:]):
            self.counts["behind an answer"] += 1

    def _perform(self, action: AnyAction) -> None:
        if self._auditor is not None and self._auditor.held:
            self.counts["held"] += 1
            if isinstance(action, Arrive):
                pairs = {(source, action.target) for source, _ in action.packets}
                self.counts["arrived on a held link"] += bool(pairs & self._auditor.held)
        super()._perform(action)


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> Counter[str]:
    monkeypatch.setattr(ObservedFuzzer, "counts", Counter())
    return ObservedFuzzer.counts


def fuzz_seeds(values: dict[str, object], seeds: range) -> list[str]:
    runs = SwarmRuns(values)
    statuses = []
    for seed in seeds:
        fuzzer = ObservedFuzzer(runs.prepare(seed).make_case(), seed, Recorder())
        statuses.append(fuzzer.run(lambda world, recorder, complete: None).status)
    return statuses


def test_some_multicasts_follow_answers_at_once_and_nothing_arrives_on_held_links(counts: Counter[str]) -> None:
    assert set(fuzz_seeds(SHAPE, range(30))) == {"holds"}
    assert counts["behind an answer"] >= 10
    assert counts["held"] >= 1000
    assert counts["arrived on a held link"] == 0


def test_runs_without_the_promise_have_no_auditor(counts: Counter[str]) -> None:
    fuzz_seeds({**SHAPE, "order": "acyclic"}, range(3))
    assert not counts["held"]


def test_answers_that_come_too_early_break_real_time_order_in_some_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """The trace alone shows it, without monitors: some message overtakes what precedes an answered one."""

    def close_when_every_destination_has_delivered(self: RealTimeOrder) -> None:
        own = self._own
        while own.open:
            first = next(iter(own.open.values()))
            if any(first.id not in self._orders[group].open for group in first.destinations if group != self._home):
                return
            self._close_before(self._home, first.position + 1)

    monkeypatch.setattr(RealTimeOrder, "_advance", close_when_every_destination_has_delivered)
    stories = []
    for seed in range(40):
        prepared = SwarmRuns(SHAPE).prepare(seed)
        case = replace(prepared.make_case(), monitoring=None)
        stories.append(Fuzzer(case, seed, Recorder()).run(make_judge(prepared, seed)).story)
        if stories[-1].startswith("P9: "):
            return
    pytest.fail("no run of 40 breaks P9")


def test_load_draws_until_the_destinations_are_those_that_are_wanted() -> None:
    drawn = iter([((0, 1), 8, 0), ((2,), 8, 0), ((1,), 5, 0), ((0,), 8, 0)])
    load = ClientLoad(Topology.grid(3, 1, 1), lambda client: next(drawn), messages=2, outstanding=1)
    client = load.senders[0]
    message = load.next_message_to(client, (1,))
    assert (message.destinations, len(message.payload)) == ((1,), 5)
    assert load.remaining == 1
    assert load.in_flight[client] == 1


def test_load_takes_the_nearest_destinations_where_its_workload_has_no_others() -> None:
    load = ClientLoad(Topology.grid(3, 1, 1), lambda client: ((0, 1), 8, 0), messages=1, outstanding=1)
    assert load.next_message_to(load.senders[0], (1, 2)).destinations == (0, 1)
