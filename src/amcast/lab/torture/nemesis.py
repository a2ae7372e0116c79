"""The nemesis: draws faults of a live cluster from a seed, performs them and heals them, round after round.

A round draws one or two faults, lets the cluster suffer for a moment, heals everything and demands that clients are
answered again. Kinds are dealt like cards: each comes once before any comes again. What is drawn depends on the seed
alone; when it strikes depends on the machine, too.
"""

import signal
import time
from collections.abc import Callable, Sequence
from itertools import product
from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.lab.torture.faults import FAULTS, Blow, Stage, Strike
from amcast.lab.torture.folder_faults import FolderFaults
from amcast.lab.torture.member_changes import MemberChanges
from amcast.lab.torture.target import TorturedCluster
from amcast.live.torture.proxies import Direction

HOLD_S: Final = (0.3, 4.0)
"""How long a round lasts before it heals."""
RECOVERY_S: Final = 60.0
"""The liveness bound: after a round is healed, clients are answered again within this time."""
ANSWERS: Final = 20
"""Receipts that show that clients are answered again."""
FLAPS: Final = 6

Directions = list[Direction]


class Nemesis:
    """The faults of one run."""

    def __init__(self, target: TorturedCluster, kinds: Sequence[str], count_answers: Callable[[], int]) -> None:
        self.strikes: list[Strike] = []
        self.longest_recovery_s = 0.0
        self.struck_s = 0.0
        """How long this has struck."""
        self._target = target
        self._network = target.network
        self._kinds = list(kinds)
        self._deck: list[str] = []
        """Kinds that are still to be drawn before any is drawn again."""
        self._rng = target.rng
        self._count_answers = count_answers
        folders, self._members = FolderFaults(target), MemberChanges(target)
        self._performs: dict[str, Callable[[], Blow]] = {
            "kill": self._kill,
            "stop": self._stop,
            "leave": self._leave,
            "cut": self._cut,
            "flap": self._flap,
            "corrupt": self._corrupt,
            "torn": folders.tear,
            "rot": folders.rot,
            "rollback": folders.roll_back,
            "emptied": folders.empty,
            "full": folders.fill,
            "slow": folders.slow,
            "members": self._members.strike,
        }
        assert set(self._performs) == set(FAULTS)

    def run(self, seconds: float) -> None:
        """Strikes for so many seconds, round after round, and until each kind has been drawn once; stops early when
        the cluster does not recover."""
        violations = self._target.violations
        self._await_answers()
        self._shuffle()
        begin = time.monotonic()
        while (self.struck_s < seconds or len(self.strikes) < len(self._kinds)) and not violations:
            self._run_round()
            self.struck_s = time.monotonic() - begin
        if not violations:
            self._members.await_leavers()

    def _shuffle(self) -> None:
        self._deck += self._rng.sample(self._kinds, len(self._kinds))

    def _draw_kinds(self) -> list[str]:
        """One or two kinds for a round."""
        count = min(len(self._kinds), self._rng.choice((1, 1, 2)))
        chosen: list[str] = []
        while len(chosen) < count:
            if not self._deck:
                self._shuffle()
            kind = self._deck.pop(0)
            if kind in chosen:
                self._deck.append(kind)
            else:
                chosen.append(kind)
        return chosen

    def _run_round(self) -> None:
        target = self._target
        blows: list[Blow] = []
        for kind in self._draw_kinds():
            blow = self._performs[kind]()
            self.strikes.append(Strike(time.time_ns(), kind, blow.detail))
            target.say(f"{self._count_answers()} answers so far; {kind}: {blow.detail}")
            blows.append(blow)
        time.sleep(self._rng.uniform(*HOLD_S))
        for blow in sorted(blows, key=lambda blow: blow.stage):
            blow.heal()
        target.impaired.clear()
        target.spoilt.clear()
        self._await_answers()
        for node, code in sorted(target.running.take_exited().items()):
            if code != 0 or node not in target.removed:
                reason = target.running.last_log_line(node)
                target.violations.append(f"node {node} exited by itself with code {code}: {reason}")

    def _await_answers(self) -> None:
        """Waits until clients are answered."""
        began = time.monotonic()
        goal = self._count_answers() + ANSWERS
        while self._count_answers() < goal:
            if time.monotonic() - began > RECOVERY_S:
                self._target.violations.append(f"clients were not answered within {RECOVERY_S:.0f} s after healing")
                return
            time.sleep(0.02)
        self.longest_recovery_s = max(self.longest_recovery_s, time.monotonic() - began)

    # Nodes

    def _kill(self) -> Blow:
        nodes = self._target.choose_nodes(self._target.draw_count())
        self._target.running.kill(*nodes)
        return Blow(", ".join(nodes) or "nobody is left", lambda: self._target.start(nodes), Stage.NODES)

    def _leave(self) -> Blow:
        nodes = self._target.choose_nodes(1)
        self._target.stop(nodes)
        return Blow(", ".join(nodes) or "nobody is left", lambda: self._target.start(nodes), Stage.NODES)

    def _stop(self) -> Blow:
        nodes = self._target.choose_nodes(self._target.draw_count())
        self._signal(nodes, signal.SIGSTOP)
        return Blow(", ".join(nodes) or "nobody is left", lambda: self._signal(nodes, signal.SIGCONT), Stage.LINKS)

    def _signal(self, nodes: Sequence[str], number: signal.Signals) -> None:
        for node in nodes:
            self._target.running.signal(node, number)

    # Links

    def _cut(self) -> Blow:
        name, directions = self._draw_cut()
        self._network.cut(directions)
        return Blow(name, self._network.heal, Stage.LINKS)

    def _flap(self) -> Blow:
        name, directions = self._draw_cut()
        for _ in range(FLAPS):
            self._network.cut(directions)
            time.sleep(self._rng.uniform(0.02, 0.2))
            self._network.heal()
            time.sleep(self._rng.uniform(0.02, 0.1))
        return Blow(name, self._network.heal, Stage.LINKS)

    def _corrupt(self) -> Blow:
        name, directions = self._draw_cut()
        self._network.corrupt(directions, self._rng.randrange(1 << 30))
        return Blow(name, self._network.heal, Stage.LINKS)

    def _draw_cut(self) -> tuple[str, Directions]:
        """A set of links, with its name; in a third of the draws one direction only."""
        rng, cluster = self._rng, self._target.cluster
        processes = sorted(cluster.nodes().values())
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
