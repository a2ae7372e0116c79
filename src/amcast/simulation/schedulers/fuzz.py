"""The random scheduler: a seed draws everything that a run leaves open, faults included; then liveness is demanded.

The seed also draws a style of drawing: even or starved links, single events or bursts, fast or slow disks, how often
timers overtake messages, whether processes crash just when they have written or delivered. A
run ends healed: blocked links open, paused processes resume, crashed ones that may come back do, and then
every due delivery must happen within a stated number of steps.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from random import Random
from typing import Final, Literal

from amcast.kernel.config import MILLISECOND
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Links
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.adversaries import NEEDED, Adversary
from amcast.simulation.inputs.auditor import Auditor
from amcast.simulation.inputs.disk_faults import draw_storage
from amcast.simulation.inputs.faults import FaultInjector
from amcast.simulation.inputs.load import ClientLoad, Draw
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.monitors.monitors import Monitoring
from amcast.simulation.narration import describe_failure
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    BeginRead,
    Change,
    Collect,
    Crash,
    Differ,
    Drop,
    ExpectRefusal,
    Fault,
    Fire,
    Multicast,
    Recover,
    Repeat,
    Restore,
    Sync,
)
from amcast.simulation.world.differences import can_differ, is_refused
from amcast.simulation.world.failure import ProcessFailedError
from amcast.simulation.world.membership import are_changes_done, can_change, list_planned_topologies
from amcast.simulation.world.world import NO_NODES, NodeBodies, Pair, World
from amcast.trace.recorder import Recorder

SETTLE_STEPS: Final = 60_000
"""The liveness bound: steps after healing within which every due delivery must happen."""
MAX_LEFT: Final = 3
"""The most messages that are multicast after healing: a healed system shows little that a faulty one does not."""
STARVED: Final = 0.01
"""How often a starved link is chosen, compared with others."""
LONG_RUN: Final = 60
"""Messages from which on a run is long: its faults go on for longer, and come less often."""
READ_RATES: Final = (0.0, 0.0, 0.0, 0.02, 0.1)
"""How often the users of servers read, in each step; drawn apart from the style, which stays as it is."""
ADVERSARIES: Final = ("", "", "duel", "duel", "laggard", "memory", "memory", "power")
"""Those that a run draws from, if it has the kinds of faults that they need."""
DIFFERENCES_SHARE: Final = 0.15
"""How many runs end with a replica whose state differs, of those that can."""
COMPARE_STEPS: Final = 6000
"""The steps within which its group must have found that."""
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
    demands_answers: bool = False
    """Whether every client that is up must get all its answers."""
    is_audited: bool = False
    """Whether answers promise real-time order: an auditor multicasts just behind them."""
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
    restores: bool = True
    """Whether seeds may replace processes by copies that are restored from their snapshots."""


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
    turns: tuple[tuple[int, int], ...] = ()
    """The steps at which the run was drawn anew, each with its seed."""


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
    adversary: str
    """Whose courses half of the faults are (`inputs/adversaries.py`); "": nobody's."""
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
    restore_rate: float
    """Probability in each step that a process is replaced by a copy, restored from its snapshot."""
    uses_codec: bool


def draw_style(random: Random, kinds: Collection[str] = frozenset(), messages: int = 8) -> FuzzStyle:
    faulty, kinds = bool(kinds), frozenset(kinds)
    is_long = messages >= LONG_RUN
    return FuzzStyle(
        fault_steps=random.choice((500, 1200, 3000) if is_long else (100, 300, 600, 1200)),
        fault_rate=random.choice((0.02, 0.05, 0.12)) / (3 if is_long else 1) if faulty else 0.0,
        fault_length=random.choice((20, 120, 120, 600)),
        strike=random.choice(("", "", "persist", "delivery")) if faulty else "",
        strike_rate=random.choice((0.02, 0.1, 0.3)) / (5 if is_long else 1),
        adversary=random.choice([name for name in ADVERSARIES if NEEDED.get(name, kinds) <= kinds]),
        timer_rate=random.choice((0.0, 0.01, 0.03, 0.1)),
        burst_rate=random.choice((0.0, 0.0, 0.3, 0.9)),
        starved_share=random.choice((0.0, 0.2, 0.6)),
        multicast_rate=random.choice((0.02, 0.2, 0.9)),
        sync_rates=random.choice(((0.4,), (0.9,), (0.1,), (0.02,), (0.02, 0.4), (0.02, 0.1, 0.9))),
        collecting_share=random.choice((0.0, 0.0, 0.3, 1.0)),
        restore_rate=random.choice((0.0, 0.0, 0.0, 0.01)),
        uses_codec=random.random() < 0.1,
    )


class Fuzzer(PendingActions):
    """One run of one seed."""

    def __init__(self, case: FuzzCase, seed: int, recorder: Recorder, turns: tuple[tuple[int, int], ...] = ()) -> None:
        """`turns`: at these steps, schedule and faults are drawn anew from these seeds."""
        super().__init__(case.links)
        self.case = case
        self.seed = seed
        self._turns = turns
        self._turns_left = list(turns)
        self._random = make_stream(seed, "fuzz")
        self.style = draw_style(self._random, case.kinds, case.messages)
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
            case.topology,
            case.draw(seed),
            case.messages,
            case.outstanding,
            case.senders,
            case.replies,
            case.demands_answers,
        )
        self.script: list[AnyAction] = []
        self._streams = {"fuzz": self._random, "faults": make_stream(seed, "faults")}
        self._injector = FaultInjector(
            case.kinds,
            case.claims,
            self._streams["faults"],
            MILLISECOND,
            list_planned_topologies(self.world, case.changes),
            case.links,
        )
        self._adversary: Adversary | None = None
        if self.style.adversary:
            self._streams["adversary"] = make_stream(seed, "adversary")
            self._adversary = Adversary(
                self.style.adversary, case.kinds, case.topology, self._injector, self._streams["adversary"]
            )
        self._auditor: Auditor | None = None
        if case.is_audited and len(case.topology.groups) > 1:
            random = self._streams["audits"] = make_stream(seed, "audits")
            self._auditor = Auditor(case.topology, case.messages, case.kinds, self._injector, random)
        self._ends: list[tuple[int, Fault]] = []
        """Actions that end faults, and at which step."""
        self._weights: dict[Pair, float] = {}
        self._sync_rates = {process: self._random.choice(self.style.sync_rates) for process in case.topology.processes}
        self._readers = make_stream(seed, "reads")
        self._read_rate = self._readers.choice(READ_RATES)
        self._lossy = case.links == "raw"
        self._due: MessageId | None = None
        """A message of which a delivery was due when that was last asked."""
        self._healed_at = 0
        """The step from which on there are no more faults."""

    def run(self, judge: Judge) -> FuzzOutcome:
        world = self.world
        try:
            world.start()
            self._collect_requests()
            while self._is_busy() or (world.steps < self.style.fault_steps and not self._is_finished()):
                self._draw_anew()
                self._inject_faults()
                self._restore_copies()
                self._begin_reads()
                before = world.deliveries
                if not self._step(fair=False):
                    break
                if world.violations:
                    break
                self._strike(world.deliveries > before)
            self._heal()
            self._settle()
            self._drain()
            if world.has_markers:
                self._settle()  # late packets may begin the delivery of one, which is due everywhere from then on
        except ProcessFailedError as failure:
            return self._outcome("violated", describe_failure(failure))
        complete = self._is_finished()
        if complete and not world.violations:
            try:
                self._plant_difference()
            except ProcessFailedError as failure:
                return self._outcome("violated", describe_failure(failure))
        story = world.violations[0] if world.violations else judge(world, self.recorder, complete)
        if story is not None:
            return self._outcome("violated", story)
        if not complete:
            return self._outcome("stuck", self._describe_stuck())
        return self._outcome("holds", "")

    # Phases

    def _is_plotting(self) -> bool:
        return self._adversary is not None and self._adversary.is_plotting

    def _is_busy(self) -> bool:
        """Whether somebody is about something that may take longer than there are faults."""
        return self._is_plotting() or (self._auditor is not None and bool(self._auditor.held))

    def _draw_anew(self) -> None:
        """Draws everything that is left from another seed, at the steps that were given."""
        while self._turns_left and self._turns_left[0][0] <= self.world.steps:
            _, seed = self._turns_left.pop(0)
            for name, stream in self._streams.items():
                stream.setstate(make_stream(seed, name).getstate())

    def _is_finished(self) -> bool:
        world, load = self.world, self.load
        if load.remaining > 0:
            for sender in load.senders:
                if sender in world.processes:
                    return False
        if self._changes:
            return False
        if not world.is_due(self._due):  # it is asked after every step, and the answer is mostly the same
            self._due = world.find_due_message()
        if self._due is not None or not are_changes_done(world):
            return False
        return not load.list_waiting(world) and not self._list_unclosed() and not self._list_unread()

    def _list_unread(self) -> list[ProcessId]:
        """Servers whose users wait for reads."""
        running = self.world.processes
        return sorted(process for process, reads in self.world.open_reads.items() if reads and process in running)

    def _list_unclosed(self) -> list[ProcessId]:
        """Servers that do not know their deliveries to be closed, though every client is answered."""
        if not self.load.demands_answers:
            return []
        return [
            process
            for process, position in self.world.positions.items()
            if self.world.closed_until.get(process, (0, 0))[0] < position
            and process in self.world.processes
            and self.world.processes[process].states_closings
        ]

    def _collect_requests(self) -> None:
        share = self.style.collecting_share
        for process in self.world.topology.servers if share else ():
            if self._random.random() < share:
                self._perform(Collect(process))

    def _inject_faults(self) -> None:
        for due in [due for due in self._ends if due[0] <= self.world.steps]:
            self._ends.remove(due)
            self._perform(due[1])
        if self._is_plotting() and self._adversary is not None:
            self._begin_fault(self._adversary.follow(self.script[-1]))
        elif self._random.random() < self.style.fault_rate:
            if self._adversary is not None and self._random.random() < 0.5:
                for course in self._adversary.draw(self.world):
                    self._begin_fault(course)
            else:
                self._begin_fault(self._injector.draw(self.world))

    def _restore_copies(self) -> None:
        rate = self.style.restore_rate
        if rate and self._random.random() < rate and self.case.restores:
            self._perform(Restore(self._random.choice(sorted(self.world.processes))))

    def _begin_reads(self) -> None:
        if self._read_rate and self._readers.random() < self._read_rate:
            self._perform(BeginRead(self._readers.choice(self.world.topology.servers)))

    def _strike(self, delivered: bool) -> None:
        """Crashes the process that took the last step, now and then: just after it delivered, or before its records
        are durable."""
        if not self.style.strike or self._is_plotting() or self._random.random() >= self.style.strike_rate:
            return
        process = _actor(self.script[-1])
        if process is None or process not in self.world.disks:
            return
        if delivered if self.style.strike == "delivery" else self.world.disks[process].busy:
            self._begin_fault(self._injector.draw_crash(self.world, process))

    def _begin_fault(self, drawn: tuple[Fault, ...]) -> None:
        """Performs the first of these actions now, and the others some time later, in their order."""
        for fault in drawn[:1]:
            self._perform(fault)
        steps = sorted(self._random.randint(1, self.style.fault_length) for _ in drawn[1:])
        self._ends += [(self.world.steps + step, end) for step, end in zip(steps, drawn[1:], strict=True)]

    def _heal(self) -> None:
        self.load.remaining = min(self.load.remaining, self._random.randint(0, MAX_LEFT))
        if self._auditor is not None:
            self._auditor.held = frozenset()
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
        bound = world.steps + SETTLE_STEPS
        while not world.violations and not self._is_finished() and world.steps < bound:
            if not self._step(fair=True):
                break

    def _drain(self) -> None:
        """Lets late packets arrive: no message may be delivered twice."""
        for _ in range(4 * sum(len(link) for link in self.links.values())):
            if self.world.violations or not any(self.is_open(pair) for pair in self.links):
                return
            self._step(fair=True)

    def _plant_difference(self) -> None:
        """Lets the state of one replica differ at the end: it must stop, and refuse to take part when it restarts."""
        random, world = make_stream(self.seed, "differences"), self.world
        able = [server for server in world.topology.servers if can_differ(world, server)]
        if not able or random.random() >= DIFFERENCES_SHARE:
            return
        process = random.choice(able)
        self._perform(Differ(process))
        bound = world.steps + COMPARE_STEPS
        while not world.violations and world.steps < bound and not is_refused(world, process):
            self._step(fair=True)
        self._perform(ExpectRefusal(process))
        for fault in (Crash(process), Recover(process)):
            self._perform(fault)
        bound = world.steps + COMPARE_STEPS // 10
        while not world.violations and world.steps < bound and process in world.processes:
            self._step(fair=True)
        self._perform(ExpectRefusal(process))

    # Choosing

    def is_open(self, pair: Pair) -> bool:
        if self._auditor is not None and pair in self._auditor.held:
            return False
        return super().is_open(pair)

    def _step(self, fair: bool) -> bool:
        """Draws one action and applies it; False if nothing can happen."""
        if self._changes and self._random.random() < 0.05 and can_change(self.world, self._changes[0]):
            self._perform(self._changes.pop(0))
        action = self._choose(fair)
        if action is None:
            if not self._changes or not can_change(self.world, self._changes[0]):
                return False
            action = self._changes.pop(0)
        self._perform(action)
        answered = tuple(self.world.resolved) if self._auditor is not None else ()
        if self.world.resolved or self.world.completed:
            self.load.collect_done(self.world)
        if self._auditor is not None and not fair:
            self._audit(self._auditor, answered)
        return True

    def _audit(self, auditor: Auditor, answered: tuple[MessageId, ...]) -> None:
        """Multicasts what the auditor wants, if a client can."""
        destinations = auditor.choose(self.world, answered, self.load.remaining)
        if auditor.fault:
            fault, auditor.fault = auditor.fault, ()
            self._begin_fault(fault)
        senders = self.load.list_ready(self.world) if destinations else ()
        if senders:
            sender = self._random.choice(senders)
            message = self.load.next_message_to(sender, destinations)
            self._perform(Multicast(sender, message.id, message.destinations, len(message.payload)))
            auditor.record_multicast(self.world, message.id, destinations[0])

    def _perform(self, action: AnyAction) -> None:
        self.script.append(action)
        if not self.apply(action):
            self.script.pop()  # a fault that no longer made sense
        elif type(action) is Recover and not action.amnesia and self._injector.is_readmitted(action.process):
            self.world.note_counts[READMITTED] = self.world.note_counts.get(READMITTED, 0) + 1

    def _choose(self, fair: bool) -> AnyAction | None:
        random = self._random
        if not fair and self._adversary is not None and self._adversary.focus:
            action = self._hurry(self._adversary.focus)
            if action is not None:
                return action
        if not fair and self._auditor is not None and (focus := self._auditor.find_focus(self.world)):
            action = self._hurry(focus)
            if action is not None:
                return action
        senders = self.load.list_ready(self.world) if self.load.remaining > 0 else ()
        is_reserved = not fair and self._auditor is not None and self.load.remaining <= self._auditor.reserved
        if senders and not is_reserved and random.random() < (0.3 if fair else self.style.multicast_rate):
            return self._next_multicast(random.choice(senders))
        if not fair and self.style.timer_rate and random.random() < self.style.timer_rate:
            timers = self.list_timers()
            if timers:
                return Fire(*random.choice(timers))
        syncs = self.world.list_busy_disks()
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

    def _hurry(self, processes: tuple[ProcessId, ...]) -> AnyAction | None:
        """An action of some processes alone, mostly; now and then a timer of the first of them. None: any other."""
        random = self._random
        if random.random() < 0.15:
            return None
        disks = [process for process in self.world.list_busy_disks() if process in processes]
        if disks and random.random() < 0.4:
            return Sync(random.choice(disks))
        pairs = [pair for pair in self.links if pair[0] in processes and pair[1] in processes and self.is_open(pair)]
        if pairs and random.random() < 0.9:
            return self._choose_packet(random.choice(pairs), fair=False)
        timers = [key for key in self.list_timers() if key[0] == processes[0]]
        return Fire(*random.choice(timers)) if timers else None

    def _next_multicast(self, sender: ProcessId) -> Multicast:
        message, _ = self.load.next_message(sender)
        return Multicast(sender, message.id, message.destinations, len(message.payload))

    def _choose_link(self, fair: bool) -> Pair | None:
        links, paused, blocked = self.links, self.world.paused, self.world.blocked
        if paused or blocked:
            candidates = [pair for pair in links if pair[1] not in paused and pair not in blocked]
        else:
            candidates = list(links)
        if self._auditor is not None and (held := self._auditor.held):
            candidates = [pair for pair in candidates if pair not in held]
        if not candidates:
            return None
        random = self._random
        pair = random.choice(candidates)
        if fair or not (self.style.starved_share or self.slow or self._auditor is not None):
            return pair
        for _ in range(6):
            if random.random() < self._weigh(pair):
                return pair
            pair = random.choice(candidates)
        return pair

    def _weigh(self, pair: Pair) -> float:
        """How often a link is chosen, compared with others: starved ones and those of slow processes hardly ever."""
        if pair[0] in self.slow or pair[1] in self.slow:
            return STARVED
        if self._auditor is not None and self._auditor.held:
            return 1.0  # all but the links that are held
        weight = self._weights.get(pair)
        if weight is None:
            is_starved = self._random.random() < self.style.starved_share
            is_slow = self._auditor is not None and self._auditor.is_slow(pair)
            weight = self._weights[pair] = STARVED if is_starved or is_slow else 1.0
        return weight

    def _choose_packet(self, pair: Pair, fair: bool) -> AnyAction:
        random = self._random
        place = random.draw_below(self.count_places(pair))
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
            self.seed, status, story, self.script, self.world.steps, self.world.note_counts, self.storage, self._turns
        )

    def _describe_stuck(self) -> str:
        owed = self.world.list_due_deliveries()
        waiting = self.load.list_waiting(self.world)
        if not owed and waiting:
            return f"clients {waiting} never got the answers to their messages, {self.load.in_flight} are open"
        if not owed and not self._changes and (unclosed := self._list_unclosed()):
            return f"processes {unclosed} never learnt that their deliveries are closed"
        if not owed and not self._changes and (unread := self._list_unread()):
            return f"users of processes {unread} never read: they are not told that their process knows enough"
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
