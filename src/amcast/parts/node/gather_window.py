"""Whether a gateway waits for those whom it has just answered, and for how long.

    bundle leaves      answered                         next bundle leaves
         |----took--------|----rest, until all have asked again----|
                          a, b and c are told       a asks   c asks   b asks

Those who have just been answered often ask again at once, and would otherwise always miss the bundle that the others
take. So the next bundle leaves when all of them have asked, or after twice the time that the answer took; after a
quarter of it, if of those who were answered last time hardly anybody has asked again yet (with a trial now and then);
never after more than 10 ms. So clients that work in rounds share bundles, and those that come and go hold nobody up.

Many clients on a busy machine need longer than that to come back, and then the gateway has patience, up to 50 ms: if,
as it tries out from time to time, messages wait no longer for their answers that way, or not many fewer are answered.
That it does not pay must show twice in a row.
"""

from collections.abc import Iterable
from typing import Final

from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.units import MILLISECOND
from amcast.parts.node.messages import GatherWindowState

MOST_REST_NS: Final = 10 * MILLISECOND
"""Over long distances an answer takes its time, and nobody gains from waiting for so long."""
TRIAL: Final = 32
"""After so many vain rests, one long one: the clients may have changed."""
MOST_PATIENCE_NS: Final = 50 * MILLISECOND
"""What patience waits for at most. An answer that takes longer itself comes from far away: no patience then."""
PHASE: Final = 16
LEAST_PHASE_NS: Final = 200 * MILLISECOND
"""Patience, or haste, is tried for so many bundles, and for so long: less tells too little."""
HOPELESS: Final = 3
"""If so many times in a row hardly anybody comes back even with patience, there is none for the rest of the phase."""
STRIKES: Final = 2
"""So many times in a row patience must not pay."""
RETRIAL: Final = 8
MOST_RETRIAL: Final = 1024
"""Whatever was found better is doubted after so many phases; where patience does not pay, after twice as many each
time, because trying it keeps everybody waiting."""
LONGEST_PHASE_NS: Final = 2000 * MILLISECOND
"""A phase that lasts longer says nothing: clients came and went."""


class GatherWindow:
    """Those whom the last bundle to some destinations answered, and whether it pays to wait for them."""

    # fmt: off
    __slots__ = (
        "answered", "began", "bundles", "calm", "doubts", "gap", "hasty", "missing", "next", "patient", "phases",
        "strikes", "vain",
    )
    # fmt: on

    def __init__(self) -> None:
        self.answered = 0
        self.missing: set[ProcessId] = set()
        """Who of them has not asked again."""
        self.vain = 0
        """How often in a row it was not worth waiting for them."""
        self.patient = False
        """In this phase, those who were answered get all the time that they may need."""
        self.hasty = (0, 0)
        """The last phase without patience: how long it took for each answer, and how long a message waited, on average
        (nanoseconds)."""
        self.calm = (0, 0)
        """The same for the last phase with it."""
        self.phases = 0
        self.doubts = False
        """This phase tries the other way."""
        self.next = 1
        """After so many phases it is tried next."""
        self.gap = RETRIAL
        """How many there will be before patience is tried again, if it does not pay."""
        self.strikes = 0
        """How often in a row patience did not pay."""
        self.bundles = 0
        """Answered in this phase."""
        self.began = (0, 0, 0)
        """When the phase began, and what `Gateway.waited` was then."""

    def judge(self) -> None:
        """The next answer is there: how many of those before it have asked again?"""
        came = self.answered - len(self.missing)
        self.vain = self.vain + 1 if 8 * came < self.answered else 0
        self.missing.clear()

    def answer(self, clients: Iterable[ProcessId]) -> None:
        self.missing.update(clients)
        self.answered = len(self.missing)

    def count(self, now: int, waited_ns: int, answers: int) -> None:
        """A bundle was answered. At the end of a phase, keep to the better way, and now and then try the other."""
        self.bundles += 1
        began_ns, waited_before_ns, answers_before = self.began
        lasted_ns = now - began_ns
        if lasted_ns < LEAST_PHASE_NS or (self.bundles <= PHASE and lasted_ns <= LONGEST_PHASE_NS):
            return
        if self.bundles > PHASE:
            count = answers - answers_before
            seen = (lasted_ns // count, (waited_ns - waited_before_ns) // count)
            if self.patient:
                self.calm = seen
            else:
                self.hasty = seen
            self.phases += 1
            self._choose()
        self.began, self.bundles = (now, waited_ns, answers), 0

    def _choose(self) -> None:
        """The way of the next phase. Only phases that follow each other are compared: machines and loads change."""
        patient, vain = self.patient, self.patient and self.vain >= HOPELESS
        if self.doubts:
            self.doubts = False
            patient, self.next = self._judged(vain)
        elif vain:
            patient = False  # they do not come back even so
        elif self.phases >= self.next:
            self.doubts = True
            patient = not patient
        if patient != self.patient:
            self.patient = patient
            self.vain = 0  # who does not come back in haste may with patience

    def _judged(self, vain: bool) -> tuple[bool, int]:
        """Both ways were tried: the one to keep to, and the phase after which it is doubted. That patience does not pay
        must show twice in a row: clients, machines and loads have bad moments."""
        if self._pays() and not vain:
            self.strikes, self.gap = 0, RETRIAL
            return True, self.phases + RETRIAL
        self.strikes += 1
        if self.strikes < STRIKES and not vain:
            return not self.patient, self.phases + 1
        self.strikes, self.gap = 0, min(2 * self.gap, MOST_RETRIAL)
        return False, self.phases + self.gap

    def _pays(self) -> bool:
        """Patience makes larger bundles, which cost up to a third less, so messages may wait a little longer here. They
        may even wait for three times as long if not many fewer are answered: then they waited elsewhere before, and
        clients, who have nothing else to do, are answered not much later."""
        between, wait = self.calm[0] / max(self.hasty[0], 1), self.calm[1] / max(self.hasty[1], 1)
        return wait <= 1.1 or (wait <= 3 and between <= 1.25)

    def rest_ns(self, took_ns: int) -> int:
        """How long they get."""
        if self.patient and self.vain < HOPELESS and took_ns < MOST_PATIENCE_NS:
            return MOST_PATIENCE_NS
        return min(took_ns // 4 if self.vain % TRIAL else 2 * took_ns, MOST_REST_NS)

    def snapshot(self, groups: tuple[GroupId, ...]) -> GatherWindowState:
        return GatherWindowState(
            groups, self.answered, tuple(sorted(self.missing)), self.vain, self.patient, self.hasty, self.calm,
            self.phases, self.bundles, self.began, self.doubts, self.next, self.gap, self.strikes,
        )  # fmt: skip

    @staticmethod
    def restored(state: GatherWindowState) -> "GatherWindow":
        wave = GatherWindow()
        wave.answered, wave.missing, wave.vain = state.answered, set(state.missing), state.vain
        wave.patient, wave.hasty, wave.calm, wave.phases = state.patient, state.hasty, state.calm, state.phases
        wave.bundles, wave.began = state.bundles, state.began
        wave.doubts, wave.next, wave.gap, wave.strikes = state.doubts, state.next, state.gap, state.strikes
        return wave
