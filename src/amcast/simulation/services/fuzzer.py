"""The random scheduler over a service: schedule and faults of a seed, with the calls of coroutines as its load."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from amcast.simulation.schedulers.fuzz import FuzzCase, Fuzzer, FuzzOutcome
from amcast.simulation.services.run import Main, ServiceRun
from amcast.simulation.world.world import World
from amcast.trace.recorder import Recorder

Invariant = Callable[[Mapping[str, Any]], object]
"""Judges the services at the end, one of each group by name: a text says what is wrong, as does False."""
SETTLE_STEPS: Final = 40_000
"""After healing, some call must get its outcome within so many steps."""


class PacketlessRecorder(Recorder):
    """Records no packets: nobody reads them, and services are judged by their states."""

    wants_packets = False


class ServiceFuzzer(Fuzzer):
    """One run of one seed."""

    def __init__(self, case: FuzzCase, seed: int, main: Main, callers: int, invariants: Sequence[Invariant]) -> None:
        super().__init__(case, seed, PacketlessRecorder())
        self._invariants = invariants
        self.services = ServiceRun(self.world, main, seed, callers)
        self.load = self.services

    def search(self) -> FuzzOutcome:
        """Runs the seed and judges it."""
        try:
            return self.run(self._judge)
        finally:
            self.services.close()

    def _step(self, fair: bool) -> bool:
        happened = super()._step(fair)
        return self.services.follow() or happened

    def _settle(self) -> None:
        world = self.world
        self._healed_at = world.steps
        bound, answered = world.steps + SETTLE_STEPS, self.services.answered
        while not world.violations and not self._is_finished() and world.steps < bound:
            if not self._step(fair=True):
                break
            if self.services.answered > answered:
                bound, answered = world.steps + SETTLE_STEPS, self.services.answered

    def _judge(self, world: World, recorder: Recorder, complete: bool) -> str | None:
        if not complete:
            return None
        for invariant in self._invariants:
            found = invariant(self.services.list_services())
            if found is False or isinstance(found, str):
                name = getattr(invariant, "__name__", repr(invariant))
                return self.services.tell(f"{name} does not hold at the end" + (f": {found}" if found else ""))
        return None

    def _describe_stuck(self) -> str:
        return self.services.tell(self.services.describe_unfinished())
