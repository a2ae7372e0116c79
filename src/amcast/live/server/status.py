"""Status of a node for its operator: readiness, progress, queues, slow peers, and what a message waits for.

`amcast status` (over RPC, `live/rpc/server.py`), the metrics and the HTTP server (`live/server/http.py`) show the same
data. It never contains a payload or a key.
"""

import asyncio
import time
from functools import cached_property
from typing import Any, Final

import msgspec

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.process import Process
from amcast.live.host.host import Host
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.membership.state_survey import StateSurvey
from amcast.live.rpc.server import ResultSource
from amcast.live.wire.link import Link
from amcast.storage.scrubber import Scrubber

MAX_SLOW_CLIENTS: Final = 5
"""Clients listed one by one: those with the most bytes queued for them."""

LONG_HOLD_S: Final = 1.0
"""Answers that are held back for longer are worth a warning. Others wait for milliseconds."""


class StatusReporter:
    """Describes one replica as plain data."""

    def __init__(
        self,
        host: Host,
        survey: StateSurvey,
        recent: RecentDeliveries,
        caught_up: asyncio.Event,
        name: str,
        cluster: str,
        protocol: str,
        durability: str,
        config: str = "cluster.toml",
        scrubber: Scrubber | None = None,
        service: ResultSource | None = None,
    ) -> None:
        """`config` names the cluster.toml in advice to operators; `service` is what the replica executes, if any."""
        self._service = service
        self.host = host
        self.survey = survey
        self._recent = recent
        self._caught_up = caught_up
        self.name = name
        self.cluster = cluster
        self.protocol = protocol
        self.durability = durability
        self._config = config
        self._scrubber = scrubber
        self._began = time.monotonic()

    @cached_property
    def version(self) -> str:
        """The installed version. It is read when it is first asked for: that takes long, and most starts need none."""
        from importlib import metadata

        try:
            return metadata.version("amcast")
        except metadata.PackageNotFoundError:
            return "unknown"

    def admission(self) -> str:
        """The standing of this replica's data folder (`parts/node/admission.py`)."""
        return str(self.host.process.status().get("admission", "unstated"))

    def admission_reason(self) -> str:
        """Why this replica does not take part in its group; "" if it does."""
        if self.host.steps_taken == 0:
            return "it starts"
        status = self.host.process.status()
        return str(status.get("admission_reason", ""))

    def divergence(self) -> str:
        """Which replicas of the group hold something else (`parts/node/replica_comparison.py`); "" as long as no
        difference is known."""
        return str(self.host.process.status().get("divergence", ""))

    def has_diverged(self) -> bool:
        """Whether this replica has stopped, because a majority of its group contradicts it."""
        return self.host.process.status().get("admission_remedy") == "renew"

    def split(self) -> str:
        """How the replicas of the group differ, if no majority of them agrees; "" otherwise."""
        return self.divergence() if self.host.process.status().get("comparison") == "split" else ""

    def refusal(self) -> str:
        """Why this replica answers no request, as the end of a sentence; "" if it does."""
        if reason := self.admission_reason():
            return f"does not take part in its group: {reason}"
        return f"serves nobody: {split}" if (split := self.split()) else ""

    def advice(self) -> list[str]:
        """What an operator must do because waiting does not help."""
        status = self.host.process.status()
        remedy = status.get("admission_remedy", "")
        command = f"`amcast replace --config {self._config} --node {self.name}"
        if status.get("comparison") == "split":
            return [
                f"replicas of the group of {self.name} differ, and no majority agrees: decide which of them are right;"
                f" stop every other one, move its data folder away (and keep it), run `amcast replace --config"
                f" {self._config} --node NODE` for it, and start it again"
            ]
        if remedy == "renew":
            return [
                f"{self.name} has diverged from its group: look for the cause (memory, disk, other versions); stop it,"
                f" move its data folder away (and keep it), run {command}`, and start it again"
            ]
        if remedy == "replace":
            return [f"if the folder was lost, stop {self.name}, run {command}`, and start it again"]
        if remedy == "accept":
            return [
                f"if its group cannot restore it: stop {self.name}, run {command} --accept-loss`, and start it again;"
                f" what was acknowledged and is missing in the folder may be lost"
            ]
        if self._scrubber is not None and self._scrubber.damage:
            return [
                f"the log of {self.name} is damaged on its disk: restart it while all other members of its group are"
                f" ready; it gets its state from them. Replace the disk if it happens again"
            ]
        return self.survey.advice()

    def reasons_not_ready(self) -> list[str]:
        """Why this node is not ready to serve; empty when it is ready."""
        host = self.host
        if host.ended.done():
            return ["it has stopped"]
        reasons = ["it is leaving"] if host.is_leaving else []
        admission_reason = self.admission_reason()
        if admission_reason:
            return [*reasons, admission_reason]
        state_reasons = self.survey.reasons()
        reasons += state_reasons
        if not state_reasons and not self._caught_up.is_set():
            reasons.append("it has not caught up with its group")
        if split := self.split():
            reasons.append(split)
        if host.retired_ns is not None or host.process.group is None:
            reasons.append("it was removed from its group")
        home = host.process.group
        return reasons + [text for group, text in self._list_unreached() if group == home]

    def warnings(self) -> list[str]:
        """What needs attention although this node serves: other groups of which it reaches no majority, and for which
        messages wait; answers that real-time order holds back; replicas that differ from a majority; damage of its log;
        a service that waits for another group."""
        home = self.host.process.group
        warnings = [text for group, text in self._list_unreached() if group != home]
        if holding := describe_holding(self.host.process):
            warnings.append(holding)
        if self.host.process.is_serving and (divergence := self.divergence()):
            warnings.append(divergence)
        if self._scrubber is not None and self._scrubber.damage:
            warnings.append(f"its log is damaged: {self._scrubber.damage}")
        if self._service is not None and (waiting := self._service.describe_waiting()):
            warnings.append(f"its service waits for another group: {waiting}")
        return warnings

    def _list_unreached(self) -> list[tuple[GroupId, str]]:
        host = self.host
        topology = host.process.topology
        unreached = []
        for group in topology.groups:
            members = topology.members(group)
            up = sum(member == host.me or host.network.is_connected(member) for member in members)
            if up < topology.quorum(group):
                name = topology.names_of((group,))[0]
                unreached.append((group, f"it reaches {up} of {len(members)} members of group {name}"))
        return unreached

    def status(self) -> dict[str, Any]:
        """The whole status, as plain data."""
        host = self.host
        topology = host.process.topology
        reasons = self.reasons_not_ready()
        links = host.network.links
        clients = [link for peer, link in links.items() if topology.group_of(peer) is None]
        slowest = sorted(clients, key=lambda link: -link.queued_bytes)[:MAX_SLOW_CLIENTS]
        return {
            "node": self.name,
            "process": host.me,
            "group": host.home,
            "topology": topology.describe(),
            "cluster": self.cluster,
            "protocol": self.protocol,
            "service": "" if self._service is None else self._service.digest,
            "durability": self.durability,
            "version": self.version,
            "wire": list(host.network.versions),
            "incarnation": host.incarnation,
            "uptime_s": round(time.monotonic() - self._began, 3),
            "ready": not reasons,
            "not_ready_reasons": reasons,
            "warnings": self.warnings(),
            "advice": self.advice(),
            "divergence": self.divergence(),
            "differs": bool(self.divergence()),
            "diverged": self.has_diverged(),
            "scrub": self._describe_scrub(),
            "admission": self.admission(),
            "admitted": self.admission() in ("unstated", "admitted"),
            "group_state": self.survey.describe(),
            "known_folders": [msgspec.structs.asdict(known) for known in host.process.known_folders()],
            "protocol_status": dict(host.process.status()),
            "queues": host.queues(),
            "recent_deliveries": {"first": self._recent.first, "next": self._recent.next},
            "subscribers": self._recent.subscribers,
            "links": [_describe_link(links.get(peer), peer) for peer in topology.servers if peer != host.me],
            "unordered_bytes": host.process.unanswered_bytes(),
            "clients_paused": host.network.are_clients_paused,
            "clients": len(clients),
            "slowest_clients": [_describe_link(link, link.peer) for link in slowest if link.queued_bytes],
            "pending_connections": len(host.network.pending),
            "evicted_connections": host.network.pending.dismissed,
            "refused_connections": host.network.pending.refused,
            "client_connections": host.network.quotas.connections,
            "clients_over_rate": len(host.network.names_over_rate),
            "clients_over_bytes": len(host.network.names_over_bytes),
            "quota_refusals": host.network.quotas.refused,
            "corrupted_frames": host.network.pending.corrupted,
            "steps": host.steps_taken,
            "events": host.events_taken,
            "delivered": host.sink.count,
            "lost_sends": host.lost_sends,
        }

    def _describe_scrub(self) -> dict[str, Any]:
        scrubber = self._scrubber
        if scrubber is None:
            return {"passes": 0, "bytes": 0, "damaged": False, "damage": ""}
        return {
            "passes": scrubber.passes,
            "bytes": scrubber.bytes,
            "damaged": bool(scrubber.damage),
            "damage": scrubber.damage,
        }

    def explain(self, message: MessageId) -> dict[str, Any]:
        """The phases of one message at this replica: those that are done, and what it waits for."""
        phases = self.host.process.explain(message)
        delivered = self.host.process.has_delivered(message)
        if phases:
            described = [{**phase._asdict(), "waiting_for": list(phase.waiting_for)} for phase in phases]
        else:
            if delivered:
                text = f"process {self.host.me} has delivered it"
            else:
                text = f"it is not delivered here; {self.protocol} cannot tell what it waits for"
            described = [{"name": "delivered", "is_done": delivered, "description": text, "waiting_for": []}]
        if delivered and self._service is not None:
            position = self._recent.find(message)
            if position is not None:
                waiting = self._service.explain(position)
                text = waiting or f"process {self.host.me} has executed it at position {position}"
                described.append({"name": "executed", "is_done": not waiting, "description": text, "waiting_for": []})
        return {"node": self.name, "process": self.host.me, "delivered": delivered, "phases": described}


def describe_holding(process: Process) -> str:
    """How long answers have been held back, and what they wait for; empty unless it is unusually long."""
    status = process.status()
    held_s = (process.now - int(status.get("closing_since_ns") or process.now)) / 1e9
    if held_s < LONG_HOLD_S:
        return ""
    return f"it has held back answers for {held_s:.0f} s (real-time order), waiting for {status['closing_waits_for']}"


def _describe_link(link: Link | None, peer: ProcessId) -> dict[str, Any]:
    if link is None:
        none = {"queued_bytes": 0, "unsent_bytes": 0, "congested": False, "version": None, "incarnation": None}
        return {"peer": peer, "up": False, **none}
    up = link.connection is not None
    return {
        "peer": peer,
        "up": up,
        "queued_bytes": link.queued_bytes,
        "unsent_bytes": link.unsent_bytes,
        "congested": link.is_congested,
        "version": link.version if up else None,
        "incarnation": None if link.peer_incarnation is None else link.peer_incarnation[0],
    }
