"""A timed run: boot, load, faults, healing, and an end with every delivery done or a stated reason."""

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.answers import AnswerRule, Answers
from amcast.simulation.inputs.faults import FaultInjector, perform_fault
from amcast.simulation.inputs.load import ClientLoad, Draw
from amcast.simulation.inputs.network import Network, NetworkConfig
from amcast.simulation.inputs.plan import FaultPlan, scale_ns
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.narration import describe_failure
from amcast.simulation.schedulers.discrete_event import DiscreteEventScheduler
from amcast.simulation.world.actions import Change, Recover
from amcast.simulation.world.failure import ProcessFailedError
from amcast.simulation.world.membership import are_changes_done, list_planned_topologies
from amcast.simulation.world.world import NO_NODES, NodeBodies, World
from amcast.trace.recorder import Recorder

End = Literal["delivered", "stuck", "cut off", "failed"]
"""delivered: no delivery is due; stuck: the liveness bound passed; cut off: the plan's time was over; failed: a process
raised an exception."""


@dataclass(frozen=True)
class SimulationSetup:
    """The inputs of one timed run."""

    topology: Topology
    make: Callable[[ProcessId], Process]
    draw: Draw
    claims: Claims
    network: NetworkConfig
    seed: int
    messages: int
    outstanding: int
    replies: bool = False
    demands_answers: bool = False
    """Whether every client that is up must get all its answers."""
    senders: tuple[ProcessId, ...] = ()
    faults: FaultPlan = field(default_factory=FaultPlan)
    kinds: frozenset[str] = frozenset()
    until_ns: int = 0
    settle_ns: int = 0
    absent: frozenset[ProcessId] = frozenset()
    """Processes that are no members at first, and may join."""
    operator: ProcessId | None = None
    """The client that requests changes of members."""
    node_bodies: NodeBodies = NO_NODES
    answers: AnswerRule | None = None
    """Which deliveries answer clients of bare processes; None: processes reply, or a message ends when every
    destination process has delivered it."""
    load_until_ns: int = 2**62
    """When clients stop to multicast."""
    equal_shares: bool = False
    """Whether every client multicasts equally many of the messages, however long it waits for answers."""


@dataclass
class RunSummary:
    """The result of a run."""

    end: End
    multicasts: int
    deliveries: int
    packets: int
    steps: int
    simulated_ns: int
    crashed: dict[ProcessId, int]
    violations: list[str]
    undelivered: int
    notes: dict[str, int] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether a missing delivery counts: the run finished, or its liveness bound passed."""
        return self.end not in ("cut off", "failed")


def _may_lose_records(setup: SimulationSetup) -> bool:
    """Whether a process may install another's state: the world must know then what others have delivered."""
    restarts = [event.fault for event in setup.faults.events if isinstance(event.fault, Recover)]
    listed = any(restart.amnesia or restart.emptied or restart.rolled_back for restart in restarts)
    return listed or not setup.kinds.isdisjoint(("amnesia", "emptied", "rollback"))


class Simulation:
    """A timed run that a caller may inspect; `simulate` runs it in one call."""

    def __init__(self, setup: SimulationSetup, recorder: Recorder | None = None, keeps_history: bool = False) -> None:
        self.setup = setup
        network = Network(setup.network, setup.topology, make_stream(setup.seed, "network"))
        answers = None if setup.answers is None else Answers(setup.answers, setup.topology, network)
        self.scheduler = DiscreteEventScheduler(network, make_stream(setup.seed, "timers"), answers)
        self.world = World(
            setup.topology,
            setup.make,
            self.scheduler,
            recorder,
            measures_sizes=network.needs_sizes,
            keeps_history=keeps_history or setup.operator is not None or _may_lose_records(setup),
            absent=setup.absent,
            operator=setup.operator,
            node_bodies=setup.node_bodies,
        )
        self._pending_changes: list[Change] = []
        """Changes of members of the plan that have not happened yet, in order."""
        self.scheduler.world = self.world
        if answers is not None:
            self.world.answering = self.scheduler.answer_delivery
        self.load = ClientLoad(
            setup.topology,
            setup.draw,
            setup.messages,
            setup.outstanding,
            setup.senders,
            setup.replies or answers is not None,
            setup.demands_answers,
            setup.load_until_ns,
            setup.equal_shares,
        )
        if setup.load_until_ns < 2**62:
            self.scheduler.schedule(setup.load_until_ns, self.load.stop)
        self._scale_ns = scale_ns(setup.network)
        self._settle_ns = setup.settle_ns or 2000 * self._scale_ns
        self._heal_at_ns = 0
        self._is_stuck = False
        self._has_failed = False
        self._deliveries_seen = -1

    def run(self, progress: Callable[[int, int], None] | None = None) -> RunSummary:
        """Runs to the end. `progress` is called now and then with multicasts done, and their total."""
        self._plan_faults()
        self._set_clocks()
        self._watch_progress()
        until = self.setup.until_ns or 2**62
        try:
            self.world.start()
            if self.world.answering is not None and self.world.recorder is not None:
                self.world.recorder.has_answers = True
            if progress is not None:
                self._report_progress(progress, self.setup.messages)
            self.scheduler.run(self.load, until, self._is_over)
        except ProcessFailedError as failure:
            self.world.violations.append(describe_failure(failure))
            self._has_failed = True
        return self._summary(until)

    def _is_over(self) -> bool:
        if self._is_stuck:
            return True
        if (
            self._pending_changes
            or self.world.now < self._heal_at_ns
            or (self.load.remaining > 0 and self._has_live_sender())
            or self.scheduler.has_pending_multicast()
        ):
            return False
        if self.load.list_waiting(self.world):
            return False
        return are_changes_done(self.world) and self.world.find_due_message() is None

    def _has_live_sender(self) -> bool:
        return any(sender in self.world.processes for sender in self.load.senders)

    def _watch_progress(self) -> None:
        """Once per liveness bound: is the run stuck, with no delivery since the last look though some are due?"""

        def check() -> None:
            if self.world.now >= self._heal_at_ns + self._settle_ns and self.world.deliveries == self._deliveries_seen:
                self._is_stuck = (
                    self.world.find_due_message() is not None
                    or self.load.remaining > 0
                    or bool(self._pending_changes)
                    or bool(self.load.list_waiting(self.world))
                )
                if self._is_stuck:
                    return
            self._deliveries_seen = self.world.deliveries
            if not self._is_over():
                self.scheduler.schedule(self.world.now + self._settle_ns, check)

        self.scheduler.schedule(self._settle_ns, check)

    def _report_progress(self, progress: Callable[[int, int], None], total: int) -> None:
        def report() -> None:
            progress(total - self.load.remaining, total)
            if not self._is_over():
                self.scheduler.schedule(self.world.now + 20 * self._scale_ns, report)

        self.scheduler.schedule(0, report)

    def _set_clocks(self) -> None:
        """Draws the constant offset of every clock."""
        most = self.setup.network.clock_offset_ns
        random = make_stream(self.setup.seed, "clocks")
        for process in self.setup.topology.processes if most else ():
            self.world.skews[process] = (random.randint(-most, most), 0.0)

    def _plan_faults(self) -> None:
        plan = self.setup.faults
        events = plan.events
        if not self.setup.kinds and not events:
            return
        last = max((event.at_ns for event in events), default=0)
        self._heal_at_ns = plan.until_ns or max(100 * self._scale_ns, last + self._scale_ns)
        for event in events:
            if isinstance(event.fault, Change):
                self._pending_changes.append(event.fault)
                self.scheduler.schedule(event.at_ns, partial(self._change, event.fault))
            else:
                self.scheduler.schedule(event.at_ns, event.fault)
        random = make_stream(self.setup.seed, "faults")
        injector = FaultInjector(
            self.setup.kinds,
            self.setup.claims,
            random,
            self._scale_ns,
            list_planned_topologies(self.world, self._pending_changes),
        )

        def strike() -> None:
            drawn = injector.draw(self.world)
            for fault in drawn[:1]:
                self.scheduler.schedule(self.world.now, fault)
            for fault in drawn[1:]:
                at = self.world.now + random.randint(1, 20) * self._scale_ns
                self.scheduler.schedule(min(at, self._heal_at_ns - 1), fault)  # nothing is blocked again afterwards

        for at in sorted(random.randrange(self._heal_at_ns) for _ in range(plan.count if self.setup.kinds else 0)):
            self.scheduler.schedule(at, strike)

        def heal() -> None:
            for fault in injector.list_healing(self.world):
                self.scheduler.schedule(self.world.now, fault)
            self.scheduler.schedule(self.world.now, tell_truth)

        def tell_truth() -> None:
            for fault in injector.list_stable_leaders(self.world) + (
                injector.list_true_suspicions(self.world) if "suspects" in self.setup.kinds else []
            ):
                self.scheduler.schedule(self.world.now, fault)

        if self.setup.kinds:
            self.scheduler.schedule(self._heal_at_ns, heal)

    def _change(self, change: Change) -> None:
        """Requests a change; changes happen one after the other, so one that comes too early waits."""
        if self._pending_changes[0] is change and perform_fault(self.world, self.scheduler, change):
            del self._pending_changes[0]
        elif not self._is_stuck:
            self.scheduler.schedule(self.world.now + 5 * self._scale_ns, partial(self._change, change))

    def _is_done(self, due: list[tuple[MessageId, ProcessId]]) -> bool:
        is_sent = self.load.remaining <= 0 or not self._has_live_sender()
        return is_sent and not due and not self._pending_changes and not self.load.list_waiting(self.world)

    def _summary(self, until: int) -> RunSummary:
        world = self.world
        due = world.list_due_deliveries()
        if self._has_failed:
            end: End = "failed"
        elif self._is_done(due):
            end = "delivered"
        elif world.now >= until:
            end = "cut off"
        else:
            end = "stuck"
        recorder = world.recorder
        if recorder is not None:
            for process in self.setup.topology.processes:
                group = self.setup.topology.group_of(process)
                recorder.record_process(process, group, self.setup.topology.region(process), world.down.get(process))
        return RunSummary(
            end,
            world.multicasts,
            world.deliveries,
            world.packets,
            world.steps,
            world.now,
            dict(world.down),
            world.violations,
            len(due),
            dict(sorted(world.note_counts.items())),
        )


def simulate(
    setup: SimulationSetup, recorder: Recorder | None = None, progress: Callable[[int, int], None] | None = None
) -> RunSummary:
    """Runs a simulation from boot to end."""
    return Simulation(setup, recorder).run(progress)
