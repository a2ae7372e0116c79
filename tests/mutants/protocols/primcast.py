"""PrimCast with one mistake each: the paper's printed lines, or a guard left out. Our checks must catch every one."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from amcast.kernel.effects import About
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.spec import Spec
from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.parts.groups.messages import Nack
from amcast.protocols.primcast.messages import Ack, NewState, Promise, Proposal
from amcast.protocols.primcast.process import HYBRID, SPEC, PrimCast
from amcast.simulation.inputs.plan import parse_plan
from tests.protocols.primcast import scenes
from tests.protocols.stage import Stage


@dataclass(frozen=True)
class Mutant:
    """A wrong protocol, and where to look for what goes wrong."""

    name: str
    process: Any
    wrong: str
    """What is planted."""
    faults: str = "none"
    plan: dict[str, Any] = field(default_factory=dict)
    seeds: range = range(40)
    spec: Spec = SPEC
    scene: Callable[[Spec], Stage] | None = None
    """A scene that shows it, where random runs rarely do."""

    def mutated(self) -> Spec:
        return replace(self.spec, process=self.process)

    def caught(self) -> str | None:
        """What went wrong, in a sentence; None if nothing did."""
        if self.scene is None:
            return self._fuzzed()
        try:
            stage = self.scene(self.mutated())
            stage.check()
        except AssertionError as error:
            return str(error)
        return None if stage.done() else f"still owed: {stage.world.list_due_deliveries()}"

    def _fuzzed(self) -> str | None:
        tables = {
            "topology": {"groups": 2, "replicas": 3, "clients": 2},
            "workload": {"messages": 8, "outstanding": 2, "destinations": [1, 2]},
            "faults": {"profile": self.faults},
            **self.plan,
        }
        prepared = prepare_run(parse_plan({"protocol": self.spec.name, **tables}), self.mutated())
        for seed in self.seeds:
            outcome = fuzz_seed(prepared, seed)
            if outcome.status != "holds":
                return f"seed {seed}: {outcome.status}: {outcome.story}"
        return None


class Hole(PrimCast):
    """Line 42: a proposal that arrives before its receiver is FOLLOWER is not appended; later ones are."""

    def _accept_proposals(self, proposals: tuple[Proposal, ...]) -> None:
        if self._is_established:
            for _, id, timestamp in proposals:
                self._waiting_proposals.append((self._log.length + len(self._waiting_proposals), id, timestamp))
            self._append_waiting_proposals()


class SilentClock(PrimCast):
    """Line 73: the clock that comes with NEW-STATE is taken over and told nobody."""

    _spoken = 0
    _taken = -1

    def _adopt_state(self, body: NewState) -> None:
        self._spoken = self._clock
        super()._adopt_state(body)
        self._taken = self._clock

    def _build_ack(self) -> Ack:
        ack = super()._build_ack()
        if self._clock != self._taken:
            return ack
        return Ack(ack.epoch, ack.length, min(ack.clock, self._spoken), *ack_rest(ack))


def ack_rest(ack: Ack) -> tuple[int, int, int, tuple[int, ...]]:
    return ack.position, ack.time, ack.tie, ack.memory_losses


class FollowersClock(PrimCast):
    """Line 28 left out: any majority's clocks allow delivery, the primary's word is not needed."""

    def _stable_timestamp(self) -> int:
        return self._clocks.majority_value()


class LateStart(PrimCast):
    """A proposal whose message has not arrived does not hold back its primary's clock, and so blocks nothing."""

    def _stable_timestamp(self) -> int:
        return self._clocks.delivery_limit(max(self._primary_clock, self._primary_position[1]))


class PrimaryClock(PrimCast):
    """Line 29 left out: the primary's clock alone allows delivery."""

    def _stable_timestamp(self) -> int:
        return self._primary_clock


class Hasty(PrimCast):
    """Lines 75-76 left out: a new epoch delivers before a majority has accepted it."""

    def _deliver_ready(self) -> None:
        established, self._is_established = self._is_established, True
        super()._deliver_ready()
        self._is_established = established


class Bumpless(PrimCast):
    """Line 50 left out: a clock that a remote timestamp raised is not told."""

    def _observe_timestamp(self, item: Any, group: int, timestamp: int) -> None:
        due = self._clock_due
        super()._observe_timestamp(item, group, timestamp)
        self._clock_due = due

    def _deliver(self, *delivery: Any) -> None:
        due = self._clock_due
        super()._deliver(*delivery)
        self._clock_due = due

    def _handle_sync(self, sender: ProcessId, body: Any) -> None:
        """Nor when asked."""

    def _request_catch_up(self, helper: ProcessId) -> None:
        """And nobody asks."""


class Mute(PrimCast):
    """Line 61: a refused candidate hears nothing."""

    def _send_after_persist(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        if type(body) is not Nack:
            super()._send_after_persist(targets, body, about)


class LongestLog(PrimCast):
    """Lines 66-67: the longest log, of whatever epoch."""

    def _handle_promise(self, sender: ProcessId, body: Promise) -> None:
        flat = Promise(body.epoch, 0, body.clock, body.base, body.floor, body.entries, body.memory_losses)
        super()._handle_promise(sender, flat)


class LowClock(PrimCast):
    """Line 68: the new epoch starts with the candidate's own clock, not the highest of a majority."""

    def _handle_promise(self, sender: ProcessId, body: Promise) -> None:
        super()._handle_promise(
            sender,
            Promise(body.epoch, body.current, 0, body.base, body.floor, body.entries, body.memory_losses),
        )


class Forgetful(PrimCast):
    """Nothing is made durable before it is said; a restarted process believes what it finds: little."""

    def _persist_changes(self) -> None:
        self._undurable = []


class Shameless(PrimCast):
    """A member that lost its memory votes at once."""

    def _start_joining(self) -> None:
        self._clock_due = True


class Repeater(PrimCast):
    """A retried message that is delivered already is taken for a new one."""

    def on_request(self, message: Message) -> None:
        known = self._delivered
        if message.id in known and message.id not in self._pending:
            item = self._ensure_pending(message.id)
            item.message = message
            self._unproposed[message.id] = item
            return
        super().on_request(message)


class OldPromises(PrimCast):
    """A promise that a member gave before it lost its memory still counts: a candidate hears of no lost memory."""

    def _merge_memory_losses(self, memory_losses: tuple[int, ...]) -> None:
        if self._role != "candidate":
            super()._merge_memory_losses(memory_losses)


class WallClock(PrimCast):
    """PrimCast-HC without its logical half: a primary stamps with its local time, whatever it saw before."""

    def _propose(self) -> None:
        if self._role == "primary" and self._promised == self._epoch and self._unproposed:
            self._clock = min(self._clock, self.now)
        super()._propose()


BARE = {"nodes": False}
MUTANTS = [
    Mutant("hole", Hole, "line 42", scene=scenes.proposal_arrives_before_epoch_is_established),
    Mutant("silent clock", SilentClock, "line 73", scene=scenes.clock_rises_by_new_state),
    Mutant("followers' clock", FollowersClock, "line 28", "none", BARE),
    Mutant("late start", LateStart, "no entry at proposal time", "none", BARE),
    Mutant("primary's clock", PrimaryClock, "line 29", scene=scenes.primary_is_alone_with_its_clock),
    Mutant("hasty", Hasty, "lines 75-76", scene=scenes.minority_enters_new_epoch),
    Mutant("bumpless", Bumpless, "line 50", "none", BARE),
    Mutant("mute", Mute, "line 61", scene=scenes.candidate_dies_with_a_promise),
    Mutant("longest log", LongestLog, "lines 66-67", "leaders", BARE, range(300)),
    Mutant("low clock", LowClock, "line 68", scene=scenes.candidate_has_low_clock),
    Mutant("forgetful", Forgetful, "no record before an answer", "recovery"),
    Mutant("shameless", Shameless, "no re-admission", "amnesia"),
    Mutant("old promises", OldPromises, "lost memory not told", scene=scenes.promise_precedes_memory_loss),
    Mutant("repeater", Repeater, "no deduplication", "links"),
    Mutant("wall clock", WallClock, "no max in line 37", "skew", BARE, spec=HYBRID),
]
