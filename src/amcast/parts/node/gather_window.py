"""How long a gateway waits for the clients that it has just answered before it sends the next bundle.

    bundle sent        answered                          next bundle sent
         |----took--------|----window, until all have returned----|
                          to a, b and c            a       c      b  send their next requests

Clients that have just been answered often send again at once, and would otherwise always miss the bundle that takes the
messages of the others. So the next bundle leaves when all of them have returned, or after twice the time that the
answer took, at most 10 ms. If hardly any client returned during the last rounds, the window is a quarter of that time,
with a full window now and then. So clients that work in rounds share bundles, and passing clients cause no delay.

Many clients on a busy machine need longer than that to return. Then long windows of up to 50 ms may pay: messages wait
no longer for their answers, or not many fewer are answered. The gateway measures phases with short and with long
windows and keeps to the better kind, with a trial of the other from time to time. It gives up long windows only after
two failed trials in a row, so that one scheduling hiccup does not disable them for seconds.
"""

from collections.abc import Iterable
from typing import Final

from amcast.kernel.config import MILLISECOND
from amcast.kernel.ids import GroupId, ProcessId
from amcast.parts.node.messages import GatherWindowState

MAX_WINDOW_NS: Final = 10 * MILLISECOND
"""The longest short window. Over long distances an answer takes longer than this, and waiting gains nothing."""
FULL_WINDOW_ROUNDS: Final = 32
"""Empty rounds after which one window is full: the clients may have changed."""
LONG_WINDOW_NS: Final = 50 * MILLISECOND
"""A long window. If an answer itself takes longer, the groups are far away, and the window is short."""
PHASE_BUNDLES: Final = 16
MIN_PHASE_NS: Final = 200 * MILLISECOND
"""A phase lasts for at least PHASE_BUNDLES and this time; a shorter one measures too little."""
MAX_PHASE_NS: Final = 2000 * MILLISECOND
"""A phase that lasts longer without enough bundles measures nothing: clients came and went."""
MAX_EMPTY_ROUNDS: Final = 3
"""Consecutive empty rounds with long windows after which windows are short for the rest of the phase."""
MAX_FAILED_TRIALS: Final = 2
"""Consecutive failed trials after which long windows are given up."""
TRIAL_INTERVAL: Final = 8
MAX_TRIAL_INTERVAL: Final = 1024
"""Phases between two trials. The interval doubles each time that long windows fail, because a trial delays clients."""


class GatherWindow:
    """The clients that the last bundle to some destinations answered, and how long to wait for them."""

    # fmt: off
    __slots__ = (
        "bundles", "clients", "empty_rounds", "failed_trials", "is_long", "is_trial", "long_result", "missing",
        "next_trial", "phase_start", "phases", "short_result", "trial_interval",
    )
    # fmt: on

    def __init__(self) -> None:
        self.clients = 0
        """How many clients the round waits for."""
        self.missing: set[ProcessId] = set()
        """The clients of the round that have not returned."""
        self.empty_rounds = 0
        """How many rounds in a row ended with less than an eighth of the clients."""
        self.is_long = False
        """Whether windows are long in this phase."""
        self.short_result = (0, 0)
        """The last phase with short windows: average time between answers, and average wait of a message, in ns."""
        self.long_result = (0, 0)
        """The same for the last phase with long windows."""
        self.phases = 0
        """How many phases have been measured."""
        self.is_trial = False
        """Whether this phase tries the other kind of window."""
        self.next_trial = 1
        """After how many phases the next trial begins."""
        self.trial_interval = TRIAL_INTERVAL
        """Phases until long windows are tried again, should they fail."""
        self.failed_trials = 0
        """How many trials of long windows failed in a row."""
        self.bundles = 0
        """Bundles answered in this phase."""
        self.phase_start = (0, 0, 0)
        """When the phase began, and `Gateway.total_wait` at that time."""

    def end_round(self) -> None:
        """Records how many of the round's clients returned before the next answer."""
        returned = self.clients - len(self.missing)
        self.empty_rounds = self.empty_rounds + 1 if 8 * returned < self.clients else 0
        self.missing.clear()

    def start_round(self, clients: Iterable[ProcessId]) -> None:
        """Waits for these clients; they were just answered."""
        self.missing.update(clients)
        self.clients = len(self.missing)

    def record_bundle(self, now: int, total_wait_ns: int, answers: int) -> None:
        """Counts an answered bundle. At the end of a phase, records its result and chooses the next phase's windows."""
        self.bundles += 1
        began_ns, wait_before_ns, answers_before = self.phase_start
        lasted_ns = now - began_ns
        if lasted_ns < MIN_PHASE_NS or (self.bundles <= PHASE_BUNDLES and lasted_ns <= MAX_PHASE_NS):
            return
        if self.bundles > PHASE_BUNDLES:
            count = answers - answers_before
            result = (lasted_ns // count, (total_wait_ns - wait_before_ns) // count)
            if self.is_long:
                self.long_result = result
            else:
                self.short_result = result
            self.phases += 1
            self._choose_next_phase()
        self.phase_start, self.bundles = (now, total_wait_ns, answers), 0

    def _choose_next_phase(self) -> None:
        """Chooses the windows of the next phase. Only consecutive phases are compared: machines and loads change."""
        is_long, is_empty = self.is_long, self.is_long and self.empty_rounds >= MAX_EMPTY_ROUNDS
        if self.is_trial:
            self.is_trial = False
            is_long, self.next_trial = self._evaluate_trial(is_empty)
        elif is_empty:
            is_long = False
        elif self.phases >= self.next_trial:
            self.is_trial = True
            is_long = not is_long
        if is_long != self.is_long:
            self.is_long = is_long
            self.empty_rounds = 0  # clients that do not return in a short window may return in a long one

    def _evaluate_trial(self, is_empty: bool) -> tuple[bool, int]:
        """After both kinds were tried: whether windows are long from now on, and the phase of the next trial."""
        if self._do_long_windows_pay() and not is_empty:
            self.failed_trials, self.trial_interval = 0, TRIAL_INTERVAL
            return True, self.phases + TRIAL_INTERVAL
        self.failed_trials += 1
        if self.failed_trials < MAX_FAILED_TRIALS and not is_empty:
            return not self.is_long, self.phases + 1
        self.failed_trials, self.trial_interval = 0, min(2 * self.trial_interval, MAX_TRIAL_INTERVAL)
        return False, self.phases + self.trial_interval

    def _do_long_windows_pay(self) -> bool:
        """Long windows make larger bundles, which cost up to a third less, so messages may wait a little longer at the
        gateway. They may wait three times as long if the rate of answers hardly falls: then they waited elsewhere
        before, and clients, which do nothing else, are answered not much later."""
        interval = self.long_result[0] / max(self.short_result[0], 1)
        wait = self.long_result[1] / max(self.short_result[1], 1)
        return wait <= 1.1 or (wait <= 3 and interval <= 1.25)

    def duration_ns(self, took_ns: int) -> int:
        """The length of the window after an answer, from the time that the answer took."""
        if self.is_long and self.empty_rounds < MAX_EMPTY_ROUNDS and took_ns < LONG_WINDOW_NS:
            return LONG_WINDOW_NS
        return min(took_ns // 4 if self.empty_rounds % FULL_WINDOW_ROUNDS else 2 * took_ns, MAX_WINDOW_NS)

    def snapshot(self, groups: tuple[GroupId, ...]) -> GatherWindowState:
        return GatherWindowState(
            groups, self.clients, tuple(sorted(self.missing)), self.empty_rounds, self.is_long, self.short_result,
            self.long_result, self.phases, self.bundles, self.phase_start, self.is_trial, self.next_trial,
            self.trial_interval, self.failed_trials,
        )  # fmt: skip

    @staticmethod
    def from_state(state: GatherWindowState) -> "GatherWindow":
        window = GatherWindow()
        window.clients, window.missing, window.empty_rounds = state.clients, set(state.missing), state.empty_rounds
        window.is_long, window.phases = state.is_long, state.phases
        window.short_result, window.long_result = state.short_result, state.long_result
        window.bundles, window.phase_start = state.bundles, state.phase_start
        window.is_trial, window.next_trial = state.is_trial, state.next_trial
        window.trial_interval, window.failed_trials = state.trial_interval, state.failed_trials
        return window
