"""Admission: a process that starts takes part only when its group has confirmed the data folder that it starts with.

A folder knows only what it says (`kernel/folder.py`): an emptied folder looks new, an older copy looks sound.
Every process durably remembers of every other server which folder it had, in which incarnation and start, and how many
records were durable there. A process that starts asks all servers, and its protocol starts after their answers:

    process that starts                  every other server
      |---- AdmissionRequest ------------------>|  compares with what it remembers; remembers durably what is new
      |<--- AdmissionReply (verdict) -----------|
      |  decides; its protocol starts           |
      |---- Heartbeat (records) --------------->|  remembers how many records are durable there

Until then it neither votes nor leads, orders no request and sends no heartbeat. Let n be the size of its group and m a
majority of n. The witnesses are the other members; of a group of one, all other servers.

- **fresh** (never admitted): it takes part as a process that never did before, if all witnesses have answered, or
  n - m + 1 of them that take part, and none remembers another folder. *Proof*: assume that it took part before, with
  folder F. It was admitted with F after m - 1 other members had remembered F durably. If n - m + 1 answers come from
  members that take part, one of them is among these m - 1, because n - 1 < (n - m + 1) + (m - 1), and its memory is
  intact: it was admitted with its own. If all witnesses have answered, and none remembers F, then m - 1 members and
  this process have lost their folders: a majority, more than any protocol survives. So no folder of this process ever
  took part, and an empty state is its true state. A group that boots together needs one round trip and no operator; a
  group whose members are not all there at its first boot waits for them.
- **sound** (admitted before): m - 1 members must know this folder and remember no more of it than it has: no later
  incarnation, not more records, and no start that it does not know. It waits for the answers of all servers during
  `grace_ns`, because one that remembers more may be slow. If the answer comes later still, the process marks its folder
  doubtful and restarts. *Proof* that a member which remembers a start s of the folder notices every copy from before
  s: a folder writes the number of a start before it asks anybody, so whatever has been remembered of s is in all later
  states of the folder, and in no copy from before s; numbers are random, so no start of the copy has that of s, however
  many it has had. It keeps the last `MAX_STARTS` of them; a list that begins behind the incarnation of s says nothing
  about it. When records are put aside, the list begins anew, in an incarnation above all that were seen: it claims
  nothing of what others remember any more.
- **doubtful** (damaged, or an older copy): its records are not used. If the protocol readmits members that lost their
  records, and m other members take part, it restarts without records in an incarnation above all that were seen, and
  its group sends it its state. Otherwise it waits for an operator.
- **lost** (an operator has prepared an empty folder, `amcast replace`): as sound; others accept the new folder if its
  incarnation is above all that they have seen.
- **diverged** (a majority of its group contradicted what it delivered, `parts/node/replica_comparison.py`): it takes no
  part any more.
- **another folder is remembered** by any server: it is refused, unless that memory is outdated. A server that was down
  while an operator replaced a folder still remembers the old one. Its memory is outdated if the folder took part
  before, in a later incarnation than the remembered one, and m - 1 members know it, perhaps more of it than this copy
  has. *Proof*: these members remembered
  it when it was admitted, either as a replacement or because no member knew another; a member that remembers one folder
  accepts another only as a replacement. The members are those of the configuration that its records tell of, or of a
  later one that it heard of: only members of the former were asked when it was admitted, and a process that joined
  later may have met it before it was replaced. The next request tells the others that the folder is confirmed, and they
  remember it then.

The members are those of the newest configuration that the process knows: its records tell of one, and every reply of a
server that is in a later one brings that. A process that was down during changes may have no other member left in the
configuration that it began with.

Limits. Incarnations are remembered before they take part; record counts arrive with heartbeats and are written every
`remember_ns`, so an older copy that lacks less than this, or whose missing part was seen only by processes that are
silent at its start, is noticed late or not at all. An older copy that crashes in more than `MAX_STARTS` starts before
anybody has answered has lost its list. A group of one has no heartbeats: others know its incarnations and starts only.
"""

from collections.abc import Sequence
from typing import Final, Literal

from msgspec import structs

from amcast.kernel.effects import Restart
from amcast.kernel.events import Event, Started
from amcast.kernel.folder import FolderState, KnownFolder, Starts
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Record
from amcast.kernel.process import Process
from amcast.kernel.reconfiguration import decode_topology, encode_topology
from amcast.kernel.topology import Topology
from amcast.parts.node.messages import AdmissionConfig, AdmissionReply, AdmissionRequest, AdmissionState, Verdict

RETRY_TIMER: Final = "admission"
GRACE_TIMER: Final = "admission-grace"
MAX_DOUBLINGS: Final = 5
MAX_HELD: Final = 20_000
"""Events for the protocol that are held while it waits. With more, they are dropped, and the process restarts when it
is admitted: its links begin anew then, and nothing is missed."""
KNOWN_OR_AHEAD: Final[tuple[Verdict, ...]] = ("known", "replaced", "ahead")
"""The verdicts of those that remember the same folder: an older copy of it is not another one."""

Standing = Literal["unstated", "waiting", "refused", "doubtful", "admitted"]
"""unstated: the driver made no statement about a folder, and the process takes part without admission."""
Remedy = Literal["", "start", "replace", "accept", "renew"]
"""What an operator must do: start the missing members, replace the folder, accept a loss, or put the folder aside and
replace it."""


class Admission:
    """One server's admission, and what it remembers of the folders of others. It acts through its owner's verbs; sends
    and Remember effects of a step are emitted by `finish_step`, the durable memory first."""

    def __init__(self, owner: Process, config: AdmissionConfig) -> None:
        self.config = config
        self.standing: Standing = "unstated"
        self.takes_part = True
        """Whether the protocol runs: the standing is unstated or admitted."""
        self.counts_records = False
        """Whether the owner must report what it persists."""
        self.reason = ""
        """Why it waits or is refused, as a sentence; "" when it takes part."""
        self.remedy: Remedy = ""
        self._owner = owner
        assert owner.group is not None, f"process {owner.me} is a client; only servers are admitted"
        self._home = owner.group
        """The group that the process began in; a change may have removed it since."""
        self._folder: FolderState | None = None
        self._records: tuple[Record, ...] = ()
        """The records of the Started event, for the protocol."""
        self._recorded_topology = owner.topology
        """The newest topology that the records of this start tell of."""
        self._doubt = ""
        self.divergence = ""
        """Why the process has stopped for good: a majority of its group contradicts what it delivered."""
        self._has_graced = False
        """The time for slow answers is over."""
        self._attempts = 0
        self._known: dict[ProcessId, KnownFolder] = {}
        """What is remembered of other servers."""
        self._written: tuple[KnownFolder, ...] = ()
        """What of it is durable, or will be by the Remember effect of this step."""
        self._written_ns = 0
        self._replies: dict[ProcessId, AdmissionReply] = {}
        self._outgoing: list[tuple[ProcessId, AdmissionReply]] = []
        """Replies of this step: they leave behind the memory that they tell of."""
        self._must_remember = False
        self.ending: Restart | None = None
        """The end of this incarnation, which is the last effect of the step."""
        self._has_taken_part = False
        self._persisted = 0
        """How many records the owner has persisted in this incarnation."""
        self._held: list[Event] = []
        self._has_dropped = False
        """Events for the protocol were dropped."""

    @property
    def records(self) -> int:
        """How many records the owner has made durable, or will have before anything that it sends now leaves; 0 if its
        driver made no statement, -1 if its folder keeps none."""
        folder = self._folder
        return 0 if folder is None else -1 if folder.records < 0 else folder.records + self._persisted

    def count_persisted(self, count: int) -> None:
        self._persisted += count

    # Starting

    def start(self, event: Started) -> None:
        """Begins the admission of a folder; asks all other servers."""
        folder = event.folder
        assert folder is not None, "an admission needs the state of a folder"
        self._adopt_folder(folder)
        self._records = event.records
        self._recorded_topology = self._owner.topology
        self._doubt = folder.reason or "its records are damaged" if folder.condition == "doubtful" else ""
        self._known = {known.process: known for known in folder.peers}
        self._written = folder.peers
        self._state("waiting", self.reason, self.remedy)
        if folder.condition == "diverged":
            self._refuse_diverged(folder.reason)
            return
        others = self._other_servers()
        if others:
            self._owner.send_all(others, self._make_request())
            self._owner.set_timer(GRACE_TIMER, (self.config.grace_ns, self.config.grace_ns))
            self._arm_retry()

    def stop(self, divergence: str) -> None:
        """Ends the part of a process that diverged from its group, durably: it neither votes nor answers, in this
        incarnation or later ones, until an operator has replaced its folder. It still confirms the folders of others.
        """
        self._refuse_diverged(divergence)
        self._must_remember = True
        self.finish_step()

    def _refuse_diverged(self, divergence: str) -> None:
        self.divergence = divergence
        self._held.clear()
        self._state("refused", f"it has stopped, because it diverged from its group: {divergence}", "renew")

    def hold(self, event: Event) -> None:
        """Holds an event for the protocol until it starts."""
        if self.divergence:
            return
        if len(self._held) >= MAX_HELD:
            self._held.clear()
            self._has_dropped = True
        if not self._has_dropped:
            self._held.append(event)

    def _other_servers(self) -> tuple[ProcessId, ...]:
        return tuple(server for server in self._owner.topology.servers if server != self._owner.me)

    def _make_request(self) -> AdmissionRequest:
        folder = self._folder
        assert folder is not None
        condition = "doubtful" if self._doubt else folder.condition
        return AdmissionRequest(
            folder.folder, folder.incarnation, folder.start, folder.records, condition, folder.accepts_loss,
            self._owner.topology.configuration, folder.condition != "fresh" and self._is_confirmed(), folder.starts,
        )  # fmt: skip

    def _own_folder(self) -> KnownFolder:
        folder = self._folder
        if folder is None:
            return KnownFolder(self._owner.me, 0, 0, 0)
        return KnownFolder(self._owner.me, folder.folder, folder.incarnation, self.records, folder.start)

    # Events

    def handle_timer(self, name: str) -> None:
        if name == GRACE_TIMER:
            self._has_graced = True
        elif not self.takes_part and not self.divergence:
            self._attempts += 1
            self._owner.send_all(self._other_servers(), self._make_request())
            self._arm_retry()

    def _arm_retry(self) -> None:
        factor = 1 << min(self._attempts, MAX_DOUBLINGS)
        low, high = self.config.retry_ns
        self._owner.set_timer(RETRY_TIMER, (low * factor, high * factor))

    def handle_link_reset(self, peer: ProcessId) -> None:
        """Asks a server again whose request or reply may be lost."""
        is_asking = self._folder is not None and not self.divergence
        if is_asking and peer not in self._replies and peer in self._other_servers():
            self._owner.send(peer, self._make_request())

    def handle_request(self, sender: ProcessId, body: AdmissionRequest) -> None:
        """Replies from memory, which is durable before the reply leaves."""
        known = self._known.get(sender)
        stated = KnownFolder(sender, body.folder, body.incarnation, body.records, body.start)
        verdict = _compare(known, stated, body)
        if verdict == "ahead" and body.condition == "doubtful" and known is not None:
            # It does not use its records; only its incarnations must be counted on.
            stated = structs.replace(stated, records=known.records)
            self._remember(structs.replace(stated, incarnation=max(stated.incarnation, known.incarnation)))
        elif verdict not in ("other", "ahead"):
            self._remember(stated)
        contradicted = known if verdict in ("other", "ahead") else None
        topology = self._owner.topology
        reply = AdmissionReply(
            body.start,
            verdict,
            contradicted,
            self.standing == "admitted",
            self._own_folder(),
            encode_topology(topology) if topology.configuration > body.configuration else b"",
        )
        self._outgoing.append((sender, reply))

    def handle_reply(self, sender: ProcessId, body: AdmissionReply) -> None:
        """Notes a verdict. One that contradicts a process that takes part already makes it restart as doubtful."""
        folder = self._folder
        if folder is None or body.start != folder.start:
            return
        earlier = self._replies.get(sender)
        if earlier is not None and earlier.is_admitted and not body.is_admitted:
            body = structs.replace(body, is_admitted=True)
        self._replies[sender] = body
        self._meet(sender, body.own)
        if self.standing == "admitted" and self._is_contradiction(body):
            self._doubt = self._describe_contradiction(sender, body)
            self._must_remember = True
            self.reason = f"its data folder is doubtful: {self._doubt}"
            self.ending = Restart()

    def _meet(self, sender: ProcessId, own: KnownFolder) -> None:
        """Remembers the folder of a server that replied, unless more is known of it: then it is told when it asks."""
        known = self._known.get(sender)
        if own.folder == 0 or known == own:
            return
        if known is not None:
            goes_back = own.incarnation < known.incarnation or own.records < known.records
            if known.folder != own.folder or goes_back:
                return
        self._remember(own)

    def handle_records(self, sender: ProcessId, incarnation: int, records: int) -> None:
        """Remembers how many records a member has made durable. Records of an incarnation whose request is still on its
        way do not count: the request states those of its start, and must not look like that of an older copy."""
        known = self._known.get(sender)
        if known is not None and incarnation == known.incarnation and records > known.records:
            self._known[sender] = structs.replace(known, records=records)

    def write_counts(self) -> None:
        """Makes record counts durable that arrived since the last time; called with every heartbeat."""
        now = self._owner.now
        if now - self._written_ns >= self.config.remember_ns and self._folder is not None:
            self._written_ns = now
            if self.known_folders() != self._written:
                self._emit_memory(lazy=True)

    def _remember(self, folder: KnownFolder) -> None:
        known = self._known.get(folder.process)
        if known is not None and known.folder == folder.folder and known.records > folder.records >= 0:
            folder = structs.replace(folder, records=known.records)
        if folder != known:
            self._known[folder.process] = folder
            self._must_remember = True

    # The end of a step

    def finish_step(self) -> Started | None:
        """Emits what the step changed, durable memory first. Returns the Started event of the protocol when the process
        is admitted; `take_held` has the events after it."""
        owner = self._owner
        started = None
        if not self.takes_part and not self.divergence and self._decide():
            started = self._admit()
        if self._must_remember and self._folder is not None:
            self._emit_memory()
        self._must_remember = False
        for receiver, reply in self._outgoing:
            owner.send(receiver, reply)
        self._outgoing.clear()
        if self.ending is None:
            return started
        owner.note("restarted", value=float(self.ending.incarnation))
        owner.restart(self.ending.incarnation, self.ending.records)
        return None

    def take_held(self) -> Sequence[Event]:
        held, self._held = self._held, []
        return held

    def known_folders(self) -> tuple[KnownFolder, ...]:
        """What is remembered of other servers, by process id."""
        return tuple(known for _, known in sorted(self._known.items()))

    def _emit_memory(self, lazy: bool = False) -> None:
        assert self._folder is not None
        self._written = self.known_folders()
        admitted = self._folder.admitted or self._has_taken_part
        self._owner.remember(self._written, admitted, self._doubt, lazy, self.divergence)

    # The decision

    def _decide(self) -> bool:
        """Whether the process takes part from now on; otherwise states why not, or restarts it."""
        folder = self._folder
        assert folder is not None
        if folder.accepts_loss:
            return True
        for sender, reply in sorted(self._replies.items()):
            if reply.verdict == "other" and self._is_contradiction(reply):
                self._state("refused", self._describe_contradiction(sender, reply), "replace")
                return False
            if reply.verdict == "ahead" and not self._doubt:
                self._doubt = self._describe_contradiction(sender, reply)
                self._must_remember = True
        if self._doubt:
            self._decide_doubtful(folder)
            return False
        obstacle = self._find_missing_witnesses() if folder.condition == "fresh" else self._find_missing_majority()
        if obstacle:
            self._state("waiting", obstacle, "start")
        elif not self._has_graced and len(self._replies) < len(self._other_servers()):
            self._state("waiting", "it waits for the answers of slow servers before it takes part")
        else:
            return True
        return False

    def _is_contradiction(self, reply: AdmissionReply) -> bool:
        """Whether a server remembers another folder, or more of this one, and its memory is not outdated."""
        folder, known = self._folder, reply.known
        if reply.verdict not in ("other", "ahead"):
            return False
        if reply.verdict == "ahead" or folder is None or known is None or folder.condition == "fresh":
            return True
        return known.incarnation >= folder.incarnation or not self._is_confirmed()

    def _is_confirmed(self) -> bool:
        """Whether enough members know this folder, or more of it than this copy has, of the configuration that its
        records tell of, or of the newest."""
        topologies = (self._recorded_topology, None)
        return not all(self._find_missing_majority(topology, KNOWN_OR_AHEAD) for topology in topologies)

    def _state(self, standing: Standing, reason: str, remedy: Remedy = "") -> None:
        self.standing, self.reason, self.remedy = standing, reason, remedy
        self.takes_part = standing in ("unstated", "admitted")

    def _adopt_folder(self, folder: FolderState | None) -> None:
        self._folder = folder
        self.counts_records = folder is not None and folder.records >= 0

    def _is_member(self, process: ProcessId) -> bool:
        return self._owner.topology.group_of(process) == self._home

    def _find_missing_witnesses(self) -> str:
        """Why a fresh folder does not take part yet; "" if it may."""
        topology, home = self._owner.topology, self._home
        witnesses = [member for member in topology.members(home) if member != self._owner.me]
        needed = len(witnesses) + 2 - topology.quorum(home)
        if not witnesses:
            witnesses = list(self._other_servers())
            needed = len(witnesses) // 2 + 1
        replies = [self._replies[witness] for witness in witnesses if witness in self._replies]
        missing = [witness for witness in witnesses if witness not in self._replies]
        if not missing or sum(reply.is_admitted for reply in replies) >= needed:
            return ""
        return (
            f"it waits for admission: its data folder is new, and {len(replies)} of {len(witnesses)} other members have"
            f" answered; {_name_processes(missing)} must answer, too"
        )

    def _find_missing_majority(
        self, topology: Topology | None = None, verdicts: tuple[Verdict, ...] = ("known", "replaced")
    ) -> str:
        """Why a folder that took part before does not yet, by the members of a topology; "" if it may."""
        topology = topology or self._owner.topology
        members = topology.members(self._home)
        needed = topology.quorum(self._home) - 1
        known = sum(reply.verdict in verdicts for sender, reply in self._replies.items() if sender in members)
        if known >= needed:
            return ""
        return f"it waits for admission: {known} of {needed} other members needed have confirmed its data folder"

    def _decide_doubtful(self, folder: FolderState) -> None:
        if not self.config.readmits:
            self._state(
                "refused", f"its data folder is doubtful: {self._doubt}; its protocol readmits no such member", "accept"
            )
            return
        topology = self._owner.topology
        needed = topology.quorum(self._home)
        able = sum(reply.is_admitted for sender, reply in self._replies.items() if self._is_member(sender))
        if able < needed:
            reason = (
                f"its data folder is doubtful: {self._doubt}; {able} of {needed} members that could give it its group's"
                f" state take part"
            )
            self._state("doubtful", reason, "accept" if self._has_graced else "")
            return
        self.reason = f"its data folder is doubtful: {self._doubt}"
        seen = [reply.known for reply in self._replies.values() if reply.known is not None]
        incarnation = 1 + max([folder.incarnation, *(known.incarnation for known in seen)])
        self.ending = Restart(incarnation, max([folder.records, 0, *(known.records for known in seen)]))

    def _admit(self) -> Started:
        folder = self._folder
        assert folder is not None
        self._state("admitted", "")
        self._doubt = ""
        self._has_taken_part = self._must_remember = True
        self._owner.cancel_timer(GRACE_TIMER)
        self._owner.cancel_timer(RETRY_TIMER)
        self._owner.note("admitted", value=float(folder.incarnation))
        if self._has_dropped:
            self.ending = Restart()
        records, self._records = self._records, ()
        return Started((), 0) if folder.condition == "fresh" else Started(records, folder.incarnation)

    def _describe_contradiction(self, sender: ProcessId, reply: AdmissionReply) -> str:
        folder, known = self._folder, reply.known
        assert folder is not None
        assert known is not None, "a contradiction names the folder that is remembered"
        if reply.verdict == "other":
            return (
                f"process {sender} remembers data folder {known.folder:016x} of this process, in incarnation"
                f" {known.incarnation}; this is data folder {folder.folder:016x}, in incarnation {folder.incarnation}"
            )
        if known.incarnation < folder.incarnation and known.records <= folder.records:
            return (
                f"it is an older copy: process {sender} remembers a start in incarnation {known.incarnation} that this"
                f" folder does not know; here begins incarnation {folder.incarnation}"
            )
        return (
            f"it is an older copy: process {sender} remembers incarnation {known.incarnation} and {known.records}"
            f" records of it; here begins incarnation {folder.incarnation} with {folder.records} records"
        )

    def describe(self) -> dict[str, int | str]:
        """The standing for operators; empty without a statement of the driver."""
        if self._folder is None:
            return {}
        return {
            "folder": f"{self._folder.folder:016x}",
            "admission": self.standing,
            "admission_reason": self.reason,
            "admission_remedy": self.remedy,
        }

    # Snapshots

    def snapshot(self) -> AdmissionState | None:
        if self._folder is None:
            return None
        return AdmissionState(
            self._folder,
            self.standing,
            self._doubt,
            self._has_graced,
            self._has_taken_part,
            self._attempts,
            self.known_folders(),
            tuple(sorted(self._replies.items())),
            self._persisted,
            self._written,
            self._written_ns,
            self._records,
            tuple(self._held),
            b"" if self.takes_part else encode_topology(self._owner.topology),
            self.divergence,
            encode_topology(self._recorded_topology),
        )

    def restore(self, state: AdmissionState) -> None:
        self._adopt_folder(state.folder)
        self._state(state.state, self.reason, self.remedy)  # type: ignore[arg-type]
        self._doubt = state.doubt
        self._has_graced = state.has_graced
        self._has_taken_part = state.has_taken_part
        self._attempts = state.attempts
        self._known = {known.process: known for known in state.known}
        self._replies = dict(state.replies)
        self._persisted = state.persisted
        self._written = state.written
        self._written_ns = state.written_ns
        self._records = state.records
        self._held = list(state.held)
        self._recorded_topology = decode_topology(state.recorded_topology)
        if state.divergence:
            self._refuse_diverged(state.divergence)


def _compare(known: KnownFolder | None, stated: KnownFolder, request: AdmissionRequest) -> Verdict:
    """What is remembered of a folder, compared with what its process states."""
    if known is None:
        return "new"
    if stated.start == known.start and stated.folder == known.folder:
        # A repeated request. An older copy that asks again must hear again of what it lacks.
        return "known" if stated.incarnation >= known.incarnation else "ahead"
    if request.accepts_loss:
        return "replaced"
    if stated.folder != known.folder:
        is_known_elsewhere = request.condition == "lost" or request.is_confirmed
        is_replacement = is_known_elsewhere and stated.incarnation > known.incarnation
        return "replaced" if is_replacement else "other"
    has_fewer = 0 <= stated.records < known.records
    is_older = stated.incarnation <= known.incarnation or has_fewer or _lacks_start(known, request.starts)
    return "ahead" if is_older else "known"


def _lacks_start(known: KnownFolder, starts: Starts) -> bool:
    """Whether the starts that a folder states reach back to the one that is remembered, and do not contain it."""
    reaches_back = bool(starts) and starts[0][0] <= known.incarnation
    return reaches_back and all(start != known.start for _, start in starts)


def _name_processes(processes: Sequence[ProcessId]) -> str:
    return ("process " if len(processes) == 1 else "processes ") + ", ".join(map(str, processes))
