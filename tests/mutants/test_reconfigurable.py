"""Members that change, with one remedy missing: the simulator finds it, and the product survives the same run."""

from collections.abc import Callable
from functools import partial

import pytest

from amcast import assembly
from amcast.kernel.effects import Deliver, Effect
from amcast.kernel.ids import GroupId, ProcessId
from amcast.lab import runs
from amcast.parts.membership.configuration import ConfigurationInstance
from amcast.parts.membership.messages import ConfigurationInfo, ReconfigurableConfig
from amcast.parts.membership.reconfigurable import Reconfigurable
from amcast.parts.membership.turning import REPORT, Turning
from amcast.parts.node.leader_oracle import Omega
from amcast.parts.node.node import Node
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.simulation.inputs.plan import plan_of
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from tests.conformance.test_members import MS, hold, planned

OVERTAKING = "amnesia+recovery+partition+slow"
"""Faults that leave a member so far behind that it takes over a state from beyond the barrier, if little is kept."""


@pytest.mark.parametrize("name", ["primcast", "whitebox"])
def test_a_state_from_beyond_the_barrier_is_noticed(name: str) -> None:
    for seed in range(24):
        simulation = hold(planned(name, seed, "several", OVERTAKING, options={"keep": 2}))
        if simulation.world.noted.get("overtaken"):
            return
    pytest.fail(f"{name}: 24 seeds are too tame: nobody was overtaken")


def test_bodies_that_are_too_early_and_too_many_are_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assembly, "ReconfigurableConfig", partial(ReconfigurableConfig, max_early_bodies=1))
    overflows = 0
    for name in ("primcast", "multipaxos", "treecast"):
        for seed in range(2):
            overflows += hold(planned(name, seed, "several")).world.noted.get("overflow", 0)
    assert overflows > 0


def _tell_of_the_last_number_only(self: Turning, sender: ProcessId, number: int, group: GroupId) -> None:
    """As it was."""
    current = self.current
    if number == REPORT and current is not None:
        self.send(sender, self.make_announcement())
    if current is not None and current.configuration > max(number, 0):
        self.send(
            sender, ConfigurationInfo(current.start, self._done) if group == self.home else self.make_announcement()
        )


ROOT, OTHERS = (0, 1, 2), (3, 4, 5, 6, 7, 8)
Event = tuple[int, dict[str, object]]
"""At which millisecond, and what happens."""


def _played(*events: Event) -> Simulation:
    """TreeCast, whose root runs ahead of the other groups when it is cut off from them, to the end."""
    values = {
        "protocol": "treecast",
        "topology": {"groups": 3, "replicas": 3, "clients": 3},
        "workload": {"messages": 24, "outstanding": 2, "destinations": [1, 3]},
        "nodes": True,
        "faults": {"events": [{"at_ns": at * MS, **event} for at, event in events]},
    }
    simulation = Simulation(runs.prepare(plan_of(values)).setup(), Recorder(), remembers=True)
    simulation.run()
    return simulation


def _cut(some: tuple[int, ...], others: tuple[int, ...]) -> list[tuple[int, int]]:
    return [pair for one in some for other in others for pair in ((one, other), (other, one))]


def _delivered(simulation: Simulation) -> bool:
    world = simulation.world
    assert not world.violations, world.violations
    return not world.owed() and simulation.load.left == 0


def _roles(simulation: Simulation, number: int) -> dict[ProcessId, object]:
    """What the members of the root do in an instance."""
    found = {}
    for process in (*ROOT, 20):
        node = simulation.world.processes.get(process)
        for instance in node.protocol._instances if isinstance(node, Node) else ():  # type: ignore[attr-defined]
            if instance.number == number and instance.process is not None:
                found[process] = instance.process.status()["role"]
    return found


TOLD_LATE: tuple[Event, ...] = (
    (5, {"do": "block", "pairs": [*_cut(ROOT, OTHERS), *_cut((20,), ROOT + OTHERS)]}),
    (10, {"do": "change", "group": 0, "add": 20}),
    (40, {"do": "change", "group": 1, "add": 21}),
    (100, {"do": "crash", "process": 0}),
    (200, {"do": "heal"}),
)
"""The root passes two numbers alone. What its leader said in them dies with it. Another can lead the second of them
only with the vote of the newcomer, who is told of both at once, long after the others."""


def test_who_is_told_late_has_a_vote_in_every_number_that_still_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _delivered(_played(*TOLD_LATE)), f"amcast simulate --plan with these events: {TOLD_LATE}"
    monkeypatch.setattr(Turning, "_answer", _tell_of_the_last_number_only)
    stuck = _played(*TOLD_LATE)
    assert not _delivered(stuck)
    assert _roles(stuck, 1) == {1: "preparing", 2: "follower"}, "20 should lack in number 1"
    assert set(_roles(stuck, 2)) == {1, 2, 20}


LED_BY_A_NEWCOMER: tuple[Event, ...] = (
    (2, {"do": "crash", "process": 0}),
    (40, {"do": "recover", "process": 0}),
    (80, {"do": "block", "pairs": _cut((*ROOT, 20), OTHERS)}),
    (85, {"do": "change", "group": 0, "add": 20}),
    (110, {"do": "change", "group": 0, "remove": 0}),
    (150, {"do": "crash", "process": 2}),
    (190, {"do": "recover", "process": 2}),
    (230, {"do": "crash", "process": 1}),
    (300, {"do": "heal"}),
)
"""Process 1 leads the root, which passes two numbers alone, and dies with what it said in them. The newcomer has run
longer than process 2 and leads, but it is no member in the number in which the other groups are."""


def test_an_old_number_is_led_by_somebody_who_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's leader came later, and the first of those that stayed has crashed."""
    assert _delivered(_played(*LED_BY_A_NEWCOMER)), f"amcast simulate --plan with these events: {LED_BY_A_NEWCOMER}"
    monkeypatch.setattr(Omega, "trusts", lambda self, member: True)
    stuck = _played(*LED_BY_A_NEWCOMER)
    assert not _delivered(stuck)
    assert _roles(stuck, 0) == {0: "follower", 2: "follower"}, "nobody should lead number 0"
    assert _roles(stuck, 2)[20] == "leading"


def _wait_for_majorities_of_the_next_number(self: Turning) -> None:
    """As it was."""
    while len(self._instances) > 1:
        old = self._instances[0].configuration
        if old >= self._done and not self._passed(old, self._instances[1].topology):
            return
        self._done = max(self._done, old + 1)
        del self._instances[0]
    current = self.current
    if current is not None and current.process is None:
        self._retire(current.configuration)


LEFT_UNHEARD: tuple[Event, ...] = (
    (2, {"do": "crash", "process": 5}),
    (5, {"do": "block", "pairs": [(4, other) for other in (0, 1, 2, 6, 7, 8, 20)]}),
    (10, {"do": "change", "group": 0, "add": 20}),
    (40, {"do": "change", "group": 0, "remove": 0}),
    (80, {"do": "change", "group": 1, "add": 21}),
    (120, {"do": "change", "group": 1, "remove": 4}),
    (300, {"do": "heal"}),
)
"""Process 4 makes the majority of its group in the first numbers, and leaves; what it told the other groups is lost."""


def test_an_old_number_ends_although_who_passed_it_left_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    done = _played(*LEFT_UNHEARD)
    assert _delivered(done), f"amcast simulate --plan with these events: {LEFT_UNHEARD}"
    assert sorted(done.world.absent) == [0, 4], "who was removed is still there"
    monkeypatch.setattr(Turning, "_drop_old", _wait_for_majorities_of_the_next_number)
    stuck = _played(*LEFT_UNHEARD)
    assert sorted(stuck.world.absent) == [4]
    assert len(_roles(stuck, 1)) > 0, "number 1 should go on for ever"


Plant = Callable[[pytest.MonkeyPatch], None]


def _deliver_after_the_barrier(patch: pytest.MonkeyPatch) -> None:
    right = Reconfigurable._hand

    def wrong(self: Reconfigurable, instance: ConfigurationInstance, effect: Deliver, later: list[Effect]) -> None:
        if instance is not self._instances[-1]:
            self._outbox.append(Deliver(effect.message, self.position))
            self.position += 1
        else:
            right(self, instance, effect, later)

    patch.setattr(Reconfigurable, "_hand", wrong)


def _forget_what_was_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveredSet, "merge", lambda self, state: None)


def _count_what_was_discarded_as_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveredSet, "forget", lambda self, message: None)


def _ask_nobody_whether_it_was_delivered(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconfigurable, "_fresh", lambda self, message: True)


def _leave_the_old_instance_at_once(patch: pytest.MonkeyPatch) -> None:
    def wrong(self: Turning) -> None:
        del self._instances[:-1]

    patch.setattr(Turning, "_drop_old", wrong)


def _miss_that_the_barrier_was_overtaken(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconfigurable, "_look_ahead", lambda self, instance, effects: None)


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
        ("primcast", OVERTAKING, 303, _miss_that_the_barrier_was_overtaken),
        ("whitebox", "amnesia+leaders", 8, _begin_what_was_forgotten_as_if_for_the_first_time),
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
