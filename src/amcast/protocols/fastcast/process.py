"""FastCast: BaseCast whose leaders guess their groups' timestamps. With a stable leader the guesses are right.

Source: paper 003, algorithm 2.

    client     group g: leader, members          group h: leader, members
      |--Request-->|  |--------------------------->|  |          START
      |            |==|  Paxos: SET-HARD           |==|          \\ slow path, at the same time:
      |            |-----SoftTimestamp------------>|->|          / fast path: SEND-SOFT, the leader's guess
      |            |==|  Paxos: SYNC-SOFT          |==|          all groups' guesses enter the log together
      |            |-----GroupTimestamp----------->|->|          SEND-HARD, when SET-HARD is decided
      |          deliver                         deliver         if every guess was right
      |            |==|  Paxos: SYNC-HARD          |==|          else the timestamps themselves enter the log

Claims: genuine; four message delays while leaders are stable, local messages three; six with wrong guesses; crashes,
recovery and loss of state as BaseCast.

Deviations from the paper, each with its reason in docs/protocols/fastcast.md: a message with a timestamp in the log
blocks later ones at once (its own timestamp is in B); guesses and timestamps of a final message are ignored; one guess
per proposal; SYNC-HARD is proposed only for guesses that were wrong or never came; messages delivered ahead of the log
are written to it later, so that a restarted member finds them.
"""

from dataclasses import replace

from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.spec import Claims, Spec
from amcast.kernel.topology import Topology
from amcast.parts.consensus.messages import PAXOS_BODIES, PAXOS_RECORDS, Entry
from amcast.parts.consensus.quorum import role_of
from amcast.parts.groups.claims import MAJORITY_CLAIMS, PAXOS_RECOVERY_GOALS
from amcast.parts.groups.pending_timestamps import TimestampPending
from amcast.parts.groups.statements import build_timestamp_table
from amcast.parts.groups.timestamped import TimestampedGroup
from amcast.parts.groups.timestamped_messages import (
    SET,
    SOFT,
    SYNC,
    TIMESTAMP_BODIES,
    TimestampCheckpoint,
    TimestampState,
)
from amcast.protocols.fastcast.messages import FastCastConfig, FastCastState, SoftTimestamp


class FastCast(TimestampedGroup):
    """A member of a group."""

    delivers_ahead = True

    def __init__(self, me: ProcessId, topology: Topology, config: FastCastConfig) -> None:
        super().__init__(me, topology, config)
        self._guesses_wrongly = config.wrong_guesses
        self._guessed_clock = 0
        """The group's clock after everything that this member has proposed is decided."""
        self._guesses: dict[MessageId, dict[GroupId, int]] = {}
        """Guesses that leaders have sent for messages that are not final."""
        self._unproposed_guesses: list[MessageId] = []
        """Messages for which every guess has arrived and that this member has not proposed."""
        self._proposed_guesses: set[MessageId] = set()
        """Messages whose guesses this member proposed in its ballot: they are or will be in the log."""

    # Guesses

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        if type(body) is SoftTimestamp:
            self._handle_guess(body.message, body.group, body.timestamp)
        else:
            super().on_receive(sender, body)

    def on_request(self, message: Message) -> None:
        super().on_request(message)
        if message.id in self._guesses:
            self._check_all_guesses(message.id)

    def _handle_guess(self, id: MessageId, group: GroupId, timestamp: int) -> None:
        if self._is_final(id):
            return
        self._guesses.setdefault(id, {}).setdefault(group, timestamp)
        self._check_all_guesses(id)

    def _check_all_guesses(self, id: MessageId) -> None:
        message = self._find_message(id)
        if message is not None and len(self._guesses[id]) == len(message.destinations):
            self._unproposed_guesses.append(id)

    def _find_message(self, id: MessageId) -> Message | None:
        pending = self._pending.get(id)
        return self._requests.get(id) if pending is None else pending.message

    def _is_final(self, id: MessageId) -> bool:
        pending = self._pending.get(id)
        return id in self._ordered if pending is None else pending.final > 0

    # Leading

    def _start_leading(self) -> None:
        super()._start_leading()
        self._guessed_clock = 0
        self._proposed_guesses = set()
        self._unproposed_guesses = []

    def _drop_proposals(self) -> None:
        super()._drop_proposals()
        self._unproposed_guesses = []

    def _has_proposals(self) -> bool:
        return bool(self._unproposed_guesses) or super()._has_proposals()

    def _make_proposals(self) -> list[Entry]:
        entries = super()._make_proposals()
        unproposed, self._unproposed_guesses = self._unproposed_guesses, []
        for id in unproposed:
            message = self._find_message(id)
            if message is not None and id in self._guesses and id not in self._proposed_guesses:
                self._proposed_guesses.add(id)
                entries += [Entry(SOFT, id, group, guess) for group, guess in sorted(self._guesses[id].items())]
        self._send_guesses(entries)
        return entries

    def _send_guesses(self, entries: list[Entry]) -> None:
        """Predicts the clock after these entries are decided, and sends the timestamps that it implies."""
        self._guessed_clock = max(self._guessed_clock, self._clock)
        for entry in entries:
            if entry.kind != SET:
                self._guessed_clock = max(self._guessed_clock, entry.timestamp)
                continue
            self._guessed_clock += 1
            message = entry.message
            assert message is not None
            if len(message.destinations) > 1:
                guess = self._guessed_clock + 1 if self._guesses_wrongly else self._guessed_clock
                targets = self.topology.processes_of(message.destinations)
                self.send_all(targets, SoftTimestamp(message.id, self.home, guess), message.id)

    def _make_timestamp_entries(self, id: MessageId, pending: TimestampPending) -> list[Entry]:
        """The timestamps whose guess in the log is wrong, or for which there will be no guess in the log."""
        proposed = self._guesses.get(id, {}) if id in self._proposed_guesses else {}
        return [
            Entry(SYNC, id, group, timestamp)
            for group, timestamp in sorted(pending.received.items())
            if pending.guesses.get(group, proposed.get(group)) != timestamp and group not in pending.logged
        ]

    # The log

    def _apply_entry(self, entry: Entry) -> None:
        if entry.kind == SOFT:
            self._raise_clock(entry.timestamp)
            pending = self._pending.get(entry.id)
            if pending is not None and not pending.final:
                pending.guesses.setdefault(entry.group, entry.timestamp)
                self._finish_if_guesses_right(entry.id, pending)
        else:
            super()._apply_entry(entry)

    def _apply_sync(self, id: MessageId, group: GroupId, timestamp: int) -> None:
        pending = self._pending.get(id)
        super()._apply_sync(id, group, timestamp)
        if pending is not None and not pending.final:
            self._finish_if_guesses_right(id, pending)

    def _handle_all_timestamps(self, id: MessageId, pending: TimestampPending) -> None:
        self._finish_if_guesses_right(id, pending)

    def _finish_if_guesses_right(self, id: MessageId, pending: TimestampPending) -> None:
        """Makes a message final if the log has every group's timestamp, or a guess that is known to equal it."""
        final = 0
        for group in pending.message.destinations:
            timestamp = pending.logged.get(group)
            if timestamp is None:
                timestamp = pending.received.get(group)
                if timestamp is None or pending.guesses.get(group) != timestamp:
                    return
            final = max(final, timestamp)
        self.note("fast" if not pending.logged else "mended", id)
        self._set_final(id, pending, final)

    def _set_final_logged(self, id: MessageId, pending: TimestampPending, final: int) -> None:
        if not pending.final:
            self.note("slow", id)
        super()._set_final_logged(id, pending, final)

    def _set_final(self, id: MessageId, pending: TimestampPending, final: int) -> None:
        super()._set_final(id, pending, final)
        self._guesses.pop(id, None)
        self._proposed_guesses.discard(id)

    # Snapshots

    def _install_checkpoint(self, checkpoint: TimestampCheckpoint) -> None:
        super()._install_checkpoint(checkpoint)
        self._guesses = {id: guesses for id, guesses in self._guesses.items() if not self._is_final(id)}

    def snapshot(self) -> State:
        state = super().snapshot()
        assert isinstance(state, TimestampState)
        return FastCastState(
            state,
            self._guessed_clock,
            tuple((id, tuple(sorted(guesses.items()))) for id, guesses in sorted(self._guesses.items())),
            tuple(self._unproposed_guesses),
            tuple(sorted(self._proposed_guesses)),
        )

    def restore(self, state: State) -> None:
        assert isinstance(state, FastCastState)
        super().restore(state.timestamps)
        self._guessed_clock = state.guessed_clock
        self._guesses = {id: dict(guesses) for id, guesses in state.guesses}
        self._unproposed_guesses = list(state.unproposed_guesses)
        self._proposed_guesses = set(state.proposed_guesses)


def _delays(role: str, destinations: int, replicas: int) -> int | None:
    """A global message waits everywhere for the other leaders' timestamps; followers decide a local one earlier."""
    if replicas == 1:
        return None
    if destinations > 1:
        return 4
    return 2 if role == "follower" and replicas <= 3 else 3


def _packets(destinations: int, replicas: int) -> int | None:
    """Paper 002's table 1: requests, soft and hard timestamps, two instances of Paxos."""
    k, n = destinations, replicas
    return k * (2 * k * n + 3 * n + 2 * n * n) if k > 1 else 2 * n + n * n


def _delays_of_all(role: str, destinations: int, replicas: int) -> int | None:
    """Where followers decide early, they also send early, and deliver before their leader."""
    delays = _delays(role, destinations, replicas)
    return 3 if destinations > 1 and role == "follower" and replicas == 3 else delays


def _packets_of_all(destinations: int, replicas: int) -> int | None:
    """As `_packets`, with the hard timestamps of every member instead of the leader's alone."""
    packets = _packets(destinations, replicas)
    k, n = destinations, replicas
    return packets if packets is None or k == 1 else packets + k * k * n * (n - 1)


def _adapt_claims(claims: Claims, config: FastCastConfig) -> Claims:
    if config.consensus != "paxos" or config.wrong_guesses:
        return replace(claims, delays=lambda role, k, n: None, packets=lambda k, n: None)
    return replace(claims, delays=_delays_of_all, packets=_packets_of_all) if config.stamps == "all" else claims


SPEC = Spec(
    name="fastcast",
    summary="BaseCast with guessed timestamps: four delays when leaders are stable",
    source="paper 003 algorithm 2",
    process=FastCast,
    config=FastCastConfig,
    bodies=(*PAXOS_BODIES, *TIMESTAMP_BODIES, SoftTimestamp),
    records=PAXOS_RECORDS,
    statements=build_timestamp_table,
    states=(FastCastState,),
    claims=replace(
        MAJORITY_CLAIMS,
        delays=_delays,
        bound=lambda role, skew: 8,
        packets=_packets,
    ),
    adapt_claims=_adapt_claims,
    role_of=role_of,
    goals=("fast", "slow", "waited", "early", "led", "asked", "admitted"),
    recovery_goals=PAXOS_RECOVERY_GOALS,
)
