"""The discrete-event scheduler: delays, queues, order under every fault, healing, and equal runs for equal seeds."""

from random import Random

import pytest

from amcast.kernel.events import Event, Leader, LinkReset, Started, Timer
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.inputs.network import Network, NetworkConfig
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.schedulers.calendar import Calendar
from amcast.simulation.schedulers.discrete_event import DiscreteEventScheduler
from amcast.simulation.world.actions import (
    Block,
    Crash,
    Fault,
    Heal,
    Lossy,
    Pause,
    Recover,
    Renew,
    Resume,
    Skew,
    Slow,
    Suggest,
)
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder
from tests.simulation.puppets import MS, Fact, Log, Number, Puppet, React, numbers, times

SECOND = 1000 * MS


class Stage:
    """A timed world of puppets."""

    def __init__(self, react: React, processes: int = 2, seed: int = 0, **network: object) -> None:
        self.topology = Topology.grid(processes, 1)
        self.log: Log = {}
        config = NetworkConfig(**network)  # type: ignore[arg-type]
        self.scheduler = DiscreteEventScheduler(
            Network(config, self.topology, make_stream(seed, "network")), make_stream(seed, "timers")
        )
        self.recorder = Recorder()
        self.puppets: dict[int, Puppet] = {}
        self.world = World(
            self.topology, lambda me: self._make(me, react), self.scheduler, self.recorder, measures_sizes=True
        )
        self.scheduler.world = self.world

    def _make(self, me: int, react: React) -> Puppet:
        self.puppets[me] = Puppet(me, self.topology, react, self.log)
        return self.puppets[me]

    def run(self, *faults: tuple[int, Fault], until_ns: int = 10 * SECOND) -> "Stage":
        for at, fault in faults:
            self.scheduler.schedule(at, fault)
        self.world.start()
        self.scheduler.run(ClientLoad(self.topology, lambda client: ((), 0, 0), 0, 1), until_ns)
        return self


def once(puppet: Puppet, event: Event) -> None:
    """Process 0 sends 0, 1, 2 at once to process 1."""
    if isinstance(event, Started) and puppet.me == 0 and event.incarnation == 0:
        for value in range(3):
            puppet.send(1, Number(value))


def ticking(count: int, gap_ns: int = MS) -> React:
    """Process 0 sends one number after the other to everybody else."""

    def react(puppet: Puppet, event: Event) -> None:
        sent = int(event.name) if isinstance(event, Timer) else -1
        if puppet.me == 0 and (isinstance(event, Timer) or (isinstance(event, Started) and event.incarnation == 0)):
            if sent >= 0:
                puppet.send_all(tuple(p for p in puppet.topology.processes if p != 0), Number(sent))
            if sent + 1 < count:
                puppet.set_timer(str(sent + 1), (gap_ns, gap_ns))

    return react


def test_constant_delay() -> None:
    assert times(Stage(once, delay_ns=5 * MS).run().log, 1) == [5 * MS] * 3


def test_packets_queue_for_bandwidth() -> None:
    stage = Stage(once, delay_ns=5 * MS, bandwidth=1_000_000)
    at = times(stage.run().log, 1)
    size = int(str(stage.recorder.packets[0][4]))
    assert at == [5 * MS + (n + 1) * size * 1000 for n in range(3)]


def test_packets_queue_at_a_busy_process() -> None:
    assert times(Stage(once, delay_ns=5 * MS, cpu_ns=2 * MS).run().log, 1) == [7 * MS, 9 * MS, 11 * MS]


def test_sending_takes_cpu_time() -> None:
    def echo(puppet: Puppet, event: Event) -> None:
        once(puppet, event)
        if puppet.me == 1 and not isinstance(event, Started):
            puppet.send(0, Number(9))

    stage = Stage(echo, delay_ns=5 * MS, cpu_ns=MS, cpu_send_ns=MS)
    assert stage.run().scheduler._busy[1] == 5 * MS + 3 * (MS + MS)


def test_counted_work_takes_cpu_time() -> None:
    def react(puppet: Puppet, event: Event) -> None:
        once(puppet, event)
        if puppet.me == 1 and not isinstance(event, Started):
            puppet.done += 4

    stage = Stage(react, delay_ns=5 * MS, cpu_ns=MS, cpu_work_ns=2 * MS)
    assert stage.run().scheduler._busy[1] == 5 * MS + 3 * (MS + 4 * 2 * MS)


def test_second_thread_sends_while_the_first_handles_packets() -> None:
    def echo(puppet: Puppet, event: Event) -> None:
        once(puppet, event)
        if puppet.me == 1 and not isinstance(event, Started):
            puppet.send(0, Number(9))

    scheduler = Stage(echo, delay_ns=5 * MS, cpu_ns=MS, cpu_send_ns=MS, io_thread=True).run().scheduler
    assert scheduler._busy[1] == 5 * MS + 3 * MS
    assert scheduler._io_busy[1] == 5 * MS + MS + 3 * MS


def test_busy_process_handles_queued_packets_in_one_step() -> None:
    stage = Stage(ticking(6), cpu_ns=3 * MS, burst=True).run()
    assert numbers(stage.log, 1, 0) == list(range(6))
    assert stage.puppets[1].bursts > 0


def test_without_bursts_each_step_has_one_event() -> None:
    assert Stage(ticking(6), cpu_ns=3 * MS).run().puppets[1].bursts == 0


def test_disk_write_takes_time_and_covers_waiting_records() -> None:
    def react(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Started) and puppet.me == 0:
            puppet.persist(Fact(0))
            for value in (1, 2, 3):
                puppet.set_timer(str(value), (value * MS, value * MS))
        elif isinstance(event, Timer):
            puppet.persist(Fact(int(event.name)))
            puppet.send(1, Number(int(event.name)))

    stage = Stage(react, delay_ns=MS, disk_ns=4 * MS).run()
    assert numbers(stage.log, 1, 0) == [1, 2, 3]
    assert times(stage.log, 1) == [6 * MS, 10 * MS, 10 * MS], "the second write begins when the first is over"
    assert stage.world.disks[0].records == [Fact(0), Fact(1), Fact(2), Fact(3)]


def disturbances(random: Random, last_ns: int) -> list[tuple[int, Fault]]:
    """Pauses, slowness, cuts and losses, overlapping, all over in the end."""
    faults: list[tuple[int, Fault]] = []
    for _ in range(random.randint(2, 9)):
        start = random.randrange(last_ns)
        end = start + random.randrange(last_ns // 2)
        pair = random.choice(((Pause(1), Resume(1)), (Slow(1, 3 * MS), Slow(1, 0)), (Block(((0, 1),)), Heal())))
        faults += [(start, pair[0]), (end, pair[1])]
        if random.random() < 0.4:
            faults += [(start, Lossy(0.5)), (end, Lossy(0.0))]
    return [
        *faults,
        (2 * last_ns, Heal()),
        (2 * last_ns, Resume(1)),
        (2 * last_ns, Slow(1, 0)),
        (2 * last_ns, Lossy(0.0)),
    ]


@pytest.mark.parametrize("network", [{}, {"cpu_ns": MS // 2}, {"cpu_ns": MS // 2, "burst": True}, {"burst": True},
                                     {"distribution": "exponential", "spread": 2.0}], ids=str)  # fmt: skip
def test_fifo_links_keep_order_and_lose_nothing_under_faults(network: dict[str, object]) -> None:
    for seed in range(60):
        stage = Stage(ticking(40), seed=seed, retransmit_ns=7 * MS, **network)
        stage.run(*disturbances(make_stream(seed, "disturbances"), 40 * MS), until_ns=60 * SECOND)
        assert numbers(stage.log, 1, 0) == list(range(40)), f"seed {seed}"


def test_reordering_links_reorder_but_lose_nothing() -> None:
    stage = Stage(ticking(200), links="reordering", distribution="uniform", spread=1.0, delay_ns=5 * MS).run()
    received = numbers(stage.log, 1, 0)
    assert sorted(received) == list(range(200)) != received


def test_raw_links_lose_and_duplicate() -> None:
    stage = Stage(ticking(300), links="raw", loss=0.2, duplication=0.2).run()
    received = numbers(stage.log, 1, 0)
    lost = 300 - len(set(received))
    doubled = len(received) - len(set(received))
    assert 30 < lost < 100
    assert 20 < doubled < 100
    assert sum(row[6] is None for row in stage.recorder.packets) == lost


def test_self_sends_are_never_lost() -> None:
    def react(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Started):
            for value in range(200):
                puppet.send(puppet.me, Number(value))

    assert numbers(Stage(react, processes=1, links="raw", loss=0.5).run().log, 0, 0) == list(range(200))


def test_paused_process_takes_no_step_and_then_catches_up() -> None:
    stage = Stage(ticking(10)).run((3 * MS + 1, Pause(1)), (4 * MS, Suggest(1, 0, 0)), (20 * MS, Resume(1)))
    at = [at for at, _ in stage.log[1]]
    assert not [time for time in at if 3 * MS + 1 < time < 20 * MS]
    assert numbers(stage.log, 1, 0) == list(range(10))
    assert any(isinstance(event, Leader) for _, event in stage.log[1]), "what the oracle said waits, too"


def test_clocks_differ_by_offset_and_drift() -> None:
    stage = Stage(ticking(10)).run((5 * MS + 1, Skew(1, 100 * MS, 0.5)))
    assert times(stage.log, 1)[-1] == 11 * MS + 100 * MS + 11 * MS // 2
    assert times(stage.log, 1)[0] == 2 * MS


def test_clocks_are_never_negative() -> None:
    stage = Stage(ticking(3)).run((0, Skew(1, -SECOND)))
    assert times(stage.log, 1) == [0, 0, 0]


def test_crash_loses_packets_and_peers_get_a_link_reset_first() -> None:
    stage = Stage(ticking(10), delay_ns=3 * MS).run((5 * MS + 1, Crash(0)), (8 * MS, Recover(0)))
    received = [event for _, event in stage.log[1]]
    assert numbers(stage.log, 1, 0) == [0, 1], "2 was under way when its sender crashed"
    assert LinkReset(0, 1) in received
    lost = [row for row in stage.recorder.packets if row[6] is None]
    assert len(lost) == 3


def test_timed_link_reset_reaches_both_ends() -> None:
    stage = Stage(ticking(8), delay_ns=3 * MS).run((4 * MS + 1, Renew(0, 1)))
    assert [event for _, event in stage.log[0] if isinstance(event, LinkReset)] == [LinkReset(1, 0)]
    assert [event for _, event in stage.log[1] if isinstance(event, LinkReset)] == [LinkReset(0, 0)]
    received = numbers(stage.log, 1, 0)
    assert received == [0, *range(received[1], 8)], "a gap, and then everything in order"
    assert received[1] > 1
    assert not stage.world.stale


def test_equal_seeds_give_equal_runs() -> None:
    def run(seed: int) -> list[object]:
        stage = Stage(ticking(40), processes=3, seed=seed, distribution="normal", spread=0.5, cpu_ns=MS // 3)
        stage.run(*disturbances(make_stream(7), 40 * MS))
        return [stage.log, stage.recorder.packets]

    assert run(1) == run(1)
    assert run(1) != run(2)


def test_calendar_is_fifo_among_equals_and_keeps_the_rest() -> None:
    calendar = Calendar()
    for at, name in ((5, "c"), (3, "a"), (3, "b"), (5, "d")):
        calendar.add(at, (name,))
    taken = []
    for entry in calendar.pop_due():
        taken.append(entry[0])
        if entry == ("a",):
            calendar.add(3, ("added meanwhile",))
    assert taken == ["a", "b", "added meanwhile"]
    assert calendar.peek() == 5
    for entry in calendar.pop_due():
        assert entry == ("c",)
        break
    assert calendar.peek() == 5
    assert list(calendar.pop_due()) == [("d",)]
    assert calendar.peek() is None
