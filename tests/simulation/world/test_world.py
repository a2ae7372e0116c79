"""What actions do to a world: disks that hold back effects, links that live and die, positions, owed deliveries."""

from amcast.kernel.events import Event, Leader, LinkReset, Receive, Started, Submit, Timer
from amcast.kernel.ids import message_id
from amcast.kernel.message import Message
from amcast.kernel.spec import Links
from amcast.kernel.topology import Topology
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import (
    Arrive,
    Block,
    Crash,
    Drop,
    Fire,
    Heal,
    Multicast,
    Pause,
    Recover,
    Renew,
    Repeat,
    Resume,
    Suggest,
    Sync,
)
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder
from tests.simulation.puppets import Fact, Log, Number, Puppet, React, numbers


class Table:
    """An untimed world of puppets, two of them in one group, one in another, and a client."""

    def __init__(self, react: React, links: Links = "fifo") -> None:
        self.topology = Topology({0: (0, 1), 1: (2,)}, (3,))
        self.log: Log = {}
        self.pool = PendingActions(links)
        self.recorder = Recorder()
        self.world = World(
            self.topology, lambda me: Puppet(me, self.topology, react, self.log), self.pool, self.recorder
        )
        self.pool.world = self.world
        self.world.start()

    def do(self, *actions: object) -> list[bool]:
        return [self.pool.apply(action) for action in actions]  # type: ignore[arg-type]

    def events_of(self, process: int) -> list[Event]:
        return [event for _, event in self.log[process] if not isinstance(event, Started)]


def arrive(source: int, target: int, place: int = 0) -> Arrive:
    return Arrive(target, ((source, place),))


def message(sequence: int, destinations: tuple[int, ...] = (0,)) -> Message:
    return Message(message_id(3, sequence), 3, destinations)


def quiet(puppet: Puppet, event: Event) -> None:
    pass


def on_request(*acts: str) -> React:
    """Process 0 acts when its user multicasts: p(ersist), e(nd), s(end to 1), d(eliver), t(imer), n(ote)."""

    def react(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit) and puppet.me == 0:
            for number, act in enumerate("".join(acts)):
                match act:
                    case "p":
                        puppet.persist(Fact(number))
                    case "e":
                        puppet.persist(Fact(number), after_deliveries=True)
                    case "s":
                        puppet.send(1, Number(number))
                    case "d":
                        puppet.deliver(event.message)
                    case "t":
                        puppet.set_timer("t", (0, 0))
                    case "n":
                        puppet.note("seen")

    return react


REQUEST = Multicast(0, message_id(0, 0), (0,))


def test_only_timers_pass_a_write_that_is_not_durable() -> None:
    table = Table(on_request("spstdn"))
    table.do(REQUEST)
    assert len(table.pool.links[(0, 1)]) == 1, "what came before the write is under way"
    assert table.world.history[0] == []
    assert table.world.note_counts == {}
    assert table.pool.list_timers() == [(0, "t")]
    assert table.do(Sync(0)) == [True]
    assert len(table.pool.links[(0, 1)]) == 2
    assert table.world.history[0] == [REQUEST.message]
    assert table.world.note_counts == {"seen": 1}
    assert table.do(Sync(0)) == [False]


def test_later_step_waits_for_an_earlier_write() -> None:
    def react(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.persist(Fact(1))
        elif isinstance(event, Leader):
            puppet.send(1, Number(1))

    table = Table(react)
    table.do(REQUEST, Suggest(0, 0, 0))
    assert not table.pool.links
    table.do(Sync(0))
    assert (0, 1) in table.pool.links


def test_writes_become_durable_one_by_one() -> None:
    table = Table(on_request("pspsps"))
    table.do(REQUEST, Sync(0, 1))
    assert len(table.pool.links[(0, 1)]) == 1
    assert table.world.disks[0].busy
    table.do(Sync(0, 2))
    assert len(table.pool.links[(0, 1)]) == 3
    assert not table.world.disks[0].busy


def test_crash_loses_a_pending_write_and_effects_behind_it() -> None:
    table = Table(on_request("psd"))
    table.do(REQUEST, Crash(0), Recover(0))
    assert Started((), 1) in [event for _, event in table.log[0]]
    assert table.world.history[0] == []


def test_write_may_survive_a_crash_unacknowledged() -> None:
    table = Table(on_request("ppsd"))
    table.do(REQUEST, Crash(0, 1), Recover(0))
    assert Started((Fact(0),), 1) in [event for _, event in table.log[0]]
    assert table.world.history[0] == [], "what waited for it is lost nevertheless"


def test_write_after_deliveries_survives_only_if_they_happened() -> None:
    for acts, durable, survive in (("pepe", 4, 4), ("pdpep", 5, 2), ("sede", 2, 1)):
        table = Table(on_request(acts))
        table.do(REQUEST, Crash(0, durable), Recover(0))
        records = next(event.records for _, event in table.log[0][1:] if isinstance(event, Started))
        assert len(records) == survive, acts
    table = Table(on_request("pde"))
    table.do(REQUEST, Sync(0, 1))
    assert table.world.history[0] == [REQUEST.message]
    table.do(Crash(0, 1), Recover(0))
    assert Started((Fact(0), Fact(2)), 1) in [event for _, event in table.log[0]]


def test_amnesia_empties_the_disk() -> None:
    table = Table(on_request("p"))
    table.do(REQUEST, Sync(0), Crash(0), Recover(0, True))
    assert table.log[0][-1][1] == Started((), 1)


def chatter(puppet: Puppet, event: Event) -> None:
    """Everybody tells 0 and 1 when the oracle speaks: a number that tells the leader it named."""
    if isinstance(event, Leader):
        for target in (0, 1):
            if target != puppet.me:
                puppet.send(target, Number(event.leader))


def test_crash_loses_packets_in_flight_both_ways() -> None:
    table = Table(chatter)
    table.do(Suggest(0, 0, 1), Suggest(1, 0, 1), Suggest(2, 0, 1))
    table.do(Crash(0))
    assert sorted(table.pool.links) == [(2, 1)]
    assert sum(row[6] is None for row in table.recorder.packets) == 3
    table.do(Suggest(1, 0, 1))
    assert (1, 0) not in table.pool.links, "nobody is there to get it, ever"


def test_peers_get_a_link_reset_first_and_lose_earlier_packets() -> None:
    table = Table(chatter)
    table.do(Crash(0), Recover(0), Suggest(0, 0, 1))
    table.do(Suggest(1, 0, 0))
    assert (1, 0) not in table.pool.links, "1 still speaks to the old incarnation"
    assert table.do(arrive(0, 1), arrive(0, 1)) == [True, True]
    assert table.events_of(1)[-2:] == [LinkReset(0, 1), Receive(0, Number(1))]
    table.do(Suggest(1, 0, 0))
    assert table.do(arrive(1, 0)) == [True]
    assert not [event for event in table.events_of(0) if isinstance(event, LinkReset)], (
        "a new incarnation begins with new links"
    )


def test_link_reset_comes_first_on_unordered_links() -> None:
    table = Table(chatter, "raw")
    table.do(Crash(0), Recover(0), Suggest(0, 0, 1))
    assert table.pool.count_places((0, 1)) == 1
    assert table.do(Drop(0, 1, 0), Repeat(0, 1, 0)) == [False, False]
    table.do(arrive(0, 1))
    assert table.events_of(1)[-1] == LinkReset(0, 1)


def test_link_reset_reaches_both_ends() -> None:
    table = Table(chatter)
    table.do(Suggest(0, 0, 1), Suggest(1, 0, 1), Renew(0, 1))
    assert table.do(arrive(0, 1), arrive(1, 0)) == [True, True]
    assert table.events_of(0)[-1] == LinkReset(1, 0)
    assert table.events_of(1)[-1] == LinkReset(0, 0)
    assert not table.world.stale
    assert numbers(table.log, 1, 0) == []
    table.do(Suggest(0, 0, 1), arrive(0, 1))
    assert numbers(table.log, 1, 0) == [1]


def test_crash_during_a_link_reset_leaves_no_stale_link() -> None:
    table = Table(chatter)
    table.do(Renew(0, 1), Crash(0), Recover(0), arrive(0, 1))
    assert table.events_of(1)[-1] == LinkReset(0, 1)
    assert not {pair for pair in table.world.stale if 2 not in pair and 3 not in pair}


def test_order_and_places_by_kind_of_link() -> None:
    kinds: tuple[Links, ...] = ("fifo", "reordering", "raw")
    for links in kinds:
        table = Table(chatter, links)
        table.do(Suggest(2, 0, 1), Suggest(2, 0, 0))
        assert table.do(arrive(2, 0, 1)) == [links != "fifo"]
        assert table.do(Drop(2, 0), Repeat(2, 1)) == [links == "raw"] * 2


def test_duplicated_packets_arrive_twice_and_lost_ones_never() -> None:
    table = Table(chatter, "raw")
    table.do(Suggest(2, 0, 1), Repeat(2, 0), Drop(2, 1))
    assert table.do(arrive(2, 0), arrive(2, 0), arrive(2, 0), arrive(2, 1)) == [True, True, False, False]


def test_blocked_links_and_paused_processes_hold_back() -> None:
    table = Table(chatter)
    table.do(Suggest(2, 0, 1), Block(((2, 0),)), Pause(1))
    assert table.do(arrive(2, 0), arrive(2, 1), Suggest(1, 0, 0)) == [False] * 3
    assert table.do(Heal(), Resume(1), arrive(2, 0), arrive(2, 1)) == [True] * 4


def test_burst_is_one_step_in_the_order_of_each_link() -> None:
    table = Table(chatter)
    table.do(Suggest(2, 0, 1), Suggest(2, 0, 0), Suggest(1, 0, 1))
    steps = table.world.steps
    table.do(Arrive(0, ((2, 0), (1, 0), (2, 0))))
    assert table.world.steps == steps + 1
    assert numbers(table.log, 0, 2) == [1, 0]


def test_replaced_or_cancelled_timer_does_not_fire() -> None:
    def react(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Started) and puppet.me == 0:
            puppet.set_timer("a", (5, 9))
            puppet.set_timer("b", (5, 9))
            puppet.set_timer("a", (50, 90))
            puppet.cancel_timer("b")

    table = Table(react)
    assert table.do(Fire(0, "b"), Fire(0, "a"), Fire(0, "a")) == [False, True, False]
    assert table.events_of(0) == [Timer("a")]
    assert table.world.now >= 50


def delivering(puppet: Puppet, event: Event) -> None:
    """Delivers what the user multicasts, and after a restart everything again that its disk knows."""
    if isinstance(event, Submit):
        puppet.persist(Fact(event.message.id))
        puppet.deliver(event.message)
    elif isinstance(event, Started):
        for record in event.records:
            assert isinstance(record, Fact)
            puppet.deliver(Message(record.value, 0, (0,)))


def own(sequence: int) -> Multicast:
    return Multicast(0, message_id(0, sequence), (0,))


def test_replayed_positions_are_not_delivered_twice() -> None:
    table = Table(delivering)
    table.do(own(0), own(1), Sync(0), Crash(0), Recover(0), own(2), Sync(0))
    assert table.world.history[0] == [message_id(0, n) for n in range(3)]
    assert [(row[2], row[3]) for row in table.recorder.deliveries] == [(n, message_id(0, n)) for n in range(3)]
    assert table.world.violations == []


def test_replay_of_another_message_at_a_position_is_a_violation() -> None:
    def liar(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Started) and event.incarnation == 1:
            puppet.deliver(message(7))
        elif isinstance(event, Submit):
            puppet.deliver(event.message)

    table = Table(liar)
    table.do(own(0), Crash(0), Recover(0))
    assert "in an earlier incarnation" in table.world.violations[0]


def test_positions_have_no_gaps() -> None:
    def jumper(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.position += 1
            puppet.deliver(event.message)

    table = Table(jumper)
    table.do(own(0))
    assert "at position 1" in table.world.violations[0]


def installing(position: int) -> React:
    def react(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.deliver(event.message)
        elif isinstance(event, Leader):
            puppet.install_position(position)

    return react


def test_installed_snapshot_counts_as_delivered() -> None:
    table = Table(installing(2))
    table.do(own(0), own(1))
    assert [process for _, process in table.world.list_due_deliveries()] == [1, 1]
    table.do(Suggest(1, 0, 0))
    assert table.world.history[1] == table.world.history[0]
    assert table.world.list_due_deliveries() == []
    assert not table.world.violations


def test_snapshot_beyond_every_member_is_a_violation() -> None:
    table = Table(installing(2))
    table.do(own(0), Suggest(1, 0, 0))
    assert "no member has reached" in table.world.violations[0]


def test_restart_that_skips_what_was_not_delivered_is_a_violation() -> None:
    def resuming(puppet: Puppet, event: Event) -> None:
        if isinstance(event, Submit):
            puppet.deliver(event.message)
        elif isinstance(event, Leader):
            puppet.resume_position(event.leader)

    table = Table(resuming)
    table.do(own(0), Suggest(0, 0, 1))
    assert not table.world.violations
    table.do(Suggest(0, 0, 2))
    assert table.world.violations == ["process 0 resumed at position 2, and had delivered 1 messages"]


def test_due_deliveries() -> None:
    table = Table(delivering)
    first, second = own(0), Multicast(3, message_id(3, 0), (0, 1))
    table.do(first, second)
    assert table.world.list_due_deliveries() == [
        (first.message, 0),
        (first.message, 1),
        *((second.message, process) for process in (0, 1, 2)),
    ]
    table.do(Sync(0), Crash(1))
    assert table.world.list_due_deliveries() == [(second.message, 0), (second.message, 2)], "nothing at who is down"
    table.do(Crash(3))
    assert table.world.list_due_deliveries() == [], "its sender is down and nobody delivered it"


def test_a_message_is_multicast_once() -> None:
    table = Table(delivering)
    assert table.do(own(0), own(0), Sync(0), own(0)) == [True, False, True, False]


def test_action_that_cannot_happen_takes_no_time() -> None:
    table = Table(quiet)
    before = table.world.now
    assert table.do(Sync(0), Fire(0, "t"), arrive(0, 1), Recover(0), Resume(0)) == [False] * 5
    assert table.world.now == before
