"""Reconfiguration with one safeguard removed: the simulator detects it, and the original survives the same run."""

from collections.abc import Callable
from itertools import product

import pytest

from amcast.kernel.effects import Deliver, Effect
from amcast.kernel.ids import GroupId, ProcessId
from amcast.lab import runs
from amcast.lab.failure_scripts import make_script
from amcast.parts.membership.configuration import ConfigurationInstance
from amcast.parts.membership.memory_doubt import MemoryDoubt
from amcast.parts.membership.messages import ConfigurationInfo
from amcast.parts.membership.reconfigurable import REPORT, Reconfigurable
from amcast.parts.node.node import Node
from amcast.parts.ordering.delivered_set import DeliveredSet
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.monitors.monitors import Monitors
from amcast.simulation.schedulers.replay import replay
from amcast.simulation.schedulers.shrink import shrink
from amcast.simulation.simulate import Simulation
from amcast.simulation.world.actions import Change
from amcast.simulation.world.membership import are_changes_done
from amcast.trace.recorder import Recorder
from tests.conformance.test_members import MS, hold, planned

LAGGING = "amnesia+recovery+partition+slow"
"""Faults that leave a member so far behind that, with a short log, it installs a state from beyond the barrier."""


@pytest.mark.parametrize("name", ["primcast", "whitebox"])
def test_state_transfer_past_the_barrier_is_detected(name: str) -> None:
    for seed in range(24):
        simulation = hold(planned(name, seed, "several", LAGGING, options={"keep": 2}))
        if simulation.world.note_counts.get("overtaken"):
            return
    pytest.fail(f"{name}: in 24 seeds no member installed a state from beyond the barrier")


def test_dropped_early_bodies_are_resent() -> None:
    overflows = 0
    for name in ("primcast", "multipaxos", "treecast"):
        for seed in range(2):
            prepared = planned(name, seed, "several", membership={"max_early_bodies": 1})
            overflows += hold(prepared).world.note_counts.get("overflow", 0)
    assert overflows > 0


def test_bodies_that_come_early_to_groups_of_one_are_resent() -> None:
    """A group of one gets another member, and loses the first: all groups are single processes again."""
    changes = [{"do": "change", "group": 0, "add": 20}, {"do": "change", "group": 0, "remove": 0}]
    values = {
        "topology": {"groups": 4, "replicas": 1, "clients": 3},
        "workload": {"messages": 60, "outstanding": 3, "destinations": [1, 3]},
        "network": {"distribution": "exponential", "spread": 1.0},
        "faults": {"events": [{"at_ns": (10 + 20 * at) * MS, **one} for at, one in enumerate(changes)]},
        "membership": {"max_early_bodies": 1},
    }
    overflows = 0
    for name, seed in product(("skeen", "flexcast"), range(4)):
        prepared = runs.prepare_run(parse_plan({"protocol": name, "seed": seed, **values}))
        overflows += hold(prepared).world.note_counts.get("overflow", 0)
    assert overflows > 0


ROOT, OTHERS = (0, 1, 2), (3, 4, 5, 6, 7, 8)
PlanEvent = tuple[float, dict[str, object]]
"""The millisecond, and what happens then."""


def _run_treecast(*events: PlanEvent) -> Simulation:
    """Runs TreeCast to the end; its root runs ahead of the other groups while it is partitioned from them."""
    values = {
        "protocol": "treecast",
        "topology": {"groups": 3, "replicas": 3, "clients": 3},
        "workload": {"messages": 24, "outstanding": 2, "destinations": [1, 3]},
        "nodes": True,
        "faults": {"events": [{"at_ns": at * MS, **event} for at, event in events]},
    }
    simulation = Simulation(runs.prepare_run(parse_plan(values)).make_setup(), Recorder(), keeps_history=True)
    simulation.run()
    return simulation


def _links_between(some: tuple[int, ...], others: tuple[int, ...]) -> list[tuple[int, int]]:
    return [pair for one in some for other in others for pair in ((one, other), (other, one))]


def _is_all_delivered(simulation: Simulation) -> bool:
    world = simulation.world
    assert not world.violations, world.violations
    return not world.list_due_deliveries() and simulation.load.remaining == 0


def _roles_in(simulation: Simulation, configuration: int) -> dict[ProcessId, object]:
    """The roles of the root's members in one configuration."""
    roles = {}
    for process in (*ROOT, 20):
        node = simulation.world.processes.get(process)
        for instance in node.protocol._instances if isinstance(node, Node) else ():  # type: ignore[attr-defined]
            if instance.configuration == configuration and instance.process is not None:
                roles[process] = instance.process.status()["role"]
    return roles


LATE_NEWCOMER: tuple[PlanEvent, ...] = (
    (5, {"do": "block", "pairs": [*_links_between(ROOT, OTHERS), *_links_between((20,), ROOT + OTHERS)]}),
    (10, {"do": "change", "group": 0, "add": 20}),
    (40, {"do": "change", "group": 1, "add": 21}),
    (100, {"do": "crash", "process": 0}),
    (200, {"do": "heal"}),
)
"""The root passes two configurations alone, and its leader crashes with all that it sent in them. Another member can
lead configuration 1 only with the vote of the newcomer, which learns of both configurations at once, after the
others."""


def _send_info_of_last_configuration_only(
    self: Reconfigurable, sender: ProcessId, configuration: int, group: GroupId
) -> None:
    current = self.current
    if configuration == REPORT and current is not None:
        self.send(sender, self.make_announcement())
    if current is not None and current.configuration > max(configuration, 0):
        info = ConfigurationInfo(current.start, self._first_needed)
        self.send(sender, info if group == self.home else self.make_announcement())


def test_late_member_votes_in_every_running_configuration(monkeypatch: pytest.MonkeyPatch) -> None:
    assert _is_all_delivered(_run_treecast(*LATE_NEWCOMER)), f"amcast simulate --plan with events {LATE_NEWCOMER}"
    monkeypatch.setattr(Reconfigurable, "_handle_find_configuration", _send_info_of_last_configuration_only)
    stuck = _run_treecast(*LATE_NEWCOMER)
    assert not _is_all_delivered(stuck)
    assert _roles_in(stuck, 1) == {1: "preparing", 2: "follower"}, "process 20 should be missing in configuration 1"
    assert set(_roles_in(stuck, 2)) == {1, 2, 20}


LED_BY_NEWCOMER: tuple[PlanEvent, ...] = (
    (2, {"do": "crash", "process": 0}),
    (40, {"do": "recover", "process": 0}),
    (80, {"do": "block", "pairs": _links_between((*ROOT, 20), OTHERS)}),
    (85, {"do": "change", "group": 0, "add": 20}),
    (110, {"do": "change", "group": 0, "remove": 0}),
    (150, {"do": "crash", "process": 2}),
    (190, {"do": "recover", "process": 2}),
    (230, {"do": "crash", "process": 1}),
    (300, {"do": "heal"}),
)
"""Process 1 leads the root, which passes two configurations alone, and crashes with all that it sent in them. The
newcomer has run longer than process 2 and leads the group, but it is not a member in configuration 0, in which the
other groups are."""


def _choose_first_remaining_member(
    self: Reconfigurable, instance: ConfigurationInstance, group: GroupId, leader: ProcessId
) -> ProcessId:
    members = instance.topology.members(group)
    remaining = [member for member in members if member in self.topology.members(group)]
    return leader if leader in members or not remaining else remaining[0]


def test_old_configuration_is_led_by_a_trusted_member(monkeypatch: pytest.MonkeyPatch) -> None:
    """The group's leader joined later, and the first member that remains has crashed."""
    assert _is_all_delivered(_run_treecast(*LED_BY_NEWCOMER)), f"amcast simulate --plan with events {LED_BY_NEWCOMER}"
    monkeypatch.setattr(Reconfigurable, "_choose_leader", _choose_first_remaining_member)
    stuck = _run_treecast(*LED_BY_NEWCOMER)
    assert not _is_all_delivered(stuck)
    assert _roles_in(stuck, 0) == {0: "follower", 2: "follower"}, "configuration 0 should have no leader"
    assert _roles_in(stuck, 2)[20] == "leading"


REMOVED_UNHEARD: tuple[PlanEvent, ...] = (
    (2, {"do": "crash", "process": 5}),
    (5, {"do": "block", "pairs": [(4, other) for other in (0, 1, 2, 6, 7, 8, 20)]}),
    (10, {"do": "change", "group": 0, "add": 20}),
    (40, {"do": "change", "group": 0, "remove": 0}),
    (80, {"do": "change", "group": 1, "add": 21}),
    (120, {"do": "change", "group": 1, "remove": 4}),
    (300, {"do": "heal"}),
)
"""Process 4 completes the majority of its group in the first configurations and is removed; what it announced to the
other groups is lost."""


def _wait_for_quorums_of_the_next_configuration(self: Reconfigurable) -> None:
    while len(self._instances) > 1:
        old = self._instances[0].configuration
        following = self._instances[1]
        if old >= self._first_needed and not self._have_quorums_reached(following.configuration, following.topology):
            return
        self._first_needed = max(self._first_needed, old + 1)
        del self._instances[0]
    current = self.current
    if current is not None and current.process is None:
        self._retire(current.configuration)


def test_old_configuration_ends_after_a_removed_member_went_unheard(monkeypatch: pytest.MonkeyPatch) -> None:
    done = _run_treecast(*REMOVED_UNHEARD)
    assert _is_all_delivered(done), f"amcast simulate --plan with events {REMOVED_UNHEARD}"
    assert sorted(done.world.absent) == [0, 4], "a removed process has not retired"
    monkeypatch.setattr(Reconfigurable, "_drop_old_instances", _wait_for_quorums_of_the_next_configuration)
    stuck = _run_treecast(*REMOVED_UNHEARD)
    assert sorted(stuck.world.absent) == [4]
    assert len(_roles_in(stuck, 1)) > 0, "configuration 1 should run for ever"


def test_run_goes_on_until_a_removed_member_that_was_started_again_has_stopped_again() -> None:
    world = _run_treecast((10, {"do": "change", "group": 0, "remove": 0})).world
    assert 0 in world.absent
    assert are_changes_done(world)
    world.recover(0)
    assert not are_changes_done(world)
    assert sorted(_run_treecast(*STARTED_AGAIN).world.down) == [0]


STARTED_AGAIN: tuple[PlanEvent, ...] = (
    (10, {"do": "change", "group": 0, "remove": 0}),
    (120, {"do": "recover", "process": 0}),
)


FORGOTTEN_LEAD: tuple[PlanEvent, ...] = (
    (10, {"do": "change", "group": 1, "add": 20}),
    (13.5, {"do": "block", "pairs": _links_between((0, 3, 4, 5), (1, 2))}),
    (40, {"do": "crash", "process": 0}),
    (41, {"do": "heal"}),
    (41.5, {"do": "recover", "process": 0, "amnesia": True}),
)
"""Process 0 leads group 0 into configuration 1, which the other members of its group do not reach, and tells group 1
its timestamps. Then it loses its memory, comes back through configuration 0, and leads its group into configuration 1
once more, in the same ballot."""


def _run_forgotten_lead(seed: int) -> tuple[Simulation, list[str]]:
    """Runs White-Box to the end, with the rules of what its processes say."""
    values = {
        "protocol": "whitebox",
        "seed": seed,
        "topology": {"groups": 2, "replicas": 3, "clients": 3},
        "workload": {"messages": 40, "outstanding": 3, "destinations": [1, 2]},
        "nodes": True,
        "faults": {"events": [{"at_ns": int(at * MS), **event} for at, event in FORGOTTEN_LEAD]},
    }
    prepared = runs.prepare_run(parse_plan(values))
    assert prepared.monitoring is not None
    simulation = Simulation(prepared.make_setup(), Recorder(), keeps_history=True)
    simulation.world.monitors = Monitors(prepared.monitoring, simulation.world)
    return simulation, simulation.run().violations


def test_member_that_led_a_configuration_before_it_lost_its_memory_does_not_lead_it_anew(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    seeds = range(3)
    for seed in seeds:
        simulation, violations = _run_forgotten_lead(seed)
        assert not violations, f"seed {seed}: {violations[0]}"
        assert _is_all_delivered(simulation)
        assert simulation.world.note_counts["remembered"] == 1, "process 0 is in doubt for ever"
    monkeypatch.setattr(MemoryDoubt, "is_ended_by", lambda self, instance: True)
    stories = [violation for seed in seeds for violation in _run_forgotten_lead(seed)[1]]
    assert any("breaks the rule 'one value'" in story for story in stories), stories


Plant = Callable[[pytest.MonkeyPatch], None]


def _deliver_after_the_barrier(patch: pytest.MonkeyPatch) -> None:
    original = Reconfigurable._deliver_from

    def mutant(self: Reconfigurable, instance: ConfigurationInstance, delivery: Deliver, later: list[Effect]) -> None:
        if instance is not self._instances[-1]:
            self._outbox.append(Deliver(delivery.message, self.position))
            self.position += 1
        else:
            original(self, instance, delivery, later)

    patch.setattr(Reconfigurable, "_deliver_from", mutant)


def _forget_earlier_deliveries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveredSet, "merge", lambda self, state: None)


def _count_discarded_deliveries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(DeliveredSet, "forget", lambda self, message: None)


def _never_check_earlier_deliveries(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ConfigurationInstance, "is_newer", lambda self, message: True)


def _drop_old_instances_at_once(patch: pytest.MonkeyPatch) -> None:
    def mutant(self: Reconfigurable) -> None:
        del self._instances[:-1]

    patch.setattr(Reconfigurable, "_drop_old_instances", mutant)


def _miss_a_skipped_barrier(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Reconfigurable, "_detect_skipped_barrier", lambda self, instance, effects: None)


@pytest.mark.parametrize(
    ("name", "faults", "first", "plant"),
    [
        ("primcast", "none", 0, _deliver_after_the_barrier),
        ("treecast", "none", 0, _forget_earlier_deliveries),
        ("whitebox", "none", 0, _count_discarded_deliveries),
        ("treecast", "none", 0, _never_check_earlier_deliveries),
        ("skeen", "none", 0, _drop_old_instances_at_once),
        ("primcast", LAGGING, 317, _miss_a_skipped_barrier),
    ],
)
def test_mutant_is_detected(name: str, faults: str, first: int, plant: Plant, monkeypatch: pytest.MonkeyPatch) -> None:
    options = {"keep": 2} if faults == LAGGING else {}
    for seed in range(first, first + 6):
        plant(monkeypatch)
        try:
            hold(planned(name, seed, "several", faults, options=options))
        except AssertionError:
            monkeypatch.undo()
            hold(planned(name, seed, "several", faults, options=options))
            return
    pytest.fail(f"{plant.__name__} of {name}: 6 seeds detected nothing")


def test_script_with_a_change_of_members_shrinks(monkeypatch: pytest.MonkeyPatch) -> None:
    _deliver_after_the_barrier(monkeypatch)
    values = {
        "protocol": "skeen",
        "topology": {"groups": 2, "replicas": 1, "clients": 2},
        "workload": {"messages": 6, "outstanding": 2, "destinations": [1, 2]},
        "faults": {"events": [{"at_ns": 10 * MS, "do": "change", "group": 0, "add": 20}]},
    }
    prepared = runs.prepare_run(parse_plan(values))
    outcome = next(found for seed in range(20) if (found := runs.fuzz_seed(prepared, seed)).status == "violated")
    judge = runs.make_judge(prepared, outcome.seed)
    claims = prepared.spec.claims
    small = shrink(make_script(prepared, outcome), prepared.make, claims, judge, max_runs=60).script
    assert len(small.actions) < len(outcome.script)
    assert [action for action in small.actions if isinstance(action, Change)] == [Change(0, add=20)]
    result = replay(small, prepared.make, claims, judge)
    assert (result.status, result.story) == ("violated", small.story)
