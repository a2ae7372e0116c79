"""Who holds a group's state, and what to say when too few do.

    replica that lost its memory      fellow that has it       fellow that lost its own
      |---- give me our group's state ---->|                            |
      |<------------ state ----------------|                            |
      |---- give me our group's state --------------------------------->|   nobody can: it waits, too

A replica that comes back without its records (`durability = "memory"`, a lost disk) has no vote until its group has
given it its state: it may have promised something. If so many lost theirs that those who are left may miss something,
the group never answers again. That is as it must be, for whoever guessed could contradict what was acknowledged; but
from outside it looks like a replica that hangs. So a replica that waits asks its fellows whether they hold the state
(`Stand`), and so does one that holds it when a fellow has begun a new incarnation. What they find is told by `amcast
status`, on /ready and in the log; and a client whose message is not answered in time asks the same.
"""

import asyncio
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.topology import Topology
from amcast.live.host.host import Host
from amcast.live.rpc.client import RpcClient
from amcast.live.rpc.server import Progress

log = logging.getLogger("amcast.live")

ANSWER_S: Final = 1.0
"""Who does not answer within this time is silent."""
PATIENT_S: Final = 5.0
"""Being given a state takes less; after so long, the log tells that it is waited for."""
REPEAT_S: Final = 600.0
"""How often the log tells it again."""
HURRIED_S: Final = 0.5
"""A client that has less time for a message has none for questions."""
FRESH_S: Final = 2.0
"""What a client asked is so long good enough for its other messages."""

GONE: Final = (
    "it was restarted, and its protocol takes no process back that crashed; a cluster of which too many did must begin"
    " anew, with empty data folders"
)
LOST: Final = (
    "where too few replicas of a group have its state, no restart brings it back, and what was acknowledged may be"
    " lost. To begin anew, stop all nodes of all groups and their clients, empty the data folder of every node (or"
    " choose another one: `data` in cluster.toml), and start them again"
)
"""What to do when a group has lost its state."""
UNCHANGED: Final = ", without [members] in cluster.toml"
KEPT: Final = '. With durability "os" or "fsync" instead of "memory", replicas come back from their logs'


class StateCount(NamedTuple):
    """Who of a group holds its state."""

    members: int
    quorum: int
    """So many must hold it for the group to go on."""
    holding: int
    lacking: int
    """They answer, and wait for it themselves."""
    silent: int
    """They do not answer: they may hold it."""

    @property
    def is_lost(self) -> bool:
        """Whoever is silent may come back with it, and it would not help: there are majorities of which nobody who
        remembers was a part, so nobody knows what those have promised."""
        return self.holding + self.silent <= self.members - self.quorum

    @property
    def answering(self) -> int:
        return self.holding + self.lacking


def count_state(topology: Topology, group: GroupId, standings: Mapping[ProcessId, Progress]) -> StateCount:
    """From what some of its members answered."""
    members = topology.members(group)
    answers = [standings[member] for member in members if member in standings]
    holding = sum(stands.has_state for stands in answers)
    return StateCount(
        len(members), topology.quorum(group), holding, len(answers) - holding, len(members) - len(answers)
    )


class StateSurvey:
    """One replica's knowledge of who holds the state of its group."""

    def __init__(self, host: Host, durability: str = "") -> None:
        self.count: StateCount | None = None
        """What was found last; None while there was no reason to look."""
        self.durability = durability
        """The cluster's, if it is known."""
        self._host = host
        self._surveyed: dict[ProcessId, int] | None = {}
        """The fellows' incarnations that were begun when all who were there held it; None while some do not."""
        self._short_since: float | None = None
        """Since when too few are known to hold it, or this replica does not."""
        self._warned = float("-inf")

    def has_state(self) -> bool:
        """Whether this replica has its group's state, all of it that it may have answered for."""
        vitals = self._host.process.status()
        return self._host.steps_taken > 0 and vitals.get("joined", 1) != 0 and int(vitals.get("configuration", 0)) >= 0

    async def survey(self, asker: RpcClient, fellows: Sequence[ProcessId]) -> None:
        """Ask, if there is a reason to; complain, if it has been so for long."""
        host = self._host
        group = host.process.group
        if group is None:
            return
        holds, incarnations = self.has_state(), self._incarnations(fellows)
        if not holds or incarnations != self._surveyed:
            standings = await asker.fetch_progress(fellows, ANSWER_S)
            standings[host.me] = Progress(0, 0, False, host.incarnation, holds)
            known = self.count = count_state(host.process.topology, group, standings)
            gone = sum(not host.network.is_connected(fellow) for fellow in fellows)
            self._surveyed = incarnations if not known.lacking and known.silent <= gone else None
        self._warn(time.monotonic())

    def reasons(self) -> list[str]:
        """Why this replica cannot serve: it waits for its group's state, or too few others have it."""
        vitals, known = self._host.process.status(), self.count
        if vitals.get("role") == "gone":
            return [GONE]
        told = "" if known is None else self._describe_others(known)
        if int(vitals.get("configuration", 0)) < 0:
            return [
                f"it waits for its group to tell its state in topology"
                f" {self._host.process.topology.configuration}{told}"
            ]
        if vitals.get("joined", 1) == 0:
            return [f"it lost its memory, and waits for its group to give it its state{told}"]
        if known is not None and known.lacking and known.holding < known.quorum:
            return [f"{known.holding} of {known.members} members of its group have its state{told}"]
        return []

    def _describe_others(self, known: StateCount) -> str:
        """What the others said, for the end of a sentence."""
        topology, home = self._host.process.topology, self._host.home
        others, answering, holding = known.members - 1, known.answering - 1, known.holding - self.has_state()
        have = "none has it" if not holding else "1 has it" if holding == 1 else f"{holding} have it"
        told = f" ({answering} of {others} others answer, {have})"
        if known.is_lost and home is not None:
            told += f": group {topology.names.get(home, home)} has lost it for good"
        return told

    def advice(self) -> list[str]:
        """What an operator must do, because waiting does not help; the same words at all nodes."""
        reasons = self.reasons()
        if self.count is None or not self.count.is_lost or not reasons or reasons == [GONE]:
            return []
        unchanged = UNCHANGED if self._host.process.topology.configuration else ""
        return [f"{LOST}{unchanged}{KEPT if self.durability == 'memory' else ''}"]

    def describe(self) -> dict[str, Any]:
        """For operators, as plain data."""
        known = self.count
        about = {} if known is None else {**known._asdict(), "lost": known.is_lost}
        return {"has_state": self.has_state(), **about}

    def _incarnations(self, fellows: Sequence[ProcessId]) -> dict[ProcessId, int]:
        """Of those who have begun more than one, as far as links tell."""
        links = self._host.network.links
        incarnations = {
            one: link.peer_incarnation[0]
            for one in fellows
            if (link := links.get(one)) is not None and link.peer_incarnation
        }
        return {one: incarnation for one, incarnation in incarnations.items() if incarnation > 0}

    def _warn(self, now: float) -> None:
        reasons = self.reasons()
        if not reasons:
            if self._warned > float("-inf"):
                log.info("process %d and enough of its fellows hold their group's state again", self._host.me)
            self._short_since, self._warned = None, float("-inf")
            return
        if self._short_since is None:
            self._short_since = now
        if now - self._short_since >= PATIENT_S and now - self._warned >= REPEAT_S:
            self._warned = now
            log.warning("process %d: %s", self._host.me, "; ".join((*reasons, *self.advice())), extra={"kind": "state"})


class UnansweredDiagnosis:
    """What a client may know of groups that do not answer it in time."""

    def __init__(self, asker: RpcClient, topology: Callable[[], Topology], genuine: bool) -> None:
        self._asker = asker
        self._topology = topology
        self._genuine = genuine
        """Only destinations take part in ordering a message."""
        self._lock = asyncio.Lock()
        self._known: dict[ProcessId, Progress] = {}
        self._asked = float("-inf")

    async def describe(self, groups: Sequence[GroupId], within_s: float) -> str:
        """A sentence for the end of another one, if there is anything to say. Who waited for so short a time is not
        kept waiting for it."""
        if within_s < HURRIED_S:
            return ""
        topology = self._topology()
        async with self._lock:
            # One asks for all whose time is over at once.
            if time.monotonic() - self._asked > FRESH_S:
                self._known = await self._asker.fetch_progress(topology.servers, min(within_s, ANSWER_S))
                self._asked = time.monotonic()
        told = [self._describe_group(topology, group) for group in (groups if self._genuine else topology.groups)]
        return "".join(f"; {one}" for one in told if one)

    def _describe_group(self, topology: Topology, group: GroupId) -> str:
        known = count_state(topology, group, self._known)
        name = topology.names.get(group, group)
        answering = f"{known.answering} of {known.members} replicas answer"
        if known.is_lost:
            said = f"group {name} has lost its state ({answering}, {known.holding or 'none'} with it)"
            return f"{said} and cannot go on: see `amcast status`"
        if known.answering < known.quorum:
            return f"of group {name}, {answering}"
        if known.holding < known.quorum:
            return f"group {name} waits for its state ({answering}, {known.holding or 'none'} with it)"
        return ""
