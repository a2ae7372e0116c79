"""Survey of the members that have their group's state, and the diagnosis when too few do.

    replica without state            member with state        another member without state
      |---- request the group's state ---->|                            |
      |<------------ state ----------------|                            |
      |---- request the group's state --------------------------------->|   no answer: it waits as well

A replica that restarts without its records (`durability = "memory"`, a lost disk) has no vote until its group has sent
it the group's state, because it may have made promises. If so many members lost their state that the others may lack a
promise, the group never answers again. That is required, since a guess could contradict acknowledged messages; but from
outside it looks like a replica that hangs. So a replica that waits asks the other members whether they have the state
(`GetProgress`), and so does a replica with state when a member has begun a new incarnation. `amcast status`, /ready and
the log show the result; a client whose message is not answered in time runs the same survey.
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
from amcast.live.rpc.messages import Progress

log = logging.getLogger("amcast.live")

ANSWER_S: Final = 1.0
"""A member that does not answer within this time counts as silent."""
WARN_AFTER_S: Final = 5.0
"""The log warns after this long; transferring a state takes less."""
REPEAT_S: Final = 600.0
"""Interval between repeated warnings."""
MIN_DIAGNOSED_S: Final = 0.5
"""A multicast with a shorter time-out is not diagnosed."""
REUSE_S: Final = 2.0
"""How long a client reuses the answers of one survey."""

GONE: Final = (
    "it was restarted, and its protocol does not readmit a crashed process; a cluster in which too many crashed must"
    " start over, with empty data folders"
)
LOST: Final = (
    "where too few replicas of a group have its state, no restart brings it back, and what was acknowledged may be"
    " lost. To start over, stop all nodes of all groups and their clients, empty the data folder of every node (or"
    " choose another one: `data` in cluster.toml), and start them again"
)
"""Advice for a group that has lost its state."""
WITHOUT_MEMBERS: Final = ", without [members] in cluster.toml"
USE_LOGS: Final = '. With durability "os" or "fsync" instead of "memory", replicas come back from their logs'


class StateCount(NamedTuple):
    """How many members of a group have its state."""

    members: int
    quorum: int
    """Members that must have the state for the group to continue."""
    holding: int
    lacking: int
    """Members that answer and wait for the state."""
    silent: int
    """Members that do not answer: they may have the state."""

    @property
    def is_lost(self) -> bool:
        """Whether the state is lost even if all silent members return with it: some majority contains no member with
        state, so its promises are unknown."""
        return self.holding + self.silent <= self.members - self.quorum

    @property
    def answering(self) -> int:
        return self.holding + self.lacking


def count_state(topology: Topology, group: GroupId, progress: Mapping[ProcessId, Progress]) -> StateCount:
    """Counts the members of a group by their answers."""
    members = topology.members(group)
    answers = [progress[member] for member in members if member in progress]
    holding = sum(answer.has_state for answer in answers)
    return StateCount(
        len(members), topology.quorum(group), holding, len(answers) - holding, len(members) - len(answers)
    )


class StateSurvey:
    """The knowledge of one replica about which members have their group's state."""

    def __init__(self, host: Host, durability: str = "") -> None:
        self.count: StateCount | None = None
        """The result of the last survey; None while there was no reason for one."""
        self.durability = durability
        """The durability of the cluster, if it is known."""
        self._host = host
        self._surveyed: dict[ProcessId, int] | None = {}
        """Incarnations of the other members when all that were up had the state; None while some lack it."""
        self._lacking_since: float | None = None
        """When it first became known that this replica or too many others lack the state."""
        self._warned = float("-inf")

    def has_state(self) -> bool:
        """Whether this replica has its group's state, including everything that it may have acknowledged."""
        status = self._host.process.status()
        if status.get("admission", "admitted") != "admitted":
            return False
        return self._host.steps_taken > 0 and status.get("joined", 1) != 0 and int(status.get("configuration", 0)) >= 0

    async def survey(self, rpc: RpcClient, other_members: Sequence[ProcessId]) -> None:
        """Surveys the other members if there is a reason to; warns if the state has been missing for long."""
        host = self._host
        group = host.process.group
        if group is None:
            return
        has_state, incarnations = self.has_state(), self._incarnations(other_members)
        if not has_state or incarnations != self._surveyed:
            progress = await rpc.fetch_progress(other_members, ANSWER_S)
            progress[host.me] = Progress(0, 0, False, host.incarnation, has_state)
            count = self.count = count_state(host.process.topology, group, progress)
            gone = sum(not host.network.is_connected(member) for member in other_members)
            self._surveyed = incarnations if not count.lacking and count.silent <= gone else None
        self._warn(time.monotonic())

    def reasons(self) -> list[str]:
        """Why this replica cannot serve: it waits for its group's state, or too few members have it."""
        status, count = self._host.process.status(), self.count
        if status.get("role") == "gone":
            return [GONE]
        others = "" if count is None else self._describe_others(count)
        if int(status.get("configuration", 0)) < 0:
            return [
                f"it waits for its group's state in configuration {self._host.process.topology.configuration}{others}"
            ]
        if status.get("joined", 1) == 0:
            return [f"it lost its memory, and waits for its group to give it its state{others}"]
        if count is not None and count.lacking and count.holding < count.quorum:
            return [f"{count.holding} of {count.members} members of its group have its state{others}"]
        return []

    def _describe_others(self, count: StateCount) -> str:
        """The answers of the other members, for the end of a sentence."""
        topology, home = self._host.process.topology, self._host.home
        total, answering, holding = count.members - 1, count.answering - 1, count.holding - self.has_state()
        have = "none has it" if not holding else "1 has it" if holding == 1 else f"{holding} have it"
        text = f" ({answering} of {total} others answer, {have})"
        if count.is_lost and home is not None:
            text += f": group {topology.names.get(home, home)} has lost it for good"
        return text

    def advice(self) -> list[str]:
        """What the operator must do because waiting does not help; the same words at all nodes."""
        reasons = self.reasons()
        if self.count is None or not self.count.is_lost or not reasons or reasons == [GONE]:
            return []
        without_members = WITHOUT_MEMBERS if self._host.process.topology.configuration else ""
        return [f"{LOST}{without_members}{USE_LOGS if self.durability == 'memory' else ''}"]

    def describe(self) -> dict[str, Any]:
        """The result of the survey, as plain data."""
        count = self.count
        described = {} if count is None else {**count._asdict(), "lost": count.is_lost}
        return {"has_state": self.has_state(), **described}

    def _incarnations(self, other_members: Sequence[ProcessId]) -> dict[ProcessId, int]:
        """Incarnations of members that were restarted, as far as links know."""
        links = self._host.network.links
        incarnations = {
            one: link.peer_incarnation[0]
            for one in other_members
            if (link := links.get(one)) is not None and link.peer_incarnation
        }
        return {one: incarnation for one, incarnation in incarnations.items() if incarnation > 0}

    def _warn(self, now: float) -> None:
        reasons = self.reasons()
        if not reasons:
            if self._warned > float("-inf"):
                log.info("process %d and enough other members have their group's state again", self._host.me)
            self._lacking_since, self._warned = None, float("-inf")
            return
        if self._lacking_since is None:
            self._lacking_since = now
        if now - self._lacking_since >= WARN_AFTER_S and now - self._warned >= REPEAT_S:
            self._warned = now
            log.warning("process %d: %s", self._host.me, "; ".join((*reasons, *self.advice())), extra={"kind": "state"})


class UnansweredDiagnosis:
    """Diagnoses groups that do not answer a client in time."""

    def __init__(self, rpc: RpcClient, topology: Callable[[], Topology], genuine: bool) -> None:
        self._rpc = rpc
        self._topology = topology
        self._genuine = genuine
        """Only destination groups take part in ordering a message."""
        self._lock = asyncio.Lock()
        self._progress: dict[ProcessId, Progress] = {}
        self._surveyed_at = float("-inf")

    async def describe(self, groups: Sequence[GroupId], within_s: float) -> str:
        """Text for the end of an error message, empty if there is nothing to report. A caller with a short time-out is
        not delayed."""
        if within_s < MIN_DIAGNOSED_S:
            return ""
        topology = self._topology()
        async with self._lock:
            # One survey serves all messages that time out together.
            if time.monotonic() - self._surveyed_at > REUSE_S:
                self._progress = await self._rpc.fetch_progress(topology.servers, min(within_s, ANSWER_S))
                self._surveyed_at = time.monotonic()
        parts = [self._describe_group(topology, group) for group in (groups if self._genuine else topology.groups)]
        return "".join(f"; {part}" for part in parts if part)

    def _describe_group(self, topology: Topology, group: GroupId) -> str:
        count = count_state(topology, group, self._progress)
        name = topology.names.get(group, group)
        answering = f"{count.answering} of {count.members} replicas answer"
        if count.is_lost:
            text = f"group {name} has lost its state ({answering}, {count.holding or 'none'} with it)"
            return f"{text} and cannot go on: see `amcast status`"
        if count.answering < count.quorum:
            return f"of group {name}, {answering}"
        if count.holding < count.quorum:
            return f"group {name} waits for its state ({answering}, {count.holding or 'none'} with it)"
        return ""
