"""What the bodies and records of Paxos state (`kernel/statements.py`)."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Record
from amcast.kernel.statements import Domain, Listener, StateBody, StatementTable
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import (
    Accept,
    Accepted,
    Install,
    Learn,
    LogStatus,
    Prepare,
    Promise,
    Promised,
    RingAccept,
    Snapshot,
    Voted,
)
from amcast.parts.consensus.quorum import MAX_MEMBERS, ballot_of, incarnation_of, place_of

FindDomain = Callable[[ProcessId], Domain | None]
"""The members that agree on the log of which a process sends; None: the process sends of no log."""
PROBE_ROUND = 1 << 30
"""A round above every one that a simulated run reaches."""


def make_group_domains(topology: Topology) -> dict[ProcessId, Domain]:
    """One domain per group, by process."""
    domains = {group: Domain(f"group {group}", topology.members(group)) for group in topology.groups}
    return {member: domain for domain in domains.values() for member in domain.members}


def build_paxos_table(find: FindDomain) -> StatementTable:
    """The table for the Paxos of the domains that `find` names."""
    return StatementTable(build_body_statements(find), build_record_statements(find), make_probe(find, Prepare))


def build_group_paxos_table(topology: Topology, config: Any) -> StatementTable:
    """The table for protocols in which every group has a log of its own. A group of one may run without a log."""
    table = build_paxos_table(make_group_domains(topology).get)
    return replace(table, has_first_record=all(len(topology.members(group)) > 1 for group in topology.groups))


def make_probe(find: FindDomain, build: Callable[[int, int], Body]) -> Callable[..., tuple[ProcessId, Body] | None]:
    """Makes the probe of protocols whose candidates send a ballot and a second number, 0."""

    def probe(process: ProcessId, ballot: int) -> tuple[ProcessId, Body] | None:
        domain = find(process)
        if domain is None or process not in domain.places or len(domain.members) == 1:
            return None  # nobody competes with the only member of a group, which may run without consensus
        wanted = find_previous_ballot(ballot, len(domain.members))
        if ballot < 0:
            wanted = ballot_of(PROBE_ROUND, 0, len(domain.members) - 1)
        return None if wanted < 0 else (domain.members[place_of(wanted)], build(wanted, 0))

    return probe


def find_previous_ballot(ballot: int, members: int) -> int:
    """The highest ballot of a member below a ballot; below 0 if there is none."""
    attempt, place = divmod(ballot, MAX_MEMBERS)
    return ballot - 1 if place else (attempt - 1) * MAX_MEMBERS + members - 1


def build_body_statements(find: FindDomain) -> dict[type[Body], StateBody]:
    def state_accept(listener: Listener, source: ProcessId, body: Accept) -> None:
        domain = find(source)
        if domain is not None:
            listener.propose(domain, source, body.ballot, body.instance, body.value, needs_reports=True)

    def state_accepted(listener: Listener, source: ProcessId, body: Accepted) -> None:
        domain = find(source)
        if domain is not None:
            for instance in range(body.first, body.first + body.count):
                listener.vote(domain, source, body.ballot, instance)

    def state_ring_accept(listener: Listener, source: ProcessId, body: RingAccept) -> None:
        domain = find(source)
        if domain is None:
            return
        if body.remaining > 0:
            listener.propose(domain, source, body.ballot, body.instance, body.value, needs_reports=True)
        # On the second lap a member passes on votes, perhaps one of its own from before it lost its memory.
        if body.remaining >= 0 and source in domain.places and body.votes >> domain.places[source] & 1:
            listener.vote(domain, source, body.ballot, body.instance)

    def state_log_status(listener: Listener, source: ProcessId, body: LogStatus) -> None:
        domain = find(source)
        if domain is not None and body.ballot:
            listener.lead(domain, source, body.ballot)

    def state_prepare(listener: Listener, source: ProcessId, body: Prepare) -> None:
        domain = find(source)
        if domain is not None:
            listener.campaign(domain, source, body.ballot, incarnation_of(body.ballot), body.memory_loss)

    def state_promise(listener: Listener, source: ProcessId, body: Promise) -> None:
        domain = find(source)
        if domain is None:
            return
        listener.promise(domain, source, body.ballot)
        votes = {instance: (ballot, value) for instance, ballot, value in body.votes}
        listener.report_votes(domain, source, body.ballot, body.decided_until, votes, body.memory_losses)
        for instance, (ballot, value) in votes.items():
            listener.propose(domain, source, ballot, instance, value)

    def state_learn(listener: Listener, source: ProcessId, body: Learn) -> None:
        _decide(listener, source, body.first, body.values)

    def state_install(listener: Listener, source: ProcessId, body: Install) -> None:
        _decide(listener, source, body.floor, body.values)

    def _decide(listener: Listener, source: ProcessId, first: int, values: tuple[Any, ...]) -> None:
        domain = find(source)
        if domain is not None:
            for instance, value in enumerate(values, first):
                listener.decide(domain, source, instance, value)

    return {
        Accept: state_accept,
        Accepted: state_accepted,
        RingAccept: state_ring_accept,
        LogStatus: state_log_status,
        Prepare: state_prepare,
        Promise: state_promise,
        Learn: state_learn,
        Install: state_install,
    }


def build_record_statements(find: FindDomain) -> dict[type[Record], StateBody]:
    def state_promised(listener: Listener, source: ProcessId, record: Promised) -> None:
        domain = find(source)
        if domain is not None:
            listener.promise(domain, source, record.ballot)

    def state_voted(listener: Listener, source: ProcessId, record: Voted) -> None:
        domain = find(source)
        if domain is not None:
            listener.promise(domain, source, record.ballot)
            listener.vote(domain, source, record.ballot, record.instance)

    def state_snapshot(listener: Listener, source: ProcessId, record: Snapshot) -> None:
        domain = find(source)
        if domain is not None:
            listener.promise(domain, source, record.promised)
            listener.settle(domain, source, record.floor + len(record.decided))
            for instance, ballot, _ in record.votes:
                listener.vote(domain, source, ballot, instance)

    return {Promised: state_promised, Voted: state_voted, Snapshot: state_snapshot}
