"""What monitors judge of deliveries themselves."""

from collections.abc import Sequence

import pytest

from amcast.kernel.effects import Deliver, Effect, Note, Send
from amcast.kernel.events import Receive, Started
from amcast.kernel.message import Body, Message, Record
from amcast.kernel.process import Process
from amcast.kernel.statements import Answers, Domain, Listener, StatementTable
from amcast.kernel.topology import Topology
from amcast.protocols.skeen.process import SPEC
from amcast.simulation.monitors.monitors import MonitoredDisk, Monitoring, Monitors


class JudgedWorld:
    """A world of which only the violations matter."""

    def __init__(self) -> None:
        self.steps = 0
        self.disks: dict[int, MonitoredDisk] = {}
        self.processes: dict[int, Process] = {}
        self.history: dict[int, list[int]] = {}
        self.positions: dict[int, int] = {}
        self.topology = Topology.grid(1, 1, 1)
        self.violations: list[str] = []

    def report_violation(self, process: int, sentence: str) -> None:
        self.violations.append(sentence)


def make_nothing(process: int) -> Process:
    raise AssertionError("no restart is rehearsed here")


def judge(*deliveries: tuple[int, int, tuple[int, int]], discards: bool = False) -> list[str]:
    """The violations of deliveries of process 0: message, position and rank of each."""
    world = JudgedWorld()
    monitors = Monitors(Monitoring(StatementTable(), make_nothing, is_ranked=True, discards=discards), world)
    for id, position, (time, tie) in deliveries:
        monitors.hear_delivery(0, Deliver(Message(id, 9, (0,), b""), position, time, tie))
    return world.violations


@pytest.mark.parametrize("second", [(3, 9), (4, 1)])
def test_process_delivers_in_the_order_of_ranks(second: tuple[int, int]) -> None:
    (violation,) = judge((7, 0, (4, 2)), (8, 1, second))
    assert "ascending ranks" in violation
    assert "message 8" in violation


@pytest.mark.parametrize("second", [(4, 2), (4, 3), (5, 0)])
def test_ranks_may_stand_still_and_ascend(second: tuple[int, int]) -> None:
    assert not judge((7, 0, (4, 2)), (8, 1, second))


def test_restarted_process_repeats_lower_ranks() -> None:
    assert not judge((7, 0, (4, 2)), (8, 1, (5, 2)), (7, 0, (4, 2)), (8, 1, (5, 2)), (9, 2, (6, 0)))


def test_configurations_count_ranks_anew() -> None:
    assert not judge((7, 0, (4, 2)), (8, 1, (1, 1)), discards=True)


class Ask(Body, frozen=True):
    """Asks a process for a number."""

    number: int


class Answer(Body, frozen=True):
    """The answer."""

    number: int


def owe_even_numbers(listener: Listener, process: int, sender: int, body: Ask) -> Answers | None:
    """Processes answer questions for even numbers."""
    return None if body.number % 2 else lambda answer: type(answer) is Answer and answer.number == body.number


@pytest.mark.parametrize(
    ("events", "sends", "expected"),
    [
        ((Receive(1, Ask(2)),), (Send((2, 1), Answer(2)),), []),
        ((Receive(1, Ask(2)),), (), ["answers"]),
        ((Receive(1, Ask(2)),), (Send((1,), Answer(4)), Send((2,), Answer(2))), ["answers"]),
        ((Receive(1, Ask(3)),), (), []),
        ((Receive(1, Answer(2)),), (), []),
        ((Receive(1, Ask(2)), Receive(1, Ask(3))), (), []),
    ],
    ids=["answered", "silent", "answered wrongly", "nothing owed", "no question", "several events"],
)
def test_process_answers_in_the_step_in_which_it_is_asked(
    events: Sequence[Receive], sends: Sequence[Send], expected: list[str]
) -> None:
    world = JudgedWorld()
    table = StatementTable(duties={Ask: owe_even_numbers})
    monitors = Monitors(Monitoring(table, make_nothing, is_ranked=True), world)
    monitors.hear_step(0, events, sends)
    assert [rule for violation in world.violations for rule in ("answers",) if rule in violation] == expected


def test_clock_of_a_process_has_passed_what_it_delivers() -> None:
    """A new process of Skeen has clock 0."""
    world = JudgedWorld()
    world.processes[0] = SPEC.process(0, Topology.grid(1, 1, 1), SPEC.configure({}))
    monitors = Monitors(Monitoring(StatementTable(), make_nothing, is_ranked=True), world)
    monitors.hear_delivery(0, Deliver(Message(7, 9, (0,), b""), 0, 0, 7))
    assert not world.violations
    monitors.hear_delivery(0, Deliver(Message(8, 9, (0,), b""), 1, 1, 8))
    (violation,) = world.violations
    assert "clock of deliveries" in violation


class Stored(Record, frozen=True):
    """Any record."""


class StoredRecords:
    """A disk."""

    def __init__(self, *records: Record) -> None:
        self.records: list[Record] = list(records)
        self.waiting: list[Effect] = []


@pytest.mark.parametrize(
    ("has_first_record", "records", "count"), [(True, (), 1), (True, (Stored(),), 0), (False, (), 0)]
)
def test_process_begins_with_a_record(has_first_record: bool, records: tuple[Record, ...], count: int) -> None:
    world = JudgedWorld()
    world.disks[0] = StoredRecords(*records)
    table = StatementTable(has_first_record=has_first_record)
    Monitors(Monitoring(table, make_nothing, is_ranked=True), world).hear_boot(0)
    assert len(world.violations) == count


def find_skipped(positions: int, waiting: list[Effect], first: int) -> list[str]:
    """The violations of process 0, which has made some deliveries and writes a checkpoint with those from a position
    on."""
    world = JudgedWorld()
    disk = world.disks[0] = StoredRecords()
    disk.waiting += waiting
    world.positions[0] = positions
    table = StatementTable(records={Stored: lambda listener, source, record: listener.retain(source, first)})
    Monitors(Monitoring(table, make_nothing, is_ranked=True), world).hear_checkpoint(0, Stored())
    return world.violations


def test_checkpoint_has_every_delivery_that_has_not_left() -> None:
    installed = Note("installed", None, 6.0)
    assert not find_skipped(4, [], 4)
    assert not find_skipped(4, [installed], 6)
    (violation,) = find_skipped(4, [], 5)
    assert "has deliveries from 5 on in a checkpoint; those from 4 on have not left it" in violation
    assert len(find_skipped(4, [installed], 7)) == 1


def test_restart_skips_no_delivery_but_those_of_a_state_of_others() -> None:
    world = JudgedWorld()
    disk = world.disks[0] = StoredRecords(Stored())
    world.positions[0] = 4
    monitors = Monitors(Monitoring(StatementTable(), make_nothing, is_ranked=True), world)
    restarts = (Note("installed", None, 4.0),), (Note("installed", None, 6.0),)
    for effects in restarts:
        monitors.hear_step(0, (Started(tuple(disk.records), 1),), effects)
    (violation,) = world.violations
    assert "restarts at position 6; deliveries from 4 on never left it" in violation
    disk.waiting.append(Note("installed", None, 6.0))
    monitors.hear_crash(0)
    disk.waiting.clear()
    monitors.hear_step(0, (Started(tuple(disk.records), 2),), restarts[1])
    assert len(world.violations) == 1


class LossHeard(Body, frozen=True):
    """Tells of losses of memory."""

    losses: tuple[int, ...]


def test_snapshot_is_heard_of_who_hears_of_another_loss() -> None:
    """What the snapshot of Skeen states here is a clock that nobody acknowledged."""
    world = JudgedWorld()
    group = Domain("group 0", (0, 1))
    world.processes[0] = skeen = SPEC.process(0, Topology.grid(1, 1, 1), SPEC.configure({}))
    table = StatementTable(
        states={type(skeen.snapshot()): lambda listener, source, state: listener.rely_on_clock(group, 0, 1, 5, 0)},
        losses={LossHeard: lambda body: body.losses},
    )
    monitors = Monitors(Monitoring(table, make_nothing, is_ranked=True), world)
    counts = []
    for losses in ((0, 3), (0, 0), (0, 3), (0, 3), (0, 4)):
        monitors.hear_step(0, (Receive(1, LossHeard(losses)),), ())
        counts.append(len(world.violations))
        monitors.hear_memory_loss(1)
    assert counts == [0, 0, 1, 1, 2], "the first one is heard before anybody has lost its memory"
