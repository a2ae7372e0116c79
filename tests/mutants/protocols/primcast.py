"""Mutants of PrimCast with one mistake each: a line as the paper prints it, or a guard left out. Checks catch all."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from amcast.kernel.effects import About
from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.spec import Spec
from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.parts.groups.leader_group_messages import Nack
from amcast.protocols.primcast.messages import Ack, NewState, Promise, Proposal
from amcast.protocols.primcast.process import HYBRID, SPEC, PrimCast
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.world.failure import ProcessFailedError
from tests.mutants.outcome import is_caught
from tests.protocols.primcast import scenes
from tests.protocols.stage import Stage


@dataclass(frozen=True)
class Mutant:
    """A protocol with a mistake, and the runs that show it."""

    name: str
    process: Any
    mistake: str
    faults: str = "none"
    plan: dict[str, Any] = field(default_factory=dict)
    seeds: range = range(300)
    spec: Spec = SPEC
    scene: Callable[[Spec], Stage] | None = None
    """A schedule that shows the mistake, where random runs rarely do."""

    def mutated_spec(self) -> Spec:
        return replace(self.spec, process=self.process)

    def find_violation(self) -> str | None:
        """What the mutant violates, in a sentence; None if nothing."""
        if self.scene is None:
            return self._fuzz()
        try:
            stage = self.scene(self.mutated_spec())
            stage.check()
        except AssertionError as error:
            return str(error)
        except ProcessFailedError as failure:
            if not isinstance(failure.__cause__, AssertionError):
                raise  # the mutant no longer fits the protocol
            return str(failure)
        return None if stage.is_done() else f"still owed: {stage.world.list_due_deliveries()}"

    def _fuzz(self) -> str | None:
        tables = {
            "topology": {"groups": 2, "replicas": 3, "clients": 2},
            "workload": {"messages": 8, "outstanding": 2, "destinations": [1, 2]},
            "faults": {"profile": self.faults},
            **self.plan,
        }
        prepared = prepare_run(parse_plan({"protocol": self.spec.name, **tables}), self.mutated_spec())
        for seed in self.seeds:
            outcome = fuzz_seed(prepared, seed)
            if is_caught(outcome):
                return f"seed {seed}: {outcome.status}: {outcome.story}"
        return None


class AppendsAfterGap(PrimCast):
    """Line 42: a proposal that arrives before its receiver is FOLLOWER is not appended; later ones are."""

    def _accept_proposals(self, proposals: tuple[Proposal, ...]) -> None:
        if self._is_established:
            for _, id, timestamp in proposals:
                self._waiting_proposals.append((self._log.length + len(self._waiting_proposals), id, timestamp))
            self._append_waiting_proposals()


class SilentClock(PrimCast):
    """Line 73: the clock of NEW-STATE is adopted and not sent to anybody."""

    _sent = 0
    _adopted = -1

    def _adopt_state(self, body: NewState) -> None:
        self._sent = self._clock
        super()._adopt_state(body)
        self._adopted = self._clock

    def _build_ack(self) -> Ack:
        ack = super()._build_ack()
        if self._clock != self._adopted:
            return ack
        return Ack(
            ack.epoch, ack.length, min(ack.clock, self._sent), ack.position, ack.time, ack.tie, ack.memory_losses
        )


class FollowersClock(PrimCast):
    """Line 28 left out: any majority's clocks allow delivery, without the primary's."""

    def _stable_timestamp(self) -> int:
        return self._clocks.majority_value()


class LateStart(PrimCast):
    """A proposal whose message has not arrived does not hold back its primary's clock, and blocks nothing."""

    def _stable_timestamp(self) -> int:
        return self._clocks.delivery_limit(max(self._primary_clock, self._primary_position[1]))


class PrimaryClock(PrimCast):
    """Line 29 left out: the primary's clock alone allows delivery."""

    def _stable_timestamp(self) -> int:
        return self._primary_clock


class DeliversUnestablished(PrimCast):
    """Lines 75-76 left out: a new epoch delivers before a majority has accepted it."""

    def _deliver_ready(self) -> None:
        established, self._is_established = self._is_established, True
        super()._deliver_ready()
        self._is_established = established


class Bumpless(PrimCast):
    """Line 50 left out: a clock that a remote timestamp raised is not sent."""

    def _observe_timestamp(self, pending: Any, group: int, timestamp: int) -> None:
        due = self._clock_due
        super()._observe_timestamp(pending, group, timestamp)
        self._clock_due = due

    def _deliver(self, *delivery: Any) -> None:
        due = self._clock_due
        super()._deliver(*delivery)
        self._clock_due = due

    def _handle_sync(self, sender: ProcessId, body: Any) -> None:
        """Does not send it on request either."""

    def _request_catch_up(self, helper: ProcessId) -> None:
        """Does not request it."""


class SendsNoNack(PrimCast):
    """Line 61: a rejected candidate gets no reply."""

    def _send_after_persist(self, targets: tuple[ProcessId, ...], body: Body, about: About = None) -> None:
        if type(body) is not Nack:
            super()._send_after_persist(targets, body, about)


class LongestLog(PrimCast):
    """Lines 66-67: the new epoch starts with the longest log, whatever its epoch."""

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


class PersistsNothing(PrimCast):
    """Bodies are sent without a record; a restarted process relies on the few records there are."""

    def _persist_changes(self) -> None:
        self._undurable = []


class VotesWithoutMemory(PrimCast):
    """A member that lost its memory votes at once."""

    def _start_joining(self) -> None:
        self._clock_due = True


class AcceptsDuplicates(PrimCast):
    """A retried message that is delivered already is handled as a new one."""

    def on_request(self, message: Message) -> None:
        if message.id in self._delivered and message.id not in self._pending:
            pending = self._ensure_pending(message.id)
            pending.message = message
            self._unproposed[message.id] = pending
            return
        super().on_request(message)


class OldPromises(PrimCast):
    """A promise that a member gave before it lost its memory still counts: candidates ignore lost memory."""

    def _merge_memory_losses(self, memory_losses: tuple[int, ...]) -> None:
        if self._role != "candidate":
            super()._merge_memory_losses(memory_losses)


class WallClock(PrimCast):
    """PrimCast-HC without its logical half: a primary proposes its local time, whatever it proposed before."""

    def _propose(self) -> None:
        if self._role == "primary" and self._promised == self._epoch and self._unproposed:
            self._clock = min(self._clock, self.now)
        super()._propose()


WITHOUT_NODES = {"nodes": False}
MUTANTS = [
    Mutant("appends after gap", AppendsAfterGap, "line 42", scene=scenes.proposal_arrives_before_epoch_is_established),
    Mutant("silent clock", SilentClock, "line 73", scene=scenes.clock_rises_by_new_state),
    Mutant("followers' clock", FollowersClock, "line 28", "none", WITHOUT_NODES),
    Mutant("late start", LateStart, "no entry at proposal time", "none", WITHOUT_NODES),
    Mutant("primary's clock", PrimaryClock, "line 29", scene=scenes.primary_is_alone_with_its_clock),
    Mutant("delivers unestablished", DeliversUnestablished, "lines 75-76", scene=scenes.minority_enters_new_epoch),
    Mutant("bumpless", Bumpless, "line 50", "none", WITHOUT_NODES),
    Mutant("sends no nack", SendsNoNack, "line 61", scene=scenes.candidate_dies_with_a_promise),
    Mutant("longest log", LongestLog, "lines 66-67", "leaders", WITHOUT_NODES, range(300)),
    Mutant("low clock", LowClock, "line 68", scene=scenes.candidate_has_low_clock),
    Mutant("persists nothing", PersistsNothing, "no record before a reply", "recovery"),
    Mutant("votes without memory", VotesWithoutMemory, "no re-admission", "amnesia"),
    Mutant("old promises", OldPromises, "lost memory ignored", scene=scenes.promise_precedes_memory_loss),
    Mutant("accepts duplicates", AcceptsDuplicates, "no deduplication", "links"),
    Mutant("wall clock", WallClock, "no max in line 37", "skew", WITHOUT_NODES, spec=HYBRID),
]
