"""Reads of a simulated run: queries that replicas answer from their state, without ordering.

A read goes to a random replica that is up, a follower or a leader that was deposed as likely as the leader, and to
another one if that crashes, or when the run loses patience. The replica asks its majority through its node, as in a
live cluster; the queue of reads is the same object (`services/reads.py`).
"""

from collections.abc import Generator
from random import Random
from typing import Final

from amcast.kernel.events import Read
from amcast.kernel.ids import ProcessId
from amcast.services.calls import CallSession, Outcome, Reading
from amcast.services.reads import PendingRead
from amcast.simulation.services.replicas import SimulatedReplica, SimulatedReplicas
from amcast.simulation.world.world import World

ASK_RATE: Final = 0.3
LEAVE_RATE: Final = 0.002
"""How often a caller gives up on a replica."""


class SimulatedReading:
    """A query of a coroutine, until its outcome is known."""

    def __init__(self, number: int, reading: Reading, session: CallSession, client: ProcessId, label: str) -> None:
        self.number = number
        self.reading = reading
        self.session = session
        self.client = client
        self.label = label
        self.attempts: dict[str, tuple[ProcessId, SimulatedReplica, PendingRead]] = {}
        """By group: the replica that is asked."""
        self.refusal = ""
        """Why a replica refused it."""

    @property
    def is_done(self) -> bool:
        return len(self.reading.results) == len(self.reading.destinations)

    def __await__(self) -> Generator["SimulatedReading", None, Outcome]:
        while not self.is_done:
            yield self
        return self.reading.make_outcome()


class SimulatedReadings:
    """All reads of a run that are not answered."""

    def __init__(self, world: World, random: Random) -> None:
        self._world = world
        self._random = random
        self._rounds = 0
        self._asked: dict[tuple[ProcessId, int], tuple[SimulatedReplica, list[PendingRead], int]] = {}
        """Majorities that are asked, by process and number: for which reads, and since when."""
        self.open: list[SimulatedReading] = []

    def follow(self, replicas: SimulatedReplicas) -> list[SimulatedReading]:
        """Lets reads go on; returns those that have their outcome now."""
        if not self.open:
            self._world.ready_reads.clear()
            return []
        for reading in self.open:
            self._ask_replicas(reading, replicas)
        self._take_confirmations(replicas)
        for process, replica in list(replicas.replicas.items()):
            if len(replica.reads) and process not in self._world.paused:
                self._ask_majority(process, replica)
        for process, replica in replicas.replicas.items():
            if len(replica.reads):
                self._advance(process, replica)
        done = [reading for reading in self.open if reading.is_done]
        for reading in done:
            reading.session.see(reading.reading)
        self.open = [reading for reading in self.open if not reading.is_done]
        return done

    def _ask_replicas(self, reading: SimulatedReading, replicas: SimulatedReplicas) -> None:
        random = self._random
        for group, query in reading.reading.queries.items():
            if group in reading.reading.results:
                continue
            attempt = reading.attempts.get(group)
            if attempt is not None:
                process, replica, read = attempt
                if replicas.replicas.get(process) is replica and random.random() >= LEAVE_RATE:
                    continue
                replica.reads.discard(read)
                del reading.attempts[group]
            members = replicas.list_processes(group)
            if members and random.random() < ASK_RATE:
                process = random.choice(members)
                replica = replicas.replicas[process]
                reading.attempts[group] = process, replica, replica.reads.add(query, self._world.now)

    def _ask_majority(self, process: ProcessId, replica: SimulatedReplica) -> None:
        taken = replica.reads.take_unconfirmed()
        if taken:
            self._rounds += 1
            self._asked[(process, self._rounds)] = replica, taken, self._world.now
            self._world.step(process, (Read(self._rounds),))

    def _take_confirmations(self, replicas: SimulatedReplicas) -> None:
        for process, number, position in self._world.ready_reads:
            asked = self._asked.pop((process, number), None)
            if asked is not None and replicas.replicas.get(process) is asked[0]:
                asked[0].reads.confirm(asked[1], asked[2], position)
        self._world.ready_reads.clear()

    def _advance(self, process: ProcessId, replica: SimulatedReplica) -> None:
        closed = self._world.closed_until.get(process, (0, 0))[0] if replica.process.states_closings else None
        for read in replica.reads.advance(replica.position, closed, self._world.now):
            for reading in self.open:
                for group, (_, _, attempted) in list(reading.attempts.items()):
                    if attempted is not read:
                        continue
                    assert read.answer is not None
                    del reading.attempts[group]
                    reading.refusal = read.answer.refusal
                    if read.answer.result is not None:
                        reading.reading.results[group] = read.answer.result
