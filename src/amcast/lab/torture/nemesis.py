"""The nemesis: draws faults of a live cluster from a seed, performs them and heals them, round after round.

A round draws one or two faults, lets the cluster suffer for a moment, heals everything and demands that clients are
answered again. What is drawn depends on the seed alone; when it strikes depends on the machine, too.
"""

import random
import signal
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Final

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import ProcessId
from amcast.live.operations.local_cluster import LocalCluster
from amcast.live.torture.cuts import CuttableNetwork
from amcast.live.torture.proxies import Direction

FAULTS: Final = {
    "kill": "some nodes, up to all of them, die by SIGKILL and start again from their logs",
    "stop": "some nodes stop by SIGSTOP, and continue",
    "leave": "a node stops in good order, and starts again",
    "cut": "links are cut: one node, two halves, a bridge, a node from its own group only, random links; also one way",
    "flap": "the same, on and off several times a second",
    "corrupt": "bits flip between nodes (with proxies only)",
}
"""Kinds of faults, with a sentence for each."""
HOLD_S: Final = (0.3, 4.0)
"""How long a round lasts before it heals."""
RECOVERY_S: Final = 60.0
"""The liveness bound: after a round is healed, clients are answered again within this time."""
ANSWERS: Final = 20
"""Receipts that show that clients are answered again."""
FLAPS: Final = 6

Heal = Callable[[], object]
Directions = list[Direction]


@dataclass(frozen=True)
class Strike:
    """A fault that was performed."""

    at_ns: int
    kind: str
    detail: str


class Nemesis:
    """The faults of one run."""

    def __init__(
        self,
        running: LocalCluster,
        network: CuttableNetwork,
        kinds: Sequence[str],
        seed: int,
        count_answers: Callable[[], int],
        say: Callable[[str], None],
    ) -> None:
        self.strikes: list[Strike] = []
        self.violations: list[str] = []
        """Liveness that was claimed and did not come; nodes that exited by themselves."""
        self.longest_recovery_s = 0.0
        self._running = running
        self._network = network
        self._kinds = list(kinds)
        self._rng = random.Random(f"{seed} nemesis")
        self._count_answers = count_answers
        self._say = say
        self._nodes = running.cluster.nodes()
        self._processes = sorted(self._nodes.values())
        self._impaired: set[str] = set()
        """Nodes that are dead or stopped in this round."""
        self._performs: dict[str, Callable[[], tuple[str, Heal]]] = {
            "kill": self._kill,
            "stop": self._stop,
            "leave": self._leave,
            "cut": self._cut,
            "flap": self._flap,
            "corrupt": self._corrupt,
        }

    def run(self, seconds: float) -> None:
        """Strikes for so many seconds, round after round; stops early when the cluster does not recover."""
        end = time.monotonic() + seconds
        self._await_answers()
        while time.monotonic() < end and not self.violations:
            self._run_round()

    def _run_round(self) -> None:
        chosen = self._rng.sample(self._kinds, min(len(self._kinds), self._rng.choice((1, 1, 2))))
        heals: list[Heal] = []
        for kind in chosen:
            detail, heal = self._performs[kind]()
            self.strikes.append(Strike(time.time_ns(), kind, detail))
            self._say(f"{self._count_answers()} answers so far; {kind}: {detail}")
            heals.append(heal)
        time.sleep(self._rng.uniform(*HOLD_S))
        for heal in heals:
            heal()
        self._impaired.clear()
        self._await_answers()
        for node, code in sorted(self._running.take_exited().items()):
            reason = self._running.last_log_line(node)
            self.violations.append(f"node {node} exited by itself with code {code}: {reason}")

    def _await_answers(self) -> None:
        """Waits until clients are answered."""
        began = time.monotonic()
        goal = self._count_answers() + ANSWERS
        while self._count_answers() < goal:
            if time.monotonic() - began > RECOVERY_S:
                self.violations.append(f"clients were not answered within {RECOVERY_S:.0f} s after healing")
                return
            time.sleep(0.02)
        self.longest_recovery_s = max(self.longest_recovery_s, time.monotonic() - began)

    # Nodes

    def _choose_nodes(self, most: int) -> list[str]:
        """Nodes that this round has not impaired yet."""
        able = sorted(node for node in self._nodes if node not in self._impaired)
        nodes = self._rng.sample(able, min(most, len(able)))
        self._impaired.update(nodes)
        return nodes

    def _draw_count(self) -> int:
        """One node most often; sometimes two, or all."""
        return self._rng.choice((1, 1, 1, 2, len(self._nodes)))

    def _kill(self) -> tuple[str, Heal]:
        nodes = self._choose_nodes(self._draw_count())
        self._running.kill(*nodes)
        return ", ".join(nodes) or "nobody is left", lambda: self._start(nodes)

    def _leave(self) -> tuple[str, Heal]:
        nodes = self._choose_nodes(1)
        try:
            self._running.stop(*nodes)
        except CannotTellError as error:
            self.violations.append(f"a node that should stop in good order did not: {error}")
        return ", ".join(nodes) or "nobody is left", lambda: self._start(nodes)

    def _start(self, nodes: Sequence[str]) -> None:
        try:
            self._running.start(*nodes)
        except CannotTellError as error:
            self.violations.append(str(error))

    def _stop(self) -> tuple[str, Heal]:
        nodes = self._choose_nodes(self._draw_count())
        self._signal(nodes, signal.SIGSTOP)
        return ", ".join(nodes) or "nobody is left", lambda: self._signal(nodes, signal.SIGCONT)

    def _signal(self, nodes: Sequence[str], number: signal.Signals) -> None:
        for node in nodes:
            self._running.signal(node, number)

    # Links

    def _cut(self) -> tuple[str, Heal]:
        name, directions = self._draw_cut()
        self._network.cut(directions)
        return name, self._network.heal

    def _flap(self) -> tuple[str, Heal]:
        name, directions = self._draw_cut()
        for _ in range(FLAPS):
            self._network.cut(directions)
            time.sleep(self._rng.uniform(0.02, 0.2))
            self._network.heal()
            time.sleep(self._rng.uniform(0.02, 0.1))
        return name, self._network.heal

    def _corrupt(self) -> tuple[str, Heal]:
        name, directions = self._draw_cut()
        self._network.corrupt(directions, self._rng.randrange(1 << 30))
        return name, self._network.heal

    def _draw_cut(self) -> tuple[str, Directions]:
        """A set of links, with its name; in a third of the draws one direction only."""
        rng, processes, cluster = self._rng, self._processes, self._running.cluster
        shape = rng.choice(("isolated", "halves", "bridge", "own group", "random links"))
        victim = rng.choice(processes)
        name = f"{cluster.name_of(victim)} {shape}"
        if shape == "isolated":
            pairs = _across([victim], processes)
        elif shape == "own group":
            name = f"{cluster.name_of(victim)} from its own group"
            pairs = _across([victim], cluster.topology.members(cluster.topology.group_of(victim)))  # type: ignore[arg-type]
        elif shape == "random links":
            every = [(one, other) for one in processes for other in processes if one < other]
            pairs = rng.sample(every, rng.randint(1, max(1, len(every) // 3)))
            name = f"{len(pairs)} random links"
        else:
            rest = [process for process in processes if shape == "halves" or process != victim]
            rng.shuffle(rest)
            middle = rng.randint(1, max(1, len(rest) - 1))
            pairs = _across(rest[:middle], rest[middle:])
            name = shape if shape == "halves" else f"halves that only {cluster.name_of(victim)} connects"
        if rng.random() < 1 / 3:
            return f"{name}, one way", pairs
        return name, [*pairs, *((other, one) for one, other in pairs)]


def _across(some: Sequence[ProcessId], others: Sequence[ProcessId]) -> Directions:
    return [(one, other) for one, other in product(some, others) if one != other]
