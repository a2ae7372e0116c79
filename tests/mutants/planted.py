"""Planted violations: a healthy trace, and small changes that each violate exactly some properties.

`MUTANTS` are traces that must be judged violated in the named properties and in no other; `UNKNOWN` are traces with
incomplete evidence, unknown in the named properties and nowhere violated; `HEALTHY` ones are unusual and must hold. The
Spark pipeline is tested with the same traces.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from amcast.kernel.message import Message
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run

CLAIMS = {"genuine": "strict", "complete": True, "fifo": True, "exactly_once": True, "real_time": True}


@dataclass
class Trace:
    """A trace as plain data that a test may change."""

    groups: dict[int, list[int]]
    clients: list[int]
    crashed: dict[int, int] = field(default_factory=dict)
    multicasts: dict[int, dict[str, Any]] = field(default_factory=dict)
    sequences: dict[int, list[tuple[int, int, int]]] = field(default_factory=dict)
    """process -> (position, message, at_ns)."""
    packets: list[list[Any]] | None = field(default_factory=list)
    """[about, body, source, target, sent_ns, received_ns]."""
    notes: list[tuple[int, str, int | None, float | None]] = field(default_factory=list)
    claims: dict[str, Any] = field(default_factory=lambda: dict(CLAIMS))
    answers: list[tuple[int, int]] | None = None
    """(message, at_ns)."""
    hosts: dict[int, str] = field(default_factory=dict)
    clock_bound_ns: int | None = None
    unlisted: set[int] = field(default_factory=set)
    """Processes that are missing in the table `processes`."""

    def group_of(self, process: int) -> int | None:
        return next((group for group, members in self.groups.items() if process in members), None)

    def members(self, message: int) -> list[int]:
        return [p for group in self.multicasts[message]["destinations"] for p in self.groups[group]]

    def multicast(self, message: int, *destinations: int, sender: int, sequence: int | None = None) -> None:
        """The sender's next message, or its message number `sequence` again."""
        earlier = [row["sequence"] for row in self.multicasts.values() if row["session"] == sender]
        self.multicasts[message] = {
            "sender": sender,
            "destinations": destinations,
            "at_ns": 10 * len(self.multicasts),
            "session": sender,
            "sequence": len(earlier) if sequence is None else sequence,
        }

    def deliver(self, process: int, *messages: int) -> None:
        for message in messages:
            row = self.sequences.setdefault(process, [])
            row.append((len(row), message, 1000 + 10 * len(row)))

    def order(self, process: int, *messages: int) -> None:
        """Replaces the deliveries of a process."""
        self.sequences[process] = []
        self.deliver(process, *messages)

    def delivered(self, process: int) -> list[int]:
        return [message for _, message, _ in self.sequences.get(process, [])]

    def packet(self, about: Any, source: int, target: int, lost: bool = False) -> None:
        assert self.packets is not None
        self.packets.append([about, "Propose", source, target, 500, None if lost else 600])

    def recorder(self) -> Recorder:
        recorder = Recorder()
        recorder.wants_packets = self.packets is not None
        for process in sorted([*self.clients, *(p for members in self.groups.values() for p in members)]):
            if process not in self.unlisted:
                crashed, host = self.crashed.get(process), self.hosts.get(process)
                recorder.record_process(process, self.group_of(process), "here", crashed, host)
        for message, row in self.multicasts.items():
            sent = Message(message, row["sender"], tuple(row["destinations"]))
            recorder.record_multicast(sent, row["at_ns"], row["session"], row["sequence"])
        recorder.has_answers = self.answers is not None
        for message, at_ns in self.answers or []:
            recorder.record_answer(message, at_ns)
        for process, entries in self.sequences.items():
            for position, message, at_ns in entries:
                row = self.multicasts.get(message, {"sender": 0, "destinations": ()})
                delivered = Message(message, row["sender"], tuple(row["destinations"]))
                recorder.record_delivery(process, self.group_of(process) or 0, position, delivered, at_ns)
        for about, body, source, target, sent_ns, received_ns in self.packets or []:
            recorder.record_packet(about, body, source, target, 40, sent_ns, received_ns)
        for process, name, about, value in self.notes:
            recorder.record_note(process, 2000, name, about, value)
        return recorder

    def meta(self, run: str = "planted") -> Meta:
        claims = RunClaims(**self.claims)
        return Meta(run=run, protocol="planted", seed=0, clock_bound_ns=self.clock_bound_ns, claims=claims)

    def run(self) -> Run:
        return Run.from_recorder(self.recorder(), self.meta())


def healthy() -> Trace:
    """Four groups of two, clients 8 and 9 and an idle 10; group 3 is no destination. Every property holds."""
    trace = Trace({0: [0, 1], 1: [2, 3], 2: [4, 5], 3: [6, 7]}, [8, 9, 10])
    trace.multicast(1, 0, sender=8)
    trace.multicast(2, 0, 1, sender=9)
    trace.multicast(3, 0, 1, sender=8)
    trace.multicast(4, 1, 2, sender=9)
    trace.multicast(5, 0, 2, sender=8)
    trace.multicast(6, 0, 1, 2, sender=9)
    trace.multicast(7, 1, 2, sender=8)
    for message, row in trace.multicasts.items():
        members = trace.members(message)
        for target in members:
            trace.deliver(target, message)
            trace.packet(message, row["sender"], target)
            for source in members:
                trace.packet(message, source, target)
    trace.packet(None, 6, 7)  # a heartbeat inside an idle group is about no message
    trace.packet((2, 3), 2, 0)  # a cumulative acknowledgement
    return trace


Change = Callable[[Trace], None]


@dataclass(frozen=True)
class Planted:
    """One change to the healthy trace, and the properties that it must make violated or unknown."""

    name: str
    change: Change
    properties: frozenset[str]


MUTANTS: list[Planted] = []
UNKNOWN: list[Planted] = []
HEALTHY: list[Planted] = []


def _planted(where: list[Planted], *properties: str) -> Callable[[Change], Change]:
    def add(change: Change) -> Change:
        where.append(Planted(change.__name__, change, frozenset(properties)))
        return change

    return add


def mutant(*properties: str) -> Callable[[Change], Change]:
    return _planted(MUTANTS, *properties)


def unknown(*properties: str) -> Callable[[Change], Change]:
    return _planted(UNKNOWN, *properties)


def unusual(change: Change) -> Change:
    return _planted(HEALTHY)(change)


def make_trace(case: Planted) -> Trace:
    trace = healthy()
    case.change(trace)
    return trace


def _drop(trace: Trace, process: int, message: int) -> None:
    trace.order(process, *(m for m in trace.delivered(process) if m != message))


def _drop_everywhere(trace: Trace, message: int) -> None:
    for process in trace.members(message):
        _drop(trace, process, message)


# P1 integrity


@mutant("P1")
def delivered_twice(trace: Trace) -> None:
    trace.deliver(0, 1)


@mutant("P1")
def delivered_twice_by_a_whole_group(trace: Trace) -> None:
    trace.deliver(0, 1)
    trace.deliver(1, 1)


@mutant("P1")
def delivered_twice_by_a_crashed_process(trace: Trace) -> None:
    trace.deliver(5, 4)
    trace.crashed[5] = 5000


@mutant("P1")
def never_multicast(trace: Trace) -> None:
    trace.deliver(2, 99)


@mutant("P1")
def delivered_before_it_was_multicast(trace: Trace) -> None:
    trace.multicasts[7]["at_ns"] = 10**6


@mutant("P1")
def wrong_destination(trace: Trace) -> None:
    trace.deliver(4, 2)


@mutant("P1")
def idle_group_delivers(trace: Trace) -> None:
    trace.deliver(6, 7)


@mutant("P1")
def client_delivers(trace: Trace) -> None:
    trace.deliver(8, 1)


@mutant("P1")
def unlisted_process_delivers(trace: Trace) -> None:
    trace.deliver(77, 1)


@mutant("P1")
def two_messages_at_one_position(trace: Trace) -> None:
    position, message, at_ns = trace.sequences[0].pop()
    trace.sequences[0].append((position - 1, message, at_ns))


@mutant("P1")
def delivered_again_after_a_snapshot(trace: Trace) -> None:
    trace.sequences[3] = trace.sequences[3][3:]
    trace.sequences[3].append((5, 2, 3000))
    trace.notes.append((3, "installed", None, 3.0))


# P2 validity and P3 uniform agreement


@mutant("P2")
def no_process_delivers(trace: Trace) -> None:
    _drop_everywhere(trace, 7)


@mutant("P2", "P3")
def last_message_missing_at_one_replica(trace: Trace) -> None:
    _drop(trace, 5, 7)


@mutant("P2", "P3")
def last_message_missing_at_one_group(trace: Trace) -> None:
    _drop(trace, 4, 7)
    _drop(trace, 5, 7)


@mutant("P3")
def message_of_a_crashed_sender_delivered_by_one(trace: Trace) -> None:
    trace.crashed[8] = 5000
    for process in (2, 3, 4):
        _drop(trace, process, 7)


@mutant("P3")
def delivered_only_by_a_process_that_crashed(trace: Trace) -> None:
    trace.crashed |= {8: 5000, 2: 5000}
    for process in (3, 4, 5):
        _drop(trace, process, 7)


# P4 uniform prefix order and P5 uniform acyclic order


@mutant("P4", "P5", "P9")
def two_groups_disagree(trace: Trace) -> None:
    for process in trace.groups[1]:
        trace.order(process, 3, 2, 4, 6, 7)


@mutant("P4", "P5", "P9")
def one_replica_swaps(trace: Trace) -> None:
    trace.order(4, 4, 6, 5, 7)


@mutant("P4", "P5", "P9")
def crashed_process_skipped_a_message(trace: Trace) -> None:
    trace.order(1, 1, 3)
    trace.crashed[1] = 5000


@mutant("P2", "P3", "P4", "P5", "P9")
def correct_process_skipped_a_message(trace: Trace) -> None:
    _drop(trace, 5, 6)


@mutant("P4", "P5", "P9")
def crashed_process_diverged_at_its_end(trace: Trace) -> None:
    trace.order(3, 2, 3, 4, 7)
    trace.crashed[3] = 5000


@mutant("P4", "P5", "P9")
def disagreement_in_a_run_that_is_not_complete(trace: Trace) -> None:
    two_groups_disagree(trace)
    trace.claims["complete"] = False


@mutant("P5", "P9")
def cycle_of_three(trace: Trace) -> None:
    # group 0: 3 before 5; group 2: 5 before 4; group 1: 4 before 3.
    for process in trace.groups[1]:
        trace.order(process, 2, 4, 3, 6, 7)
    for process in trace.groups[2]:
        trace.order(process, 5, 4, 6, 7)


@mutant("P5", "P9")
def cycle_of_four(trace: Trace) -> None:
    # One message per pair of neighbours on the ring of groups 0, 1, 2, 3; each group delivers its two in ring order.
    ring = {20: (0, 1), 21: (1, 2), 22: (2, 3), 23: (0, 3)}
    for message, groups in ring.items():
        trace.multicast(message, *groups, sender=11)
        trace.multicasts[message] |= {"session": None, "sequence": None}
    for group, pair in {0: (23, 20), 1: (20, 21), 2: (21, 22), 3: (22, 23)}.items():
        for process in trace.groups[group]:
            trace.deliver(process, *pair)
    trace.clients.append(11)


@mutant("P5", "P9")
def cycle_closed_by_a_crashed_group(trace: Trace) -> None:
    # Group 0 delivered 3 and crashed before 5; group 2: 5 before 4; group 1: 4 before 3. No process saw a cycle.
    for process in trace.groups[0]:
        trace.order(process, 1, 2, 3)
        trace.crashed[process] = 5000
    for process in trace.groups[1]:
        trace.order(process, 2, 4, 3, 6, 7)
    for process in trace.groups[2]:
        trace.order(process, 5, 4, 6, 7)


@mutant("P4", "P5", "P9")
def disagreement_beside_a_gap(trace: Trace) -> None:
    # The gap in the trace of process 7 leaves properties unknown; that groups 0 and 1 disagree is certain.
    two_groups_disagree(trace)
    trace.notes.append((7, "trace-gap", None, 0.0))


# P6 minimality and P6' strict genuineness


@mutant("P6'")
def packet_to_a_group_that_is_no_destination(trace: Trace) -> None:
    trace.packet(1, 0, 4)


@mutant("P6'")
def packet_from_a_client_that_is_not_the_sender(trace: Trace) -> None:
    trace.packet(1, 9, 0)


@mutant("P6'")
def acknowledgement_about_too_much(trace: Trace) -> None:
    trace.packet((2, 1), 2, 0)


@mutant("P6'")
def lost_packet_to_an_outsider(trace: Trace) -> None:
    trace.packet(1, 0, 6, lost=True)


@mutant("P6'")
def packet_about_nothing_that_was_multicast(trace: Trace) -> None:
    trace.packet(99, 0, 1)


@mutant("P6", "P6'")
def idle_process_receives(trace: Trace) -> None:
    trace.packet(1, 0, 6)


@mutant("P6", "P6'")
def idle_process_relays(trace: Trace) -> None:
    trace.packet(1, 10, 0)


# P7 FIFO and P8 exactly-once


@mutant("P7")
def session_out_of_order(trace: Trace) -> None:
    # 1 and 3 are client 8's numbers 0 and 1; 3 and 5 its numbers 1 and 2.
    for process in trace.groups[0]:
        trace.order(process, 2, 3, 1, 5, 6)


@mutant("P7")
def session_skips_a_message(trace: Trace) -> None:
    trace.crashed[8] = 5000
    _drop_everywhere(trace, 3)


@mutant("P7")
def session_skips_in_a_run_that_is_not_complete(trace: Trace) -> None:
    session_skips_a_message(trace)
    trace.claims["complete"] = False


@mutant("P8")
def retry_delivered_as_well(trace: Trace) -> None:
    trace.multicast(30, 0, 1, sender=8, sequence=1)
    for process in (0, 1, 2, 3):
        trace.deliver(process, 30)


# P9 real-time order


def _audit(trace: Trace) -> None:
    """The auditor reads two accounts one after the other, and a transfer between them comes between: 40 to group 0 is
    delivered at 3000, then 41 to group 1 is multicast; 42 to both is before 40 in group 0 and after 41 in group 1."""
    for message, groups, at_ns in ((42, (0, 1), 2000), (40, (0,), 2100), (41, (1,), 3100)):
        trace.multicast(message, *groups, sender=11)
        trace.multicasts[message] |= {"at_ns": at_ns, "session": None, "sequence": None}
    trace.clients.append(11)
    for process in trace.groups[0]:
        trace.sequences[process] += [(5, 42, 2900), (6, 40, 3000)]
    for process in trace.groups[1]:
        trace.sequences[process] += [(5, 41, 3200), (6, 42, 3300)]


@mutant("P9")
def auditor_sees_a_transfer_half_done(trace: Trace) -> None:
    _audit(trace)


@mutant("P9")
def auditor_was_answered_before_the_second_read(trace: Trace) -> None:
    _audit(trace)
    trace.answers = [(40, 3099), (41, 4000), (42, 4000)]


@mutant("P9")
def first_of_two_answers_counts(trace: Trace) -> None:
    _audit(trace)
    trace.answers = [(40, 5000), (40, 3099)]


@mutant("P9")
def auditor_on_hosts_whose_clocks_differ_little(trace: Trace) -> None:
    auditor_was_answered_before_the_second_read(trace)
    trace.answers = [(40, 3050)]
    trace.multicasts[40]["sender"] = 8
    trace.hosts = {8: "a", 11: "b"}
    trace.clock_bound_ns = 49


@mutant("P9")
def answered_message_that_a_later_one_overtakes(trace: Trace) -> None:
    # 40 is answered and delivered nowhere; 41 is multicast afterwards and delivered by a process that lacks 40.
    trace.crashed[11] = 5000
    trace.clients.append(11)
    for message, at_ns in ((40, 2000), (41, 3000)):
        trace.multicast(message, 0, sender=11)
        trace.multicasts[message] |= {"at_ns": at_ns, "session": None, "sequence": None}
    for process in trace.groups[0]:
        trace.sequences[process].append((5, 41, 3500))
    trace.answers = [(40, 2900)]


@mutant("P9")
def real_time_cycle_beside_a_gap(trace: Trace) -> None:
    _audit(trace)
    trace.notes.append((7, "trace-gap", None, 0.0))


# Unknown


@unknown("P2", "P3")
def message_still_in_flight(trace: Trace) -> None:
    trace.claims["complete"] = False
    _drop(trace, 5, 7)


@unknown("P2")
def no_process_delivered_yet(trace: Trace) -> None:
    trace.claims["complete"] = False
    _drop_everywhere(trace, 7)


@unknown("P1", "P2", "P3", "P4", "P5", "P7", "P8", "P9")
def tail_of_a_trace_is_lost(trace: Trace) -> None:
    trace.sequences[5] = trace.sequences[5][:-1]
    trace.notes.append((5, "trace-gap", None, 3.0))


@unknown("P1", "P2", "P3", "P4", "P5", "P7", "P8", "P9")
def hole_in_a_trace(trace: Trace) -> None:
    # 3, the missing one, is number 1 of session 8, whose number 2 is there.
    trace.sequences[0] = [entry for entry in trace.sequences[0] if entry[1] != 3]
    trace.notes.append((0, "trace-gap", None, 2.0))


@unknown("P1", "P2", "P3", "P4", "P5", "P7", "P8", "P9")
def hole_without_a_note(trace: Trace) -> None:
    trace.sequences[4] = [entry for entry in trace.sequences[4] if entry[1] != 6]


@unknown("P1", "P4", "P5", "P7", "P8", "P9")
def hole_in_the_trace_of_a_crashed_process(trace: Trace) -> None:
    trace.sequences[4] = [entry for entry in trace.sequences[4] if entry[1] != 6]
    trace.crashed[4] = 5000


@unknown("P1", "P2", "P3", "P4", "P5", "P7", "P8", "P9")
def snapshot_that_no_trace_covers(trace: Trace) -> None:
    for process in trace.groups[1]:
        trace.sequences[process] = trace.sequences[process][2:]
    trace.notes.append((2, "installed", None, 2.0))
    trace.notes.append((3, "installed", None, 2.0))


@unknown("P6", "P6'")
def no_packets_table(trace: Trace) -> None:
    trace.packets = None


@unknown("P6", "P6'")
def no_packets_recorded(trace: Trace) -> None:
    trace.packets = []


@unknown("P7", "P8")
def no_sessions(trace: Trace) -> None:
    for row in trace.multicasts.values():
        row["session"] = row["sequence"] = None


@unknown("P2")
def unknown_sender(trace: Trace) -> None:
    trace.unlisted.add(8)
    _drop_everywhere(trace, 7)


@unknown("P1", "P4", "P5", "P7", "P8", "P9")
def gap_at_an_unknown_position(trace: Trace) -> None:
    trace.notes.append((5, "trace-gap", None, None))
    trace.notes.append((4, "installed", None, float("nan")))


@unknown("P1", "P3", "P4", "P5", "P7", "P8", "P9")
def gap_that_may_hide_the_only_delivery(trace: Trace) -> None:
    trace.crashed |= {8: 5000, 2: 5000}
    _drop_everywhere(trace, 7)
    trace.notes.append((2, "trace-gap", None, 4.0))


@unknown("P9")
def clocks_of_several_hosts_without_a_bound(trace: Trace) -> None:
    _audit(trace)
    trace.hosts = {process: "a" for members in trace.groups.values() for process in members} | {11: "b", 8: "b", 9: "b"}


@unknown("P9")
def clock_of_a_sender_on_an_unknown_host(trace: Trace) -> None:
    trace.hosts = {8: "a"}
    trace.answers = []


# Unusual and healthy


@unusual
def nothing_unusual(trace: Trace) -> None:
    pass


@unusual
def nothing_happened(trace: Trace) -> None:
    trace.multicasts, trace.sequences, trace.packets = {}, {}, []


@unusual
def crashed_process_delivered_a_prefix(trace: Trace) -> None:
    trace.order(1, 1, 2)
    trace.crashed[1] = 5000


@unusual
def crashed_sender_reached_no_process(trace: Trace) -> None:
    trace.crashed[8] = 5000
    _drop_everywhere(trace, 7)


@unusual
def snapshot_installed(trace: Trace) -> None:
    trace.sequences[3] = trace.sequences[3][3:]
    trace.notes.append((3, "installed", None, 3.0))


@unusual
def tail_recorded_again_after_recovery(trace: Trace) -> None:
    trace.sequences[2] += [(position, message, at_ns + 5000) for position, message, at_ns in trace.sequences[2][-2:]]
    trace.notes.append((2, "trace-gap", None, 3.0))


@unusual
def retry_delivered_instead(trace: Trace) -> None:
    trace.multicast(30, 0, 1, sender=8, sequence=1)
    trace.crashed[8] = 5000
    for process in (0, 1, 2, 3):
        trace.order(process, *(30 if m == 3 else m for m in trace.delivered(process)))


@unusual
def outsider_in_a_run_that_claims_nothing(trace: Trace) -> None:
    trace.packet(1, 0, 6)
    for process in trace.groups[0]:
        trace.order(process, 2, 3, 1, 5, 6)
    trace.claims |= {"genuine": "no", "fifo": False, "exactly_once": False}


@unusual
def outsider_of_another_message_in_a_run_that_claims_minimality(trace: Trace) -> None:
    trace.packet(1, 0, 4)
    trace.claims["genuine"] = "run"


@unusual
def auditor_whose_first_read_was_not_answered(trace: Trace) -> None:
    _audit(trace)
    trace.answers = [(41, 4000), (42, 4000)]


@unusual
def auditor_answered_at_the_moment_of_the_second_read(trace: Trace) -> None:
    _audit(trace)
    trace.answers = [(40, 3100)]


@unusual
def auditor_whose_first_read_one_group_lacks(trace: Trace) -> None:
    # 40 is complete only when group 2 delivers it, after the multicast of 41.
    _audit(trace)
    trace.multicasts[40]["destinations"] = (0, 2)
    for process in trace.groups[2]:
        trace.sequences[process].append((4, 40, 3101))


@unusual
def auditor_on_hosts_whose_clocks_differ_more(trace: Trace) -> None:
    _audit(trace)
    trace.answers = [(40, 3000)]
    trace.hosts = {8: "a", 9: "a", 11: "b"}
    trace.clock_bound_ns = 100


@unusual
def senders_on_one_host_answer_for_members_on_others(trace: Trace) -> None:
    trace.hosts = {process: f"host {process}" for members in trace.groups.values() for process in members}
    trace.hosts |= {8: "a", 9: "a"}
    trace.answers = [(message, 5000) for message in trace.multicasts]


@unusual
def answer_recorded_before_the_multicast(trace: Trace) -> None:
    # Both were multicast at 2000, whatever their answers say.
    for message in (40, 41):
        trace.multicast(message, 3, sender=8)
        trace.multicasts[message]["at_ns"] = 2000
        for process in trace.groups[3]:
            trace.sequences.setdefault(process, []).append((message - 40, message, 3000))
    trace.answers = [(40, 1500), (41, 1900)]


@unusual
def answer_to_a_message_of_nobody(trace: Trace) -> None:
    trace.answers = [(99, 10)]


@unusual
def real_time_cycle_in_a_run_that_does_not_claim_it(trace: Trace) -> None:
    _audit(trace)
    trace.claims["real_time"] = False
