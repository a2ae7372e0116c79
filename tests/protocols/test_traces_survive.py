"""Whoever is killed when: every position ends up in the trace of a member that delivered it.

A trace is written before a log forgets what was delivered, and not after each delivery. That is enough only if a
process takes over from others, and keeps in its place, nothing but what their logs have forgotten as well: everybody
may be killed in the next moment, and what nobody's log tells again is then nowhere.
"""

from collections.abc import Callable
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from amcast.kernel.effects import Effect, Persist
from amcast.kernel.ids import ProcessId
from amcast.lab import runs
from amcast.simulation.inputs.plan import parse_plan, read_plan
from amcast.simulation.schedulers import fuzz
from amcast.simulation.schedulers.fuzz import Fuzzer
from amcast.simulation.world.actions import Block
from amcast.trace.recorder import Recorder
from tests import ROOT
from tests.protocols import stage as stages
from tests.protocols.stage import Stage
from tests.protocols.traced_world import TracedWorld

PLANS = ROOT / "plans"


def test_a_state_that_is_handed_over_is_one_that_its_giver_would_come_back_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 5 missed rounds, hears nobody of the other group, is helped by its fellows, and takes a snapshot before
    they take their next one. Then its group is killed, and it teaches its fellows what they delivered."""
    monkeypatch.setattr(stages, "World", TracedWorld)
    keep = 12
    stage = Stage("a-ng", options={"keep": keep, "retry_ns": [40_000_000, 60_000_000]})
    world = stage.world
    assert isinstance(world, TracedWorld)

    def log(process: int) -> Any:
        return stage.protocol(process)._paxos.log

    def talk(until: Callable[[], bool]) -> None:
        for number in range(400):
            if until():
                return
            stage.multicast(number % 2, 0, 1)
            stage.steps(40)
        raise AssertionError("it never came to that")

    talk(lambda: log(3).decided_until >= keep // 2)
    stage.crash(5)
    talk(lambda: log(3).decided_until >= log(3).checkpoint_end + keep // 2 > keep)
    stage.apply(Block(tuple(pair for other in (0, 1, 2) for pair in ((other, 5), (5, other)))))
    stage.recover(5)
    talk(lambda: log(5).checkpoint_end > 0)
    assert world.note_counts["handed"] > 0, "nobody helped it"
    assert log(5).checkpoint_end > log(3).checkpoint_end, "its fellows were faster"
    stage.steps(4)
    stage.crash(3, 4, 5)
    stage.heal()
    stage.recover(5, 3, 4)
    stage.multicast(0, 0, 1)
    stage.finish()
    stage.check()
    assert world.note_counts["transferred"] > 0, "it taught them nothing"
    assert world.lost(1) == []


class Killer(Fuzzer):
    """Now and then all members of a group, or everybody, are killed at once."""

    def __init__(self, case: fuzz.FuzzCase, seed: int) -> None:
        super().__init__(case, seed, Recorder())
        self._whom = Random(seed)
        self._returning: list[tuple[int, int]] = []
        """When, and who."""
        self._rate = self._whom.choice((0.002, 0.01))
        self.style = replace(self.style, fault_steps=1500, fault_rate=self._whom.choice((0, 0.005, 0.02)))

    def _disturb(self) -> None:
        super()._disturb()
        self._return(self.world.steps)
        if not self._returning and self._whom.random() < self._rate:
            groups = self.world.topology.groups
            for group in self._whom.choice([*((one,) for one in groups), groups]):
                self._kill(self.world.topology.members(group))

    def _kill(self, members: tuple[int, ...]) -> None:
        for member in members:
            if member in self.world.processes:
                records = sum(type(effect) is Persist for effect in self.world.disks[member].waiting)
                self.world.crash(member, self._whom.randint(0, records))
                self._returning.append((self.world.steps + self._whom.randint(1, 60), member))

    def _return(self, step: int) -> None:
        for due in [due for due in self._returning if due[0] <= step]:
            self._returning.remove(due)
            if due[1] in self.world.down and due[1] not in self.world.absent:
                self.world.recover(due[1])

    def _heal(self) -> None:
        self._return(self.world.steps + 60)
        super()._heal()


def killed(name: str, seed: int, keep: int) -> list[int]:
    """Positions that are in nobody's trace, after a run in which members change and everybody is killed."""
    values = {**read_plan(PLANS / "members.toml"), "protocol": name, "options": {"keep": keep}}
    values["workload"] = {**values["workload"], "messages": 60}
    values["faults"] = {**values["faults"], "profile": "recovery+leaders+links+slow"}
    prepared = runs.prepare_run(parse_plan(values))
    killer = Killer(prepared.make_case(), seed)
    outcome = killer.run(runs.make_judge(prepared, seed))
    assert outcome.status == "holds", f"{name}, seed {seed}: {outcome.story}"
    world = killer.world
    assert isinstance(world, TracedWorld)
    return [position for group in world.topology.groups for position in world.lost(group)]


class Careless(TracedWorld):
    """A mutant: records wait for nothing."""

    def _admit(self, process: ProcessId, effect: Effect) -> None:
        super()._admit(process, Persist(effect.record, effect.replaces) if type(effect) is Persist else effect)


@pytest.mark.parametrize(("name", "seed"), [("basecast", 3), ("basecast", 11)])
def test_what_is_delivered_before_members_change_is_in_a_trace(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A new incarnation begins where the new number does: deliveries before that must have left the process, and the
    trace must be on the disk, when the number's record is."""
    monkeypatch.setattr(fuzz, "World", TracedWorld)
    assert killed(name, seed, 20) == []
    monkeypatch.setattr(fuzz, "World", Careless)
    assert killed(name, seed, 20) != [], f"seed {seed} is too tame"
