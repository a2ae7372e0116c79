"""Members that change, with one remedy missing: the simulator finds it, and the product survives the same seed."""

from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from amcast.kernel.effects import Deliver, Effect
from amcast.kernel.ids import GroupId, ProcessId
from amcast.lab import runs
from amcast.parts.bodies.changing import ChangingConfig, Here
from amcast.parts.changing import Changing
from amcast.parts.instances import Instance
from amcast.parts.omega import Omega
from amcast.parts.seen import Seen
from amcast.parts.turning import REPORT, Turning
from amcast.parts.unsaid import Unsaid
from amcast.world import fuzz
from amcast.world.plan import plan_of, read_plan
from conformance.test_members import hold, planned

PLANS = Path(__file__).parents[2] / "plans"
OVERTAKING = "amnesia+recovery+partition+slow"
"""Faults that leave a member so far behind that it takes over a state from beyond the barrier, if little is kept."""


def test_a_state_from_beyond_the_barrier_is_noticed() -> None:
    for name, seed in (("primcast", 4), ("whitebox", 4)):
        simulation = hold(planned(name, seed, "several", OVERTAKING, options={"keep": 2}))
        assert simulation.world.noted.get("overtaken"), f"{name}, seed {seed} is too tame: nobody was overtaken"


def test_bodies_that_are_too_early_and_too_many_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(runs, "ChangingConfig", partial(ChangingConfig, held=1))
    overflows = 0
    for name in ("primcast", "multipaxos", "treecast"):
        for seed in range(2):
            overflows += hold(planned(name, seed, "several")).world.noted.get("overflow", 0)
    assert overflows > 0


def _tell_of_the_last_number_only(self: Turning, sender: ProcessId, number: int, group: GroupId) -> None:
    """As it was."""
    current = self.current
    if number == REPORT and current is not None:
        self.send(sender, self.turn())
    if current is not None and current.number > max(number, 0):
        self.send(sender, Here(current.begin, self._done) if group == self.home else self.turn())


def _as_searched(monkeypatch: pytest.MonkeyPatch) -> None:
    """The seeds were found before new leaders answered once more; with these packets they draw other schedules."""
    monkeypatch.setattr(Unsaid, "take", lambda self: [])


@pytest.mark.parametrize(("name", "seed"), [("treecast", 1760)])
def test_who_is_told_late_has_a_vote_in_every_number_that_still_runs(
    name: str, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A group passes several numbers before others have left the first of them, in which it has one member that
    crashed and one that was told late."""
    _as_searched(monkeypatch)
    values = {**read_plan(PLANS / "members.toml"), "protocol": name}
    prepared = runs.prepare(plan_of(values))
    outcome = runs.fuzz_one(prepared, seed)
    assert outcome.status == "holds", f"{outcome.story}: amcast fuzz --plan plans/members.toml -p {name} --seeds {seed}"
    monkeypatch.setattr(fuzz, "SETTLE_STEPS", 12_000)
    monkeypatch.setattr(Turning, "_answer", _tell_of_the_last_number_only)
    assert runs.fuzz_one(prepared, seed).status == "stuck"


def test_an_old_number_is_led_by_somebody_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's leader came later, and the first of those that stayed has crashed."""
    _as_searched(monkeypatch)
    prepared = runs.prepare(plan_of({**read_plan(PLANS / "members.toml"), "protocol": "treecast"}))
    outcome = runs.fuzz_one(prepared, 1945)
    assert outcome.status == "holds", f"{outcome.story}: amcast fuzz --plan plans/members.toml -p treecast --seeds 1945"
    monkeypatch.setattr(fuzz, "SETTLE_STEPS", 12_000)
    monkeypatch.setattr(Omega, "trusts", lambda self, member: True)
    assert runs.fuzz_one(prepared, 1945).status == "stuck"


Plant = Callable[[pytest.MonkeyPatch], None]


def _deliver_after_the_barrier(patch: pytest.MonkeyPatch) -> None:
    right = Changing._hand

    def wrong(self: Changing, instance: Instance, effect: Deliver, later: list[Effect]) -> None:
        if instance is not self._instances[-1]:
            self._outbox.append(Deliver(effect.message, self.position))
            self.position += 1
        else:
            right(self, instance, effect, later)

    patch.setattr(Changing, "_hand", wrong)


def _forget_what_was_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seen, "merge", lambda self, state: None)


def _count_what_was_discarded_as_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Seen, "forget", lambda self, message: None)


def _ask_nobody_whether_it_was_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changing, "_fresh", lambda self, message: True)


def _leave_the_old_instance_at_once(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Turning) -> None:
        del self._instances[:-1]

    patch.setattr(Turning, "_drop_old", wrong)


def _miss_that_the_barrier_was_overtaken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Changing, "_look_ahead", lambda self, instance, effects: None)


def _begin_what_was_forgotten_as_if_for_the_first_time(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Turning, "_forgotten", lambda self, number, topology: 0)


@pytest.mark.parametrize(
    ("name", "faults", "first", "plant"),
    [
        ("primcast", "none", 0, _deliver_after_the_barrier),
        ("treecast", "none", 0, _forget_what_was_delivered),
        ("whitebox", "none", 0, _count_what_was_discarded_as_delivered),
        ("treecast", "none", 0, _ask_nobody_whether_it_was_delivered),
        ("skeen", "none", 0, _leave_the_old_instance_at_once),
        ("primcast", OVERTAKING, 4, _miss_that_the_barrier_was_overtaken),
        ("whitebox", "amnesia+leaders", 0, _begin_what_was_forgotten_as_if_for_the_first_time),
    ],
)
def test_a_mutant_is_caught(name: str, faults: str, first: int, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"keep": 2} if faults == OVERTAKING else {}
    for seed in range(first, first + 6):
        plant(monkeypatch)
        try:
            hold(planned(name, seed, "several", faults, options=options))
        except AssertionError:
            monkeypatch.undo()
            hold(planned(name, seed, "several", faults, options=options))
            return
    pytest.fail(f"{plant.__name__} of {name}: 6 seeds found nothing wrong")
