"""Each rule of the monitors: what breaks it, and what looks alike and does not."""

from collections.abc import Callable

import pytest

from amcast.kernel.message import Message, Record
from amcast.kernel.statements import Domain, StatementTable
from amcast.simulation.monitors.durable_state import DurableState
from amcast.simulation.monitors.ledger import Ledger

GROUP = Domain("group 0", (0, 1, 2))
VOLATILE = Domain("all servers", (0, 1, 2), is_durable=False)


class Durable(Record, frozen=True):
    """A record that states a promise, a vote for slot 0, a clock and a log, all of one number."""

    number: int


def state_record(listener: DurableState, source: int, record: Durable) -> None:
    listener.promise(GROUP, source, record.number)
    listener.vote(GROUP, source, record.number, 0)
    listener.hold(GROUP, source, record.number, record.number)
    listener.publish_clock(GROUP, source, record.number, record.number)


class Scene:
    """A ledger with three members. `disk` has the records of every member."""

    def __init__(self) -> None:
        self.broken: list[str] = []
        self.disk: list[Record] = []
        self.delivered: set[int] = set()
        self._states = {
            process: DurableState(StatementTable(records={Durable: state_record}))  # type: ignore[dict-item]
            for process in GROUP.members
        }
        self.ledger = Ledger(self._report, self._durable, lambda process: self.delivered)

    def _report(self, process: int, rule: str, sentence: str) -> None:
        self.broken.append(rule)

    def _durable(self, process: int) -> DurableState:
        self._states[process].follow(process, self.disk)
        return self._states[process]

    def vote_all(self, ballot: int, slot: int, *members: int) -> None:
        for member in members:
            self.ledger.vote(VOLATILE, member, ballot, slot)


@pytest.fixture
def scene() -> Scene:
    return Scene()


STATED: dict[str, Callable[[Ledger], None]] = {
    "promise": lambda ledger: ledger.promise(GROUP, 1, 7),
    "vote": lambda ledger: ledger.vote(GROUP, 1, 7, 0),
    "log": lambda ledger: ledger.hold(GROUP, 1, 7, 7),
    "clock": lambda ledger: ledger.publish_clock(GROUP, 1, 7, 7),
}


@pytest.mark.parametrize("name", STATED)
def test_statement_needs_its_durable_record(scene: Scene, name: str) -> None:
    scene.disk.append(Durable(6))
    STATED[name](scene.ledger)
    assert scene.broken == ["persist before send"]


@pytest.mark.parametrize("name", STATED)
def test_statement_with_a_durable_record_is_sound(scene: Scene, name: str) -> None:
    scene.disk += [Durable(6), Durable(7)]
    STATED[name](scene.ledger)
    assert not scene.broken


@pytest.mark.parametrize("name", STATED)
def test_process_that_never_persists_has_nothing_to_wait_for(scene: Scene, name: str) -> None:
    STATED[name](scene.ledger)
    assert not scene.broken


def test_checkpoint_that_lacks_a_vote_covers_it_no_more(scene: Scene) -> None:
    scene.disk.append(Durable(7))
    STATED["vote"](scene.ledger)
    scene.disk[:] = [Durable(5)]
    STATED["vote"](scene.ledger)
    assert scene.broken == ["persist before send"]


def test_vote_below_a_sent_promise_breaks_it(scene: Scene) -> None:
    scene.ledger.promise(VOLATILE, 1, 7)
    scene.ledger.report_votes(VOLATILE, 1, 7, 0, {})
    scene.ledger.vote(VOLATILE, 1, 6, 3)
    assert scene.broken == ["promise kept"]


def test_vote_that_a_promise_reported_may_be_sent_again(scene: Scene) -> None:
    scene.ledger.promise(VOLATILE, 1, 7)
    scene.ledger.report_votes(VOLATILE, 1, 7, 2, {3: (6, "a")})
    scene.ledger.vote(VOLATILE, 1, 6, 3)
    scene.ledger.vote(VOLATILE, 1, 6, 1)
    assert not scene.broken


def test_acknowledged_log_below_a_sent_promise_breaks_it(scene: Scene) -> None:
    scene.ledger.promise(VOLATILE, 1, 7)
    scene.ledger.hold(VOLATILE, 1, 6, 1)
    assert scene.broken == ["promise kept"]


def test_vote_implies_a_promise(scene: Scene) -> None:
    scene.ledger.vote(VOLATILE, 1, 7, 3)
    scene.ledger.promise(VOLATILE, 1, 6)
    assert scene.broken == ["promise kept"]


def test_lower_promise_after_a_higher_one_breaks_it(scene: Scene) -> None:
    scene.ledger.promise(VOLATILE, 1, 7)
    scene.ledger.promise(VOLATILE, 1, 6)
    assert scene.broken == ["promise kept"]


def test_promise_must_report_every_vote_that_was_sent(scene: Scene) -> None:
    scene.ledger.vote(VOLATILE, 1, 6, 3)
    scene.ledger.report_votes(VOLATILE, 1, 7, 3, {})
    assert scene.broken == ["nothing forgotten"]


def test_vote_for_a_decided_slot_needs_no_report(scene: Scene) -> None:
    scene.ledger.vote(VOLATILE, 1, 6, 3)
    scene.ledger.report_votes(VOLATILE, 1, 7, 4, {})
    assert not scene.broken


@pytest.mark.parametrize(
    ("held", "delivered", "entries", "expected"),
    [
        (6, set(), {3: "a"}, []),
        (6, {3}, {}, []),
        (7, set(), {}, []),
        (6, set(), {}, ["nothing forgotten"]),
    ],
    ids=["reported", "delivered", "of an earlier ballot", "left out"],
)
def test_reported_state_has_what_was_accepted_in_its_ballot(
    scene: Scene, held: int, delivered: set[int], entries: dict[int, str], expected: list[str]
) -> None:
    scene.delivered = delivered
    scene.ledger.vote(VOLATILE, 1, 6, 3)
    scene.ledger.report_state(VOLATILE, 1, 8, (held, 0), 0, entries)
    assert scene.broken == expected


def rejoin(scene: Scene, member: int, *promising: int) -> None:
    """A member loses its memory; others promise it ballot 5."""
    scene.ledger.forget(member)
    scene.ledger.targets = (member,)
    for other in promising:
        scene.ledger.report_votes(VOLATILE, other, 5, 0, {3: (4, "a")})
    scene.ledger.targets = ()


def test_process_that_lost_its_memory_may_contradict_itself(scene: Scene) -> None:
    scene.ledger.vote(VOLATILE, 1, 6, 3)
    scene.ledger.promise(VOLATILE, 1, 7)
    scene.ledger.publish_clock(VOLATILE, 1, 7, 9)
    rejoin(scene, 1, 0, 2)
    scene.ledger.promise(VOLATILE, 1, 5)
    scene.ledger.report_votes(VOLATILE, 1, 7, 0, {})
    scene.ledger.publish_clock(VOLATILE, 1, 5, 2)
    assert not scene.broken


@pytest.mark.parametrize(
    ("promising", "expected"), [((0, 2), []), ((0,), ["majority of others"]), ((), ["majority of others"])]
)
def test_member_without_memory_votes_again_after_promises_of_a_majority_of_others(
    scene: Scene, promising: tuple[int, ...], expected: list[str]
) -> None:
    scene.ledger.vote(VOLATILE, 1, 4, 3)
    rejoin(scene, 1, *promising)
    scene.ledger.report_votes(VOLATILE, 1, 7, 0, {3: (4, "a")})
    assert scene.broken == expected


@pytest.mark.parametrize(
    ("below", "votes", "expected"),
    [
        (0, {3: (4, "a")}, []),
        (0, {3: (5, "a")}, []),
        (4, {}, []),
        (0, {}, ["nothing forgotten"]),
        (3, {3: (2, "b")}, ["nothing forgotten"]),
    ],
)
def test_member_without_memory_knows_what_its_votes_have_decided(
    scene: Scene, below: int, votes: dict[int, tuple[int, str]], expected: list[str]
) -> None:
    scene.ledger.propose(VOLATILE, 0, 4, 3, "a")
    scene.vote_all(4, 3, 0, 1)
    rejoin(scene, 1, 0, 2)
    scene.ledger.report_votes(VOLATILE, 1, 7, below, votes)
    assert scene.broken == expected


def test_member_without_memory_need_not_know_what_was_never_decided(scene: Scene) -> None:
    scene.ledger.propose(VOLATILE, 0, 4, 3, "a")
    scene.vote_all(4, 3, 1)
    rejoin(scene, 1, 0, 2)
    scene.ledger.report_votes(VOLATILE, 1, 7, 0, {})
    assert not scene.broken


def test_member_without_memory_gets_all_of_its_log_back(scene: Scene) -> None:
    scene.ledger.hold(VOLATILE, 1, 4, 6)
    scene.ledger.forget(1)
    scene.ledger.hold(VOLATILE, 1, 4, 5)
    assert scene.broken == ["nothing forgotten"]


@pytest.mark.parametrize(
    ("known", "expected"),
    [((0, 0, 0), []), ((0, 2, 0), ["promises heard"])],
)
def test_promise_counts_beside_nobody_who_knows_that_it_was_forgotten(
    scene: Scene, known: tuple[int, ...], expected: list[str]
) -> None:
    scene.ledger.report_votes(VOLATILE, 0, 7, 0, {}, known)
    scene.ledger.report_votes(VOLATILE, 1, 7, 0, {}, (0, 0, 0))
    scene.ledger.propose(VOLATILE, 0, 7, 3, "a", needs_reports=True)
    assert scene.broken == expected
    scene.ledger.report_votes(VOLATILE, 2, 7, 0, {}, known)
    scene.ledger.propose(VOLATILE, 0, 7, 4, "a", needs_reports=True)
    assert scene.broken == expected, "two that agree are a majority"


def test_leader_needs_promises_of_a_majority_that_count_together(scene: Scene) -> None:
    scene.ledger.report_votes(VOLATILE, 0, 7, 0, {}, (0, 2, 0))
    scene.ledger.lead(VOLATILE, 0, 7)
    assert scene.broken == ["promises heard"]
    scene.ledger.report_votes(VOLATILE, 1, 7, 0, {}, (0, 0, 0))
    scene.ledger.lead(VOLATILE, 0, 7)
    assert scene.broken == ["promises heard"] * 2, "member 1 has forgotten its promise"
    scene.ledger.report_votes(VOLATILE, 2, 7, 0, {}, (0, 0, 0))
    scene.ledger.lead(VOLATILE, 0, 7)
    assert len(scene.broken) == 2


def test_candidate_goes_to_higher_ballots_within_an_incarnation(scene: Scene) -> None:
    for incarnation, ballot in ((0, 5), (0, 5), (0, 9), (1, 7)):  # a restart may have forgotten a refusal
        scene.ledger.campaign(VOLATILE, 0, ballot, incarnation, 0)
    assert scene.broken == []
    scene.ledger.campaign(VOLATILE, 0, 6, 1, 0)
    assert scene.broken == ["rising ballots"]


@pytest.mark.parametrize(("passed_on", "expected"), [(2, []), (3, []), (1, ["losses passed on"])])
def test_promise_passes_on_the_loss_of_memory_of_its_candidate(
    scene: Scene, passed_on: int, expected: list[str]
) -> None:
    scene.ledger.campaign(VOLATILE, 0, 8, 2, 2)
    scene.ledger.report_votes(VOLATILE, 1, 8, 0, {}, (passed_on, 0, 0))
    assert scene.broken == expected


@pytest.mark.parametrize(
    ("known", "expected"),
    [((0, 2, 0), []), ((0, 1, 0), ["losses passed on"]), (None, ["losses passed on"])],
    ids=["the leader has heard of the loss", "of an earlier one", "of none"],
)
@pytest.mark.parametrize("speaks", ["vote", "clock"])
def test_member_without_memory_takes_part_where_the_leader_knows_of_its_loss(
    scene: Scene, known: tuple[int, ...] | None, expected: list[str], speaks: str
) -> None:
    if known is not None:
        scene.ledger.lead_with_losses(VOLATILE, 0, 5, (0, 0, 3))
        scene.ledger.lead_with_losses(VOLATILE, 0, 5, known)
    if speaks == "vote":
        scene.ledger.vote(VOLATILE, 1, 5, 3, memory_losses=(0, 2, 0))
    else:
        scene.ledger.limit_timestamps(VOLATILE, 1, 5, 2, (0, 2, 0), leads=False)
    scene.ledger.vote(VOLATILE, 2, 5, 3, memory_losses=(0, 2, 0))
    assert scene.broken == expected


def test_clock_log_and_position_never_go_back(scene: Scene) -> None:
    for clock in (5, 4):
        scene.ledger.publish_clock(VOLATILE, 1, 0, clock)
        scene.ledger.report_state(VOLATILE, 1, 9, (0, clock), clock, {})
        scene.ledger.hold(VOLATILE, 1, 0, clock)
        scene.ledger.reach(VOLATILE, 1, "position", clock)
    assert scene.broken == ["nothing forgotten"] * 4


def test_rehearsed_restart_is_compared_and_not_remembered(scene: Scene) -> None:
    scene.ledger.publish_clock(VOLATILE, 1, 0, 5)
    scene.ledger.rehearsed = True
    scene.ledger.publish_clock(VOLATILE, 1, 0, 9)
    scene.ledger.rehearsed = False
    scene.ledger.publish_clock(VOLATILE, 1, 0, 6)
    assert not scene.broken
    scene.ledger.rehearsed = True
    scene.ledger.publish_clock(VOLATILE, 1, 0, 4)
    assert scene.broken == ["restart"]


def test_ballot_has_one_value_per_slot(scene: Scene) -> None:
    scene.ledger.propose(VOLATILE, 0, 5, 3, "a")
    scene.ledger.propose(VOLATILE, 1, 5, 3, "a")
    scene.ledger.propose(VOLATILE, 1, 6, 3, "b")
    assert not scene.broken
    scene.ledger.propose(VOLATILE, 1, 5, 3, "b")
    assert scene.broken == ["one value"]


@pytest.mark.parametrize(("voters", "expected"), [((0, 0), []), ((0, 2), ["chosen value"])])
def test_chosen_value_stays(scene: Scene, voters: tuple[int, int], expected: list[str]) -> None:
    scene.ledger.propose(VOLATILE, 0, 5, 3, "a")
    scene.vote_all(5, 3, *voters)
    scene.ledger.propose(VOLATILE, 1, 6, 3, "b")
    assert scene.broken == expected


def test_log_that_a_majority_holds_stays(scene: Scene) -> None:
    for slot in range(3):
        scene.ledger.propose(VOLATILE, 0, 5, slot, 10 + slot, slot)
    scene.ledger.hold(VOLATILE, 0, 5, 3)
    scene.ledger.hold(VOLATILE, 1, 5, 2)
    scene.ledger.propose(VOLATILE, 2, 6, 2, 99, 99)
    assert not scene.broken
    scene.ledger.propose(VOLATILE, 2, 6, 1, 99, 99)
    assert scene.broken == ["chosen value"]


def test_decision_without_a_majority_is_false(scene: Scene) -> None:
    scene.ledger.propose(VOLATILE, 0, 5, 3, "a", 8)
    scene.vote_all(5, 3, 1)
    scene.ledger.decide(VOLATILE, 0, 3, "a")
    scene.ledger.decide_timestamp(VOLATILE, 0, 8, "a")  # type: ignore[arg-type]
    assert scene.broken == ["chosen value"] * 2
    scene.vote_all(5, 3, 2)
    scene.ledger.decide(VOLATILE, 0, 3, "a")
    scene.ledger.decide_timestamp(VOLATILE, 0, 8, "a")  # type: ignore[arg-type]
    assert len(scene.broken) == 2
    scene.ledger.decide(VOLATILE, 0, 3, "b")
    assert len(scene.broken) == 3


def test_lone_member_decides_what_it_never_proposed_to_others(scene: Scene) -> None:
    """Its record is a majority. It may have crashed before the proposal left, and decide after the restart."""
    scene.ledger.decide_timestamp(Domain("group 1", (5,)), 5, 8, 27)
    assert not scene.broken
    scene.ledger.decide_timestamp(VOLATILE, 0, 8, 27)
    assert scene.broken == ["chosen value"]


def report_votes(scene: Scene, ballot: int, *reports: dict[int, tuple[int, str]]) -> None:
    for member, votes in enumerate(reports):
        scene.ledger.report_votes(VOLATILE, member, ballot, 0, votes)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("new", []), ("old", []), ("free", ["promises heard"])],
)
def test_leader_proposes_the_value_of_the_highest_vote_it_heard_of(
    scene: Scene, value: str, expected: list[str]
) -> None:
    """Members 0 and 1 justify "old", member 2 and any other justify "new"; no majority has no vote."""
    report_votes(scene, 9, {3: (5, "old")}, {}, {3: (6, "new")})
    scene.ledger.propose(VOLATILE, 0, 9, 3, value, needs_reports=True)
    assert scene.broken == expected


def test_leader_may_not_prefer_a_lower_vote(scene: Scene) -> None:
    report_votes(scene, 9, {3: (5, "old")}, {3: (6, "new")})
    scene.ledger.propose(VOLATILE, 0, 9, 3, "old", needs_reports=True)
    assert scene.broken == ["promises heard"]


def test_leader_needs_promises_of_a_majority(scene: Scene) -> None:
    report_votes(scene, 9, {})
    scene.ledger.propose(VOLATILE, 0, 9, 3, "a", needs_reports=True)
    assert scene.broken == ["promises heard"]
    scene.ledger.propose(VOLATILE, 0, 0, 3, "a", needs_reports=True)
    assert len(scene.broken) == 1, "the first ballot needs none"


def test_leader_proposes_nothing_below_what_it_heard_to_be_decided(scene: Scene) -> None:
    scene.ledger.report_votes(VOLATILE, 0, 9, 4, {})
    scene.ledger.report_votes(VOLATILE, 1, 9, 0, {})
    scene.ledger.propose(VOLATILE, 0, 9, 4, "a", needs_reports=True)
    assert not scene.broken
    scene.ledger.propose(VOLATILE, 0, 9, 3, "a", needs_reports=True)
    assert scene.broken == ["promises heard"]


@pytest.mark.parametrize(
    ("length", "clock", "entries", "expected"),
    [
        (2, 8, {0: "a", 1: "b"}, []),
        (2, 9, {1: "b"}, []),
        (2, 7, {0: "a", 1: "b"}, ["promises heard"]),
        (3, 9, {0: "a", 1: "x", 2: "y"}, ["promises heard"]),
        (2, 9, {0: "a", 1: "x"}, ["promises heard"]),
    ],
    ids=["longest", "trimmed", "clock too low", "earlier ballot", "other entries"],
)
def test_ballot_begins_with_the_longest_log_of_the_latest_ballot(
    scene: Scene, length: int, clock: int, entries: dict[int, str], expected: list[str]
) -> None:
    scene.ledger.report_state(VOLATILE, 0, 9, (5, 3), 8, {0: "a", 1: "x", 2: "y"})
    scene.ledger.report_state(VOLATILE, 1, 9, (6, 2), 7, {0: "a", 1: "b"})
    scene.ledger.start_ballot(VOLATILE, 0, 9, length, clock, entries)
    scene.ledger.start_ballot(VOLATILE, 0, 9, 5, 9, {4: "later"})
    assert scene.broken == expected


def test_leader_orders_what_a_majority_of_its_group_accepted_in_its_ballot(scene: Scene) -> None:
    scene.vote_all(5, 3, 0, 1)
    scene.ledger.order(VOLATILE, 0, 5, 3)
    assert not scene.broken
    scene.vote_all(6, 3, 1)
    scene.ledger.order(VOLATILE, 1, 6, 3)
    assert scene.broken == ["home majority"]


def report_nothing(scene: Scene, *ballots: int) -> None:
    for ballot in ballots:
        for member in (0, 1):
            scene.ledger.report_state(VOLATILE, member, ballot, (0, 0), 0, {})


def test_ballot_begins_above_the_clock_of_a_majority(scene: Scene) -> None:
    report_nothing(scene, 5)
    for member, clock in ((0, 9), (1, 7), (2, 4)):
        scene.ledger.publish_clock(VOLATILE, member, 0, clock)
    scene.ledger.start_ballot(VOLATILE, 2, 5, 0, 7, {})
    assert not scene.broken
    scene.ledger.start_ballot(VOLATILE, 2, 5, 0, 6, {})
    assert scene.broken == ["ballot's clock"]


def test_clock_raised_after_a_promise_does_not_bind_the_promised_ballot(scene: Scene) -> None:
    report_nothing(scene, 5, 6)
    for member in (0, 1):
        scene.ledger.promise(VOLATILE, member, 5)
        scene.ledger.publish_clock(VOLATILE, member, 0, 9)
    scene.ledger.start_ballot(VOLATILE, 2, 5, 0, 3, {})
    assert not scene.broken
    scene.ledger.start_ballot(VOLATILE, 2, 6, 0, 3, {})
    assert scene.broken == ["ballot's clock"]


def test_clock_of_a_majority_binds_later_ballots_although_a_member_lost_its_memory(scene: Scene) -> None:
    report_nothing(scene, 5)
    for member in (0, 1):
        scene.ledger.publish_clock(VOLATILE, member, 0, 7)
    scene.ledger.forget(1)
    scene.ledger.start_ballot(VOLATILE, 2, 5, 0, 6, {})
    assert scene.broken == ["ballot's clock"]


def test_clock_from_before_a_loss_of_memory_is_not_counted_with_later_ones(scene: Scene) -> None:
    report_nothing(scene, 5)
    scene.ledger.publish_clock(VOLATILE, 1, 0, 7)
    scene.ledger.publish_clock(VOLATILE, 0, 0, 4)
    scene.ledger.forget(1)
    scene.ledger.publish_clock(VOLATILE, 0, 2, 8)
    scene.ledger.start_ballot(VOLATILE, 2, 5, 0, 4, {})
    assert not scene.broken
    scene.ledger.start_ballot(VOLATILE, 2, 5, 0, 3, {})
    assert scene.broken == ["ballot's clock"]


def test_new_timestamp_is_above_the_clock_of_a_majority(scene: Scene) -> None:
    for member in (0, 1):
        scene.ledger.publish_clock(VOLATILE, member, 0, 7)
    scene.ledger.publish_clock(VOLATILE, 2, 5, 7)
    scene.ledger.propose(VOLATILE, 2, 5, 0, 8, 100, 8)
    scene.ledger.propose(VOLATILE, 2, 5, 1, 7, 101)
    assert not scene.broken
    scene.ledger.propose(VOLATILE, 2, 5, 2, 7, 102, 7)
    assert scene.broken == ["ballot's clock"]


def test_claimed_progress_needs_a_majority(scene: Scene) -> None:
    scene.ledger.reach(VOLATILE, 0, "position", 9)
    scene.ledger.reach(VOLATILE, 1, "position", 4)
    scene.ledger.claim(VOLATILE, 0, "position", 4)
    assert not scene.broken
    scene.ledger.claim(VOLATILE, 0, "position", 5)
    assert scene.broken == ["majority's progress"]


def test_frozen_epoch_gets_no_further_acknowledgement(scene: Scene) -> None:
    scene.ledger.acknowledge(VOLATILE, 0, 2, (3, 4))
    scene.ledger.freeze(VOLATILE, 0, 2, (3, 5))
    scene.ledger.acknowledge(VOLATILE, 0, 2, (3, 5))
    scene.ledger.acknowledge(VOLATILE, 0, 3, (9, 9))
    assert not scene.broken
    scene.ledger.acknowledge(VOLATILE, 0, 2, (3, 6))
    assert scene.broken == ["frozen epoch"]


def test_epoch_ends_at_or_above_what_a_majority_acknowledged(scene: Scene) -> None:
    scene.ledger.acknowledge(VOLATILE, 0, 2, (3, 4))
    scene.ledger.acknowledge(VOLATILE, 1, 2, (2, 5))
    scene.ledger.end_epoch(VOLATILE, 2, 2, {0: 2, 1: 4})
    scene.ledger.acknowledge(VOLATILE, 2, 2, (2, 4))
    assert not scene.broken
    scene.ledger.end_epoch(VOLATILE, 2, 2, {1: 3})
    assert scene.broken == ["frozen epoch"]
    scene.ledger.acknowledge(VOLATILE, 2, 2, (3, 4))
    assert len(scene.broken) == 3


def test_stated_facts_agree(scene: Scene) -> None:
    scene.ledger.agree(0, "final timestamp of message", 7, 3)
    scene.ledger.agree(1, "final timestamp of message", 7, 3)
    scene.ledger.agree(1, "final timestamp of message", 8, 4)
    assert not scene.broken
    scene.ledger.agree(2, "final timestamp of message", 7, 4)
    assert scene.broken == ["agreement"]


def test_destinations_are_those_of_the_stated_message(scene: Scene) -> None:
    assert scene.ledger.find_destinations(7) == ()
    scene.ledger.know(Message(7, 0, (1, 2)))
    assert scene.ledger.find_destinations(7) == (1, 2)


def test_proposal_that_is_heard_after_its_votes_is_chosen(scene: Scene) -> None:
    scene.vote_all(1, 0, 0, 1)
    scene.ledger.propose(VOLATILE, 2, 1, 0, "a", 5)
    scene.ledger.decide(VOLATILE, 2, 0, "a")
    scene.ledger.decide_timestamp(VOLATILE, 2, 5, "a")  # type: ignore[arg-type]
    assert scene.broken == []
    scene.ledger.decide(VOLATILE, 2, 0, "b")
    assert scene.broken == ["chosen value"]


def test_ledger_that_missed_the_past_accuses_nobody_of_a_missing_majority() -> None:
    broken: list[str] = []
    ledger = Ledger(
        lambda process, rule, sentence: broken.append(rule), lambda process: None, lambda process: (), is_partial=True
    )  # type: ignore[arg-type, return-value]
    ledger.order(VOLATILE, 0, 1, 0)
    ledger.decide(VOLATILE, 0, 0, "a")
    ledger.decide_timestamp(VOLATILE, 0, 5, 3)
    ledger.claim(VOLATILE, 0, "position", 4)
    assert broken == []


@pytest.mark.parametrize(("clock", "expected"), [(7, []), (6, ["nothing forgotten"])])
def test_member_without_memory_gets_the_clock_that_its_majority_had_passed(
    scene: Scene, clock: int, expected: list[str]
) -> None:
    for member, published in ((0, 3), (1, 9), (2, 7)):
        scene.ledger.publish_clock(VOLATILE, member, 0, published)
    scene.ledger.forget(1)
    scene.ledger.publish_clock(VOLATILE, 1, 0, clock)
    assert scene.broken == expected


def test_candidate_without_memory_makes_up_other_ballots(scene: Scene) -> None:
    for ballot in (5, 5, 8):
        scene.ledger.stand(VOLATILE, 1, ballot)
    rejoin(scene, 1, 0, 2)
    admit(scene, 1, 0, 2)
    scene.ledger.stand(VOLATILE, 1, 6)
    scene.ledger.stand(VOLATILE, 1, 6)
    assert not scene.broken
    scene.ledger.stand(VOLATILE, 1, 8)
    assert scene.broken == ["own ballots"]


def admit(scene: Scene, member: int, *voters: int, loss: int = 1) -> None:
    scene.ledger.targets = (member,)
    for voter in voters:
        scene.ledger.admit(VOLATILE, voter, loss, 7)
    scene.ledger.targets = ()


@pytest.mark.parametrize(
    ("voters", "expected"), [((0, 2), []), ((0, 0), ["majority of others"]), ((), ["majority of others"])]
)
def test_member_without_memory_takes_part_after_votes_of_enough_others(
    scene: Scene, voters: tuple[int, ...], expected: list[str]
) -> None:
    admit(scene, 1, 0, 2)  # votes for an earlier incarnation
    scene.ledger.forget(1)
    admit(scene, 1, *voters)
    scene.ledger.report_state(VOLATILE, 1, 9, (0, 0), 7, {})
    assert scene.broken == expected


@pytest.mark.parametrize(("clock", "expected"), [(7, []), (6, ["nothing forgotten"])])
def test_member_without_memory_has_the_clocks_of_those_that_admitted_it(
    scene: Scene, clock: int, expected: list[str]
) -> None:
    scene.ledger.publish_clock(VOLATILE, 1, 0, 3)
    scene.ledger.forget(1)
    admit(scene, 1, 0, 2, loss=1)
    scene.ledger.limit_timestamps(VOLATILE, 1, 5, clock, NO_LOSSES, leads=False)
    assert scene.broken == expected


def test_votes_for_an_earlier_incarnation_admit_nobody(scene: Scene) -> None:
    scene.ledger.publish_clock(VOLATILE, 1, 0, 3)
    scene.ledger.forget(1)
    admit(scene, 1, 0, loss=1)
    admit(scene, 1, 2, loss=2)
    scene.ledger.limit_timestamps(VOLATILE, 1, 5, 9, NO_LOSSES, leads=False)
    assert scene.broken == ["majority of others"]


def test_vote_in_a_ballot_without_a_proposal_is_a_value_of_its_own(scene: Scene) -> None:
    scene.ledger.propose(VOLATILE, 0, 5, 3, "a")
    scene.ledger.vote(VOLATILE, 1, 5, 3, needs_proposal=True)
    assert not scene.broken
    scene.ledger.vote(VOLATILE, 1, 6, 3, needs_proposal=True)
    assert scene.broken == ["one value"]


@pytest.mark.parametrize(
    ("second", "expected"),
    [((0, 0, 0), []), ((2, 0, 0), ["votes remembered"])],
    ids=["nobody lost its memory", "the first voter lost its memory since"],
)
def test_votes_count_beside_nobody_who_knows_that_they_were_forgotten(
    scene: Scene, second: tuple[int, ...], expected: list[str]
) -> None:
    scene.ledger.vote(VOLATILE, 0, 5, 3, memory_losses=(0, 0, 0))
    scene.ledger.vote(VOLATILE, 1, 6, 3, memory_losses=(0, 0, 0))
    scene.ledger.count_votes(VOLATILE, 2, 3)
    assert scene.broken == ["votes remembered"], "two votes in two ballots are no majority"
    scene.ledger.vote(VOLATILE, 1, 5, 3, memory_losses=second)
    scene.ledger.count_votes(VOLATILE, 2, 3)
    assert scene.broken == ["votes remembered", *expected]


NO_LOSSES = (0, 0, 0)


@pytest.mark.parametrize(
    ("clocks", "expected"),
    [
        ([(0, 5, 8, NO_LOSSES), (1, 5, 9, NO_LOSSES)], []),
        ([(0, 5, 8, NO_LOSSES), (1, 5, 2, NO_LOSSES), (2, 3, 8, NO_LOSSES)], []),
        ([(0, 5, 7, NO_LOSSES), (1, 5, 9, NO_LOSSES), (2, 5, 9, NO_LOSSES)], ["delivery limit"]),
        ([(0, 5, 8, NO_LOSSES), (1, 5, 7, NO_LOSSES), (2, 5, 7, NO_LOSSES)], ["delivery limit"]),
        ([(0, 5, 8, NO_LOSSES), (1, 3, 9, NO_LOSSES), (2, 3, 9, NO_LOSSES)], ["delivery limit"]),
        ([(0, 5, 8, NO_LOSSES), (1, 5, 2, NO_LOSSES), (2, 6, 8, NO_LOSSES)], ["delivery limit"]),
        ([(0, 5, 8, (0, 2, 0)), (1, 5, 9, NO_LOSSES), (2, 5, 2, NO_LOSSES)], ["delivery limit"]),
        ([(0, 5, 8, (0, 2, 0)), (1, 5, 9, (0, 2, 0)), (2, 5, 2, NO_LOSSES)], []),
    ],
    ids=[
        "leader and another",
        "clock of an earlier ballot",
        "leader below",
        "others below",
        "nobody else in the ballot",
        "clock of a later ballot",
        "clock of a lost memory",
        "clock since the loss",
    ],
)
def test_timestamp_is_delivered_when_nobody_can_give_a_lower_one(
    scene: Scene, clocks: list[tuple[int, int, int, tuple[int, ...]]], expected: list[str]
) -> None:
    """Member 0 leads ballot 5, and timestamp 8 is delivered."""
    for member, ballot, clock, losses in clocks:
        scene.ledger.limit_timestamps(VOLATILE, member, ballot, clock, losses, leads=member == 0)
    scene.ledger.pass_timestamp(VOLATILE, 1, 8)
    assert scene.broken == expected


def test_only_member_of_a_group_delivers_without_a_word(scene: Scene) -> None:
    scene.ledger.pass_timestamp(Domain("group 1", (5,)), 5, 8)
    assert not scene.broken


def test_process_may_be_asked_until_a_majority_has_delivered(scene: Scene) -> None:
    ledger = scene.ledger
    assert not ledger.may_be_asked(VOLATILE, 7, 3), "it has not delivered the message"
    ledger.deliver(7, 3, (8, 3))
    for member, rank in ((0, (9, 0)), (1, (8, 2)), (2, (0, 0))):
        ledger.reach(VOLATILE, member, "rank", rank)
    assert ledger.may_be_asked(VOLATILE, 7, 3)
    ledger.reach(VOLATILE, 1, "rank", (8, 3))
    assert not ledger.may_be_asked(VOLATILE, 7, 3)
    ledger.deliver(7, 4, (9, 4))
    assert ledger.may_be_asked(VOLATILE, 7, 4)
    ledger.start(7)
    assert not ledger.may_be_asked(VOLATILE, 7, 4), "its record may not have been durable"


@pytest.mark.parametrize(("clock", "loss", "expected"), [(8, 0, []), (9, 0, ["nothing unsaid"]), (2, 2, [])])
def test_clock_that_a_process_relies_on_was_acknowledged(
    scene: Scene, clock: int, loss: int, expected: list[str]
) -> None:
    scene.ledger.lead_with_losses(VOLATILE, 0, 5, (0, 2, 0))
    scene.ledger.limit_timestamps(VOLATILE, 1, 5, 8, NO_LOSSES, leads=False)
    scene.ledger.limit_timestamps(VOLATILE, 1, 5, 2, (0, 2, 0), leads=False)
    scene.ledger.rely_on_clock(VOLATILE, 0, 1, clock, loss)
    assert scene.broken == expected
    scene.ledger.rely_on_clock(VOLATILE, 0, 1, 8, 2)
    assert scene.broken == [*expected, "nothing unsaid"], "since the loss, the clock was 2"


@pytest.mark.parametrize(("ballot", "loss", "expected"), [(5, 0, []), (6, 0, ["nothing unsaid"]), (5, 2, [])])
def test_vote_that_a_process_relies_on_was_sent(scene: Scene, ballot: int, loss: int, expected: list[str]) -> None:
    scene.ledger.lead_with_losses(VOLATILE, 0, 5, (0, 2, 0))
    scene.ledger.vote(VOLATILE, 1, 5, 3, memory_losses=(0, 2, 0))
    scene.ledger.rely_on_vote(VOLATILE, 0, 1, ballot, 3, loss)
    assert scene.broken == expected
    scene.ledger.rely_on_vote(VOLATILE, 0, 1, 5, 3, 4)
    assert scene.broken == [*expected, "nothing unsaid"], "it has lost its memory again since"


@pytest.mark.parametrize(("losses", "expected"), [((0, 2, 0), []), ((0, 1, 5), ["nothing forgotten"])])
def test_member_that_votes_for_an_admission_never_forgets_the_loss(
    scene: Scene, losses: tuple[int, ...], expected: list[str]
) -> None:
    admit(scene, 1, 0, loss=2)
    scene.ledger.reach(VOLATILE, 2, "memory losses", (0, 0, 0))
    assert not scene.broken, "it has not voted"
    scene.ledger.reach(VOLATILE, 0, "memory losses", losses)
    assert scene.broken == expected


def test_promise_of_the_present_incarnation_refuses_lower_ballots(scene: Scene) -> None:
    scene.ledger.promise(VOLATILE, 1, 7)
    assert scene.ledger.has_promised_above(VOLATILE, 1, 6)
    assert not scene.ledger.has_promised_above(VOLATILE, 1, 7)
    assert not scene.ledger.has_promised_above(VOLATILE, 0, 6)
    scene.ledger.start(1)
    assert not scene.ledger.has_promised_above(VOLATILE, 1, 6), "it may wait for its admission"
