"""Every position ends up in the trace of a member that delivered it, whatever the schedule of kills.

A trace is written before a log is truncated, not after each delivery. That is enough only if a process installs nothing
but states that the logs of others have truncated as well: all processes may be killed right after, and a delivery that
no log repeats is then in no trace.
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


def test_transferred_state_is_the_one_its_sender_would_restart_from(monkeypatch: pytest.MonkeyPatch) -> None:
    """Process 5 missed rounds, is cut off from the other group, installs a state of its own group, takes a checkpoint
    before the other members take their next one. Then its group is killed, and it sends its state to the others."""
    monkeypatch.setattr(stages, "World", TracedWorld)
    keep = 12
    stage = Stage("a-ng", options={"keep": keep, "retry_ns": [40_000_000, 60_000_000]})
    world = stage.world
    assert isinstance(world, TracedWorld)

    def log(process: int) -> Any:
        return stage.protocol(process)._paxos.log

    def multicast_until(reached: Callable[[], bool]) -> None:
        for number in range(400):
            if reached():
                return
            stage.multicast(number % 2, 0, 1)
            stage.steps(40)
        raise AssertionError("the condition was not reached")

    multicast_until(lambda: log(3).decided_until >= keep // 2)
    stage.crash(5)
    multicast_until(lambda: log(3).decided_until >= log(3).checkpoint_end + keep // 2 > keep)
    stage.apply(Block(tuple(pair for other in (0, 1, 2) for pair in ((other, 5), (5, other)))))
    stage.recover(5)
    multicast_until(lambda: log(5).checkpoint_end > 0)
    assert world.note_counts["handed"] > 0, "no member sent its state"
    assert log(5).checkpoint_end > log(3).checkpoint_end, "the other members took a checkpoint before"
    stage.steps(4)
    stage.crash(3, 4, 5)
    stage.heal()
    stage.recover(5, 3, 4)
    stage.multicast(0, 0, 1)
    stage.finish()
    stage.check()
    assert world.note_counts["transferred"] > 0, "it sent no state"
    assert world.list_lost_positions(1) == []


class KillingFuzzer(Fuzzer):
    """Kills all members of a group, or all processes, at random steps."""

    def __init__(self, case: fuzz.FuzzCase, seed: int) -> None:
        super().__init__(case, seed, Recorder())
        self._kill_random = Random(seed)
        self._returning: list[tuple[int, int]] = []
        """Step and process of each restart to come."""
        self._rate = self._kill_random.choice((0.002, 0.01))
        self.style = replace(self.style, fault_steps=1500, fault_rate=self._kill_random.choice((0, 0.005, 0.02)))

    def _inject_faults(self) -> None:
        super()._inject_faults()
        self._restart_due(self.world.steps)
        if not self._returning and self._kill_random.random() < self._rate:
            groups = self.world.topology.groups
            for group in self._kill_random.choice([*((one,) for one in groups), groups]):
                self._kill(self.world.topology.members(group))

    def _kill(self, members: tuple[int, ...]) -> None:
        for member in members:
            if member in self.world.processes:
                records = sum(type(effect) is Persist for effect in self.world.disks[member].waiting)
                self.world.crash(member, self._kill_random.randint(0, records))
                self._returning.append((self.world.steps + self._kill_random.randint(1, 60), member))

    def _restart_due(self, step: int) -> None:
        for due in [due for due in self._returning if due[0] <= step]:
            self._returning.remove(due)
            if due[1] in self.world.down and due[1] not in self.world.absent:
                self.world.recover(due[1])

    def _heal(self) -> None:
        self._restart_due(self.world.steps + 60)
        super()._heal()


def run_with_kills(name: str, seed: int, keep: int) -> list[int]:
    """Positions that are in no trace after a run with changes of membership and kills of whole groups."""
    values = {**read_plan(PLANS / "members.toml"), "protocol": name, "options": {"keep": keep}}
    values["workload"] = {**values["workload"], "messages": 60}
    values["faults"] = {**values["faults"], "profile": "recovery+leaders+links+slow"}
    prepared = runs.prepare_run(parse_plan(values))
    fuzzer = KillingFuzzer(prepared.make_case(), seed)
    outcome = fuzzer.run(runs.make_judge(prepared, seed))
    assert outcome.status == "holds", f"{name}, seed {seed}: {outcome.story}"
    world = fuzzer.world
    assert isinstance(world, TracedWorld)
    return [position for group in world.topology.groups for position in world.list_lost_positions(group)]


class UnorderedRecords(TracedWorld):
    """A mutant: records do not wait for earlier deliveries."""

    def _queue_or_execute(self, process: ProcessId, effect: Effect) -> None:
        super()._queue_or_execute(
            process, Persist(effect.record, effect.replaces) if type(effect) is Persist else effect
        )


@pytest.mark.parametrize(("name", "seed"), [("basecast", 4), ("basecast", 6)])
def test_deliveries_before_a_reconfiguration_are_traced(name: str, seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A new incarnation starts at the new configuration: when its record is durable, earlier deliveries must have left
    the process, and the trace must be on the disk."""
    monkeypatch.setattr(fuzz, "World", TracedWorld)
    assert run_with_kills(name, seed, 20) == []
    monkeypatch.setattr(fuzz, "World", UnorderedRecords)
    assert run_with_kills(name, seed, 20) != [], f"seed {seed} does not catch the mutant"
