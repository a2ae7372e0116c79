"""The random scheduler: a seed draws everything that a run leaves open, faults included; then liveness is demanded.

The seed also draws a style of drawing: even or starved links, single events or bursts, fast or slow disks, how often
timers overtake messages, whether processes crash just when they have written or delivered. A
run ends healed: blocked links open, paused processes resume, crashed ones that may come back do, and then
every due delivery must happen within a stated number of steps.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Links
from amcast.kernel.topology import Topology
from amcast.kernel.units import MILLISECOND
from amcast.simulation.inputs.disk_faults import draw_storage
from amcast.simulation.inputs.faults import FaultInjector
from amcast.simulation.inputs.load import ClientLoad, Draw
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.monitors.monitors import Monitoring
from amcast.simulation.narration import describe_failure
from amcast.simulation.schedulers.heal import has_due_deliveries
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    Change,
    Collect,
    Drop,
    Fault,
    Fire,
    Multicast,
    Recover,
    Repeat,
    Sync,
)
from amcast.simulation.world.failure import ProcessFailedError
from amcast.simulation.world.membership import are_changes_done, can_change, list_planned_topologies
from amcast.simulation.world.world import NO_NODES, NodeBodies, Pair, World
from amcast.trace.recorder import Recorder

SETTLE_STEPS: Final = 60_000
"""The liveness bound: steps after healing, and after the last message, within which every due delivery must happen.
A client that waits for its messages multicasts the next one only when the run makes progress, ..."""
SETTLE_STEPS_PER_MESSAGE: Final = 1_000
"""... and how many more steps there are from the start for each message that is left when healing begins."""
LONG_RUN: Final = 60
"""Messages from which on a run is long: its faults go on for longer, and come less often."""
READMITTED: Final = "restarted-after-admission"
"""Counted as a note: a process that lost its disk, and was readmitted, started from its new disk."""

Status = Literal["holds", "violated", "stuck"]
Judge = Callable[[World, Recorder, bool], str | None]
"""Takes the world, its recorder and whether the run is complete; returns the first violation as a sentence, or None."""


@dataclass(frozen=True)
class FuzzCase:
    """The inputs of a fuzzed run but for its seed."""

    topology: Topology
    make: Callable[[ProcessId], Process]
    draw: Callable[[int], Draw]
    """From a seed: the draws of clients' messages."""
    claims: Claims
    kinds: frozenset[str]
    """Kinds of faults that are drawn."""
    messages: int = 8
    outstanding: int = 2
    replies: bool = False
    senders: tuple[ProcessId, ...] = ()
    links: Links = "fifo"
    wire_bodies: tuple[type[Body], ...] = ()
    """Bodies of the run; some seeds pass every body through the codec."""
    absent: frozenset[ProcessId] = frozenset()
    """Processes that are no members at first, and may join."""
    operator: ProcessId | None = None
    changes: tuple[Change, ...] = ()
    """Changes of members, in this order; the seed draws when they happen."""
    node_bodies: NodeBodies = NO_NODES
    monitoring: Monitoring | None = None
    """The invariants that are checked in every step; None: deliveries alone are judged."""
    storage: bool = True
    """Whether seeds may keep the records of servers in the real log, on disks that fail."""


@dataclass
class FuzzOutcome:
    """The result of one seed."""

    seed: int
    status: Status
    story: str
    script: list[AnyAction] = field(default_factory=list)
    steps: int = 0
    notes: dict[str, int] = field(default_factory=dict)
    storage: int = 0
    """The segment size of the logs of servers; 0: records were kept in lists."""


@dataclass(frozen=True)
class FuzzStyle:
    """The rates with which a seed draws actions."""

    fault_steps: int
    fault_rate: float
    fault_length: int
    """The most steps until a fault ends."""
    strike: Literal["", "persist", "delivery"]
    """After which steps a process crashes now and then: those that leave a record to be written, or that deliver."""
    strike_rate: float
    timer_rate: float
    burst_rate: float
    starved_share: float
    """Share of links, each in one direction, that are chosen a hundred times less often."""
    multicast_rate: float
    """Probability that a client multicasts, if one may."""
    sync_rates: tuple[float, ...]
    """The rates at which disks become durable; each process draws one. A slow disk keeps the time between what a
    process says and what it has made durable open."""
    collecting_share: float
    """Share of servers that take the requests of clients together, as a live host hands them over."""
    uses_codec: bool


def draw_style(random: Random, faulty: bool, messages: int = 8) -> FuzzStyle:
    is_long = messages >= LONG_RUN
    return FuzzStyle(
        fault_steps=random.choice((500, 1500, 4000) if is_long else (40, 150, 500)),
        fault_rate=random.choice((0.01, 0.04, 0.12)) / (3 if is_long else 1) if faulty else 0.0,
        fault_length=random.choice((20, 120, 120, 600)),
        strike=random.choice(("", "", "persist", "delivery")) if faulty else "",
        strike_rate=random.choice((0.02, 0.1, 0.3)) / (5 if is_long else 1),
        timer_rate=random.choice((0.0, 0.01, 0.1)),
        burst_rate=random.choice((0.0, 0.0, 0.3, 0.9)),
        starved_share=random.choice((0.0, 0.2, 0.6)),
        multicast_rate=random.choice((0.02, 0.2, 0.9)),
        sync_rates=random.choice(((0.4,), (0.9,), (0.1,), (0.02,), (0.02, 0.4), (0.02, 0.1, 0.9))),
        collecting_share=random.choice((0.0, 0.0, 0.3, 1.0)),
        uses_codec=random.random() < 0.1,
    )


class Fuzzer(PendingActions):
    """One run of one seed."""

    def __init__(self, case: FuzzCase, seed: int, recorder: Recorder) -> None:
        super().__init__(case.links)
        self.case = case
        self.seed = seed
        self._random = make_stream(seed, "fuzz")
        self.style = draw_style(self._random, bool(case.kinds), case.messages)
        self.recorder = recorder
        self.storage = draw_storage(make_stream(seed, "storage")) if case.storage else 0
        self.world = World(
            case.topology,
            case.make,
            self,
            recorder,
            wire_bodies=case.wire_bodies if self.style.uses_codec else (),
            absent=case.absent,
            operator=case.operator,
            node_bodies=case.node_bodies,
            monitoring=case.monitoring,
            storage=self.storage,
        )
        self._changes = list(case.changes)
        self.load = ClientLoad(
            case.topology, case.draw(seed), case.messages, case.outstanding, case.senders, case.replies
        )
        self.script: list[AnyAction] = []
        self._injector = FaultInjector(
            case.kinds,
            case.claims,
            make_stream(seed, "faults"),
            MILLISECOND,
            list_planned_topologies(self.world, case.changes),
        )
        self._ends: list[tuple[int, Fault]] = []
        """Actions that end faults, and at which step."""
        self._weights: dict[Pair, float] = {}
        self._sync_rates = {process: self._random.choice(self.style.sync_rates) for process in case.topology.processes}
        self._lossy = case.links == "raw"
        self._healed_at = 0
        """The step from which on there are no more faults."""

    def run(self, judge: Judge) -> FuzzOutcome:
        world = self.world
        try:
            world.start()
            self._collect_requests()
            while world.steps < self.style.fault_steps and not self._is_finished():
                self._inject_faults()
                before = world.deliveries
                if not self._step(fair=False):
                    break
                if world.violations:
                    break
                self._strike(world.deliveries > before)
            self._heal()
            self._settle()
            self._drain()
        except ProcessFailedError as failure:
            return self._outcome("violated", describe_failure(failure))
        complete = self._is_finished()
        story = world.violations[0] if world.violations else judge(world, self.recorder, complete)
        if story is not None:
            return self._outcome("violated", story)
        if not complete:
            return self._outcome("stuck", self._describe_stuck())
        return self._outcome("holds", "")

    # Phases

    def _is_finished(self) -> bool:
        if self.load.remaining > 0 and any(sender in self.world.processes for sender in self.load.senders):
            return False
        return not self._changes and are_changes_done(self.world) and not has_due_deliveries(self.world)

    def _collect_requests(self) -> None:
        share = self.style.collecting_share
        for process in self.world.topology.servers if share else ():
            if self._random.random() < share:
                self._perform(Collect(process))

    def _inject_faults(self) -> None:
        for due in [due for due in self._ends if due[0] <= self.world.steps]:
            self._ends.remove(due)
            self._perform(due[1])
        if self._random.random() < self.style.fault_rate:
            self._begin_fault(self._injector.draw(self.world))

    def _strike(self, delivered: bool) -> None:
        """Crashes the process that took the last step, now and then: just after it delivered, or before its records
        are durable."""
        if not self.style.strike or self._random.random() >= self.style.strike_rate:
            return
        process = _actor(self.script[-1])
        if process is None or process not in self.world.disks:
            return
        if delivered if self.style.strike == "delivery" else self.world.disks[process].busy:
            self._begin_fault(self._injector.draw_crash(self.world, process))

    def _begin_fault(self, drawn: tuple[Fault, ...]) -> None:
        """Performs the first of these actions now, and the others some time later."""
        for fault in drawn[:1]:
            self._perform(fault)
        for end in drawn[1:]:
            self._ends.append((self.world.steps + self._random.randint(1, self.style.fault_length), end))

    def _heal(self) -> None:
        for fault in self._injector.list_healing(self.world):
            self._perform(fault)
        if not self.case.replies and self.case.kinds & {"leaders", "crash", "leave", "recovery", "amnesia"}:
            for fault in self._injector.list_stable_leaders(self.world):
                self._perform(fault)
        if "suspects" in self.case.kinds:
            for fault in self._injector.list_true_suspicions(self.world):
                self._perform(fault)

    def _settle(self) -> None:
        """Steps fairly until every delivery has happened, or the liveness bound has passed."""
        world = self.world
        self._healed_at = world.steps
        remaining = self.load.remaining
        bound = world.steps + SETTLE_STEPS + SETTLE_STEPS_PER_MESSAGE * remaining
        while not world.violations and not self._is_finished() and world.steps < bound and self._step(fair=True):
            if self.load.remaining < remaining:
                remaining = self.load.remaining
                bound = max(bound, world.steps + SETTLE_STEPS)

    def _drain(self) -> None:
        """Lets late packets arrive: no message may be delivered twice."""
        for _ in range(4 * sum(len(link) for link in self.links.values())):
            if self.world.violations or not any(self.is_open(pair) for pair in self.links):
                return
            self._step(fair=True)

    # Choosing

    def _step(self, fair: bool) -> bool:
        """Draws one action and applies it; False if nothing can happen."""
        if self._changes and self._random.random() < 0.05 and can_change(self.world, self._changes[0].add):
            self._perform(self._changes.pop(0))
        action = self._choose(fair)
        if action is None:
            if not self._changes or not can_change(self.world, self._changes[0].add):
                return False
            action = self._changes.pop(0)
        self._perform(action)
        self.load.collect_done(self.world)
        return True

    def _perform(self, action: AnyAction) -> None:
        self.script.append(action)
        if not self.apply(action):
            self.script.pop()  # a fault that no longer made sense
        elif type(action) is Recover and not action.amnesia and self._injector.is_readmitted(action.process):
            self.world.note_counts[READMITTED] = self.world.note_counts.get(READMITTED, 0) + 1

    def _choose(self, fair: bool) -> AnyAction | None:
        random = self._random
        senders = self.load.list_ready(self.world)
        if senders and random.random() < (0.3 if fair else self.style.multicast_rate):
            return self._next_multicast(random.choice(senders))
        if not fair and self.style.timer_rate and random.random() < self.style.timer_rate:
            timers = self.list_timers()
            if timers:
                return Fire(*random.choice(timers))
        syncs = [process for process, disk in self.world.disks.items() if disk.busy]
        if syncs:
            process = random.choice(syncs)
            if random.random() < (0.4 if fair else self._sync_rates[process]):
                return Sync(process, random.choice((0, 0, 1, 2)))
        pair = self._choose_link(fair)
        if pair is not None:
            return self._choose_packet(pair, fair)
        if syncs:
            return Sync(random.choice(syncs))
        if senders:
            return self._next_multicast(random.choice(senders))
        return self._earliest_timer()

    def _next_multicast(self, sender: ProcessId) -> Multicast:
        message, _ = self.load.next_message(sender)
        return Multicast(sender, message.id, message.destinations, len(message.payload))

    def _choose_link(self, fair: bool) -> Pair | None:
        links = self.links
        if self.world.paused or self.world.blocked:
            candidates = [pair for pair in links if self.is_open(pair)]
        else:
            candidates = list(links)
        if not candidates:
            return None
        random = self._random
        if fair or not self.style.starved_share:
            return random.choice(candidates)
        pair = random.choice(candidates)
        for _ in range(6):
            weight = self._weights.get(pair)
            if weight is None:
                weight = self._weights[pair] = 0.01 if random.random() < self.style.starved_share else 1.0
            if random.random() < weight:
                return pair
            pair = random.choice(candidates)
        return pair

    def _choose_packet(self, pair: Pair, fair: bool) -> AnyAction:
        random = self._random
        place = random.randrange(self.count_places(pair))
        if self._lossy and not fair and self.can_lose(pair, place):
            chance = random.random()
            if chance < 0.05 or chance < self.loss:
                return Drop(pair[0], pair[1], place)
            if chance > 0.95:
                return Repeat(pair[0], pair[1], place)
        if self.style.burst_rate and random.random() < self.style.burst_rate:
            return self._draw_burst(pair[1])
        return Arrive(pair[1], ((pair[0], place),))

    def _draw_burst(self, target: ProcessId) -> Arrive:
        """Any number of packets to a process, each link in its order."""
        packets = []
        for pair in sorted(self.links):
            if pair[1] == target and self.is_open(pair):
                packets += [(pair[0], 0)] * self._random.randint(0, len(self.links[pair]))
        if not packets:
            pair = next(pair for pair in self.links if pair[1] == target and self.is_open(pair))
            packets = [(pair[0], 0)]
        return Arrive(target, tuple(packets))

    def _earliest_timer(self) -> Fire | None:
        """The earliest timer, for when nothing else can happen."""
        timers = self.list_timers()
        if not timers:
            return None
        return Fire(*min(timers, key=lambda key: (self.timers[key][1], key)))

    # Results

    def _outcome(self, status: Status, story: str) -> FuzzOutcome:
        return FuzzOutcome(
            self.seed, status, story, self.script, self.world.steps, self.world.note_counts, self.storage
        )

    def _describe_stuck(self) -> str:
        owed = self.world.list_due_deliveries()
        if not owed and not self.load.remaining:
            return f"a change of members was not carried out, {len(self._changes)} were not requested"
        if not owed:
            return f"{self.load.remaining} messages were not multicast: clients got no reply to earlier ones"
        message, process = owed[0]
        more = f" ({len(owed)} deliveries are due in all)" if len(owed) > 1 else ""
        steps = self.world.steps - self._healed_at
        return f"process {process} never delivered message {message}, {steps} steps after healing{more}"


def _actor(action: AnyAction) -> ProcessId | None:
    """The process that takes a step with an action, if it is one that a run consists of without faults."""
    match action:
        case Arrive(target):
            return target
        case Fire(process) | Sync(process):
            return process
        case _:
            return None
