"""FastCast: BaseCast whose leaders guess their groups' timestamps, and are usually right.

Source: paper 003, algorithm 2.

    client     group g: leader, members          group h: leader, members
      |--Request-->|  |--------------------------->|  |          START
      |            |==|  Paxos: SET-HARD           |==|          \\ slow path, at the same time:
      |            |-------SoftStamp-------------->|->|          / fast path: SEND-SOFT, the leader's guess
      |            |==|  Paxos: SYNC-SOFT          |==|          all groups' guesses enter the log together
      |            |---------Stamp---------------->|->|          SEND-HARD, when SET-HARD is decided
      |          deliver                         deliver         if every guess was right
      |            |==|  Paxos: SYNC-HARD          |==|          else the true timestamps enter the log

Claims: genuine; four message delays while leaders are stable, local messages three; six with wrong guesses; crashes,
recovery and lost memory as BaseCast.

Deviations from the paper, each with its reason in docs/protocols/fastcast.md: a message that the log stamped blocks
later ones at once (its own timestamp is in B); what is said of a message that is final is ignored; one guess per
proposal; SYNC-HARD is proposed only for guesses that failed or never came; what was delivered ahead of the log is
written to it later, so that a restart can find it.
"""

from dataclasses import replace

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS, Entry
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import MAJORITY_CLAIMS
from amcast.parts.groups.messages import SET, SOFT, SYNC, TIMESTAMP_BODIES, TimestampCheckpoint, TimestampState
from amcast.parts.groups.timestamped import TimestampedGroup, TimestampPending
from amcast.protocols.fastcast.messages import FastCastConfig, FastCastState, SoftTimestamp


class FastCast(TimestampedGroup):
    """A member of a group."""

    delivers_ahead = True

    def __init__(self, me: ProcessId, topology: Topology, config: FastCastConfig) -> None:
        super().__init__(me, topology, config)
        self._wrong = config.wrong_guesses
        self._guess = 0
        """What the group's clock will be when everything that I proposed is decided."""
        self._softs: dict[MessageId, dict[GroupId, int]] = {}
        """Guesses that leaders told me about messages that are not final."""
        self._guessing: list[MessageId] = []
        """Messages all of whose guesses I, leading, can propose."""
        self._guessed: set[MessageId] = set()
        """Messages whose guesses I proposed in my ballot: they are or will be in the log."""

    # Guesses

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if type(body) is SoftTimestamp:
            self._hear_soft(body.message, body.group, body.timestamp)
        else:
            super().on_receive(sender, body)

    def on_request(self, message: Message) -> None:
        super().on_request(message)
        if message.id in self._softs:
            self._check_softs(message.id)

    def _hear_soft(self, id: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(id)
        if entry.final if entry is not None else id in self._seen:
            return
        self._softs.setdefault(id, {}).setdefault(group, timestamp)
        self._check_softs(id)

    def _check_softs(self, id: MessageId) -> None:
        message = self._message(id)
        if message is not None and len(self._softs[id]) == len(message.destinations):
            self._guessing.append(id)

    def _message(self, id: MessageId) -> Message | None:
        entry = self._pending.get(id)
        return self._waiting.get(id) if entry is None else entry.message

    # Leading

    def _take_over(self) -> None:
        super()._take_over()
        self._guess = 0
        self._guessed = set()
        self._guessing = []

    def _follow(self) -> None:
        super()._follow()
        self._guessing = []

    def _has_news(self) -> bool:
        return bool(self._guessing) or super()._has_news()

    def _proposals(self) -> list[Entry]:
        entries = super()._proposals()
        guessing, self._guessing = self._guessing, []
        for id in guessing:
            message = self._message(id)
            if message is not None and id in self._softs and id not in self._guessed:
                self._guessed.add(id)
                entries += [Entry(SOFT, id, group, guess) for group, guess in sorted(self._softs[id].items())]
        self._foresee(entries)
        return entries

    def _foresee(self, entries: list[Entry]) -> None:
        """Do to the guess what deciding these entries will do to the clock, and tell what follows from it."""
        self._guess = max(self._guess, self._clock)
        for entry in entries:
            if entry.kind != SET:
                self._guess = max(self._guess, entry.timestamp)
                continue
            self._guess += 1
            message = entry.message
            assert message is not None
            if len(message.destinations) > 1:
                guess = self._guess + 1 if self._wrong else self._guess
                targets = self.topology.processes_of(message.destinations)
                self.send_all(targets, SoftTimestamp(message.id, self.home, guess), message.id)

    def _ordering(self, id: MessageId, entry: TimestampPending) -> list[Entry]:
        """The true timestamps, where the guess in the log is wrong or there will be none."""
        coming = self._softs.get(id, {}) if id in self._guessed else {}
        return [
            Entry(SYNC, id, group, timestamp)
            for group, timestamp in sorted(entry.heard.items())
            if entry.soft.get(group, coming.get(group)) != timestamp and group not in entry.synced
        ]

    # The log

    def _order(self, entry: Entry) -> None:
        if entry.kind == SOFT:
            self._raise_clock(entry.timestamp)
            pending = self._pending.get(entry.id)
            if pending is not None and not pending.final:
                pending.soft.setdefault(entry.group, entry.timestamp)
                self._match(entry.id, pending)
        else:
            super()._order(entry)

    def _sync(self, id: MessageId, group: GroupId, timestamp: int) -> None:
        entry = self._pending.get(id)
        super()._sync(id, group, timestamp)
        if entry is not None and not entry.final:
            self._match(id, entry)

    def _all_heard(self, id: MessageId, entry: TimestampPending) -> None:
        self._match(id, entry)

    def _match(self, id: MessageId, entry: TimestampPending) -> None:
        """Final, if the log has every group's timestamp, be it as a guess that I know to be right."""
        final = 0
        for group in entry.message.destinations:
            timestamp = entry.synced.get(group)
            if timestamp is None:
                timestamp = entry.heard.get(group)
                if timestamp is None or entry.soft.get(group) != timestamp:
                    return
            final = max(final, timestamp)
        self.note("fast" if not entry.synced else "mended", id)
        self._finish(id, entry, final)

    def _settle(self, id: MessageId, entry: TimestampPending, final: int) -> None:
        if not entry.final:
            self.note("slow", id)
        super()._settle(id, entry, final)

    def _finish(self, id: MessageId, entry: TimestampPending, final: int) -> None:
        super()._finish(id, entry, final)
        self._softs.pop(id, None)
        self._guessed.discard(id)

    def _install(self, core: TimestampCheckpoint) -> None:
        super()._install(core)
        self._softs = {id: softs for id, softs in self._softs.items() if not self._is_final(id)}

    def _is_final(self, id: MessageId) -> bool:
        entry = self._pending.get(id)
        return id in self._seen if entry is None else entry.final > 0

    def snapshot(self) -> State:
        stamps = super().snapshot()
        assert isinstance(stamps, TimestampState)
        return FastCastState(
            stamps,
            self._guess,
            tuple((id, tuple(sorted(softs.items()))) for id, softs in sorted(self._softs.items())),
            tuple(self._guessing),
            tuple(sorted(self._guessed)),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, FastCastState)
        super().restore(state.stamps)
        self._guess = state.guess
        self._softs = {id: dict(softs) for id, softs in state.softs}
        self._guessing = list(state.guessing)
        self._guessed = set(state.guessed)


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """A global message waits for the other leaders' stamps everywhere; a local one is decided early at followers."""
    if replicas == 1:
        return None
    if destinations > 1:
        return 4
    return 2 if role == "follower" and replicas <= 3 else 3


def _packets(destinations: int, replicas: int) -> int | None:
    """Paper 002's table 1: requests, soft and hard stamps, two instances of Paxos."""
    k, n = destinations, replicas
    return k * (2 * k * n + 3 * n + 2 * n * n) if k > 1 else 2 * n + n * n


SPEC = Spec(
    name="fastcast",
    summary="BaseCast with guessed timestamps: four delays when leaders are stable",
    source="paper 003 algorithm 2",
    process=FastCast,
    config=FastCastConfig,
    bodies=(*PAXOS_BODIES, *TIMESTAMP_BODIES, SoftTimestamp),
    records=PAXOS_RECORDS,
    states=(FastCastState,),
    claims=replace(
        MAJORITY_CLAIMS,
        delays=_delays,
        bound=lambda role, skew: 8,
        packets=_packets,
    ),
    roles=role_of,
    goals=("fast", "slow", "waited", "early", "led", "asked", "admitted"),
)
