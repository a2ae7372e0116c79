"""The sample of mutants, and where each is looked for. Both are fixed: no mutant is chosen by hand.

Mutants are ranked by a hash of the seed and their id, and each operator takes the first of its own. A change elsewhere
in a module therefore leaves the rest of the sample as it was.
"""

import hashlib
import tomllib
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Final

from tests.mutation.operators import Mutant, list_mutants

if TYPE_CHECKING:
    from amcast.lab.fuzz_campaign import SwarmRuns

SOURCE: Final = Path(__file__).parents[2] / "src"
SEED: Final = 1
SIZES: Final = {
    "drop-persist": 20,
    "drop-send": 40,
    "drop-merge": 35,
    "drop-guard": 45,
    "force-guard": 25,
    "drop-operand": 40,
    "off-by-one": 35,
    "weaken-quorum": 20,
    "forget-field": 35,
    "drop-tie-breaker": 15,
    "send-before-persist": 10,
    "first-of-extreme": 15,
    "drop-call": 20,
    "drop-assignment": 25,
}
"""How many mutants of each operator are in the sample; fewer where the source has fewer."""
CHECKER_MUTANTS: Final = 30
SKIPPED_MODULES: Final = frozenset({"__init__", "messages", "claims", "catalogue", "explain", "statements"})
"""Modules without decisions: data, texts for operators, and what monitors are told."""


JudgeSeed = Callable[[int], tuple[str, str]]
"""Takes a seed; returns its status ("holds", or how it failed) and its story."""


@dataclass(frozen=True, order=True)
class Target:
    """A search: seeds of a protocol, each with its own shape; where a plan is named, with its members and changes;
    where an order is named, all with that. Without a protocol: seeds of random traces and histories, for faults of
    checkers."""

    protocol: str
    plan: str = ""
    order: str = ""

    @property
    def name(self) -> str:
        return " ".join(self.arguments[1:]) or self.arguments[0]

    @property
    def arguments(self) -> tuple[str, ...]:
        """A command of `tests/mutation/plant.py`."""
        if not self.protocol:
            return ("judges",)
        plan = ("--plan", self.plan, "--swarm") if self.plan else ()
        return ("fuzz", "-p", self.protocol, *plan, *(("--order", self.order) if self.order else ()))

    def make_judge(self) -> JudgeSeed:
        """What judges a seed. It imports the product not before a mutant is planted."""
        if not self.protocol:
            from tests.mutation.judges import judge_seed

            return judge_seed
        from amcast.lab.runs import fuzz_seed

        runs = self.make_runs()

        def fuzz(seed: int) -> tuple[str, str]:
            outcome = fuzz_seed(runs.prepare(seed), seed)
            return outcome.status, outcome.story

        return fuzz

    def make_runs(self) -> "SwarmRuns":
        """The runs of a protocol."""
        from amcast.lab.fuzz_campaign import SwarmRuns

        values = tomllib.loads((SOURCE.parent / self.plan).read_text()) if self.plan else {}
        order = {"order": self.order} if self.order else {}
        return SwarmRuns({**values, **order, "protocol": self.protocol}, self.name)


def _list_targets(*protocols: str, plan: str = "") -> tuple[Target, ...]:
    return tuple(Target(protocol, plan) for protocol in protocols)


TARGETS: Final[dict[str, tuple[Target, ...]]] = {
    "amcast.protocols.a_ge": _list_targets("a-ge", "a-ge-star"),
    "amcast.protocols.basecast": _list_targets("basecast"),
    "amcast.protocols.fastcast": _list_targets("fastcast"),
    "amcast.protocols.flexcast": _list_targets("flexcast"),
    "amcast.protocols.multipaxos": _list_targets("multipaxos"),
    "amcast.protocols.primcast": _list_targets("primcast", "primcast-hc"),
    "amcast.protocols.ring": _list_targets("ring"),
    "amcast.protocols.rounds.a_dt": _list_targets("a-dt"),
    "amcast.protocols.rounds.a_ng": _list_targets("a-ng"),
    "amcast.protocols.rounds.process": _list_targets("a-ng", "a-dt"),
    "amcast.protocols.skeen": _list_targets("skeen"),
    "amcast.protocols.treecast": _list_targets("treecast"),
    "amcast.protocols.whitebox": _list_targets("whitebox"),
    "amcast.check": (Target(""),),
    "amcast.parts.broadcast": _list_targets("a-dt"),
    "amcast.parts.client": _list_targets("primcast", "fastcast", "a-dt"),
    "amcast.parts.consensus.ring_paxos": _list_targets("basecast", "fastcast"),
    "amcast.parts.consensus": _list_targets("multipaxos", "fastcast"),
    "amcast.parts.groups.leader_group": _list_targets("primcast", "whitebox"),
    "amcast.parts.groups.replicated": _list_targets("flexcast", "treecast"),
    "amcast.parts.groups": _list_targets("basecast", "fastcast"),
    "amcast.parts.membership": _list_targets("primcast", "fastcast", "a-dt", plan="plans/members.toml"),
    "amcast.parts.node": _list_targets("primcast", "whitebox"),
    "amcast.parts.node.bundle_pace": _list_targets("primcast", plan="tests/mutation/gateways.toml"),
    "amcast.parts.node.gather_window": _list_targets("primcast", plan="tests/mutation/gateways.toml"),
    "amcast.parts.node.gateway": _list_targets("primcast", plan="tests/mutation/gateways.toml"),
    "amcast.parts.node.real_time_order": _list_targets("primcast", "fastcast", plan="tests/mutation/real-time.toml"),
    "amcast.parts.ordering.consistent_cut": _list_targets("primcast", "fastcast", plan="tests/mutation/real-time.toml"),
    "amcast.parts.ordering.history": _list_targets("flexcast"),
    "amcast.parts.ordering.overlay": _list_targets("flexcast", "treecast"),
    "amcast.parts.ordering": _list_targets("primcast", "fastcast"),
}
"""By package or module, the longest name first: the searches that share the seeds of a mutant."""
SEARCHED: Final = (
    "kernel",
    "parts",
    "protocols",
    "storage",
    "assembly.py",
    "simulation",
    "trace",
    "check",
    "workloads",
    "lab/fuzz_campaign.py",
    "lab/runs.py",
    "tests/mutation/judges.py",
    "tests/check/oracle.py",
    "tests/check/histories/random_histories.py",
    "tests/pipeline/check/brute_force.py",
    "tests/pipeline/check/trace_generator.py",
)
"""What the result of a seed depends on."""
CHECKER_TESTS: Final = ("tests/check", "tests/mutants/test_planted.py")


def find_targets(module: str) -> tuple[Target, ...]:
    """The searches for mutants of a module."""
    for name in sorted(TARGETS, key=len, reverse=True):
        if module == name or module.startswith(name + "."):
            return TARGETS[name]
    raise AssertionError(f"tests/mutation/sample.py: TARGETS lacks {module}")


def list_tests(module: str) -> tuple[str, ...]:
    """The tests that look for mutants of a module which fuzzing does not find at once: those of its package."""
    if module.startswith("amcast.check."):
        return CHECKER_TESTS
    folder = Path("tests", *module.split(".")[1:-1])
    return (str(folder),) if (SOURCE.parent / folder).is_dir() else ()


@cache
def list_all() -> tuple[Mutant, ...]:
    """Every mutant of protocols, parts and checkers."""
    found: list[Mutant] = []
    for package in ("protocols", "parts", "check"):
        for file in sorted((SOURCE / "amcast" / package).rglob("*.py")):
            if file.stem not in SKIPPED_MODULES:
                module = ".".join(file.relative_to(SOURCE).with_suffix("").parts)
                found += list_mutants(module, file.read_text())
    return tuple(found)


@cache
def draw_sample() -> tuple[Mutant, ...]:
    """The sample, ordered by id."""
    ranked: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in sorted(list_all(), key=rank):
        is_checker = mutant.module.startswith("amcast.check.")
        ranked["checker" if is_checker else mutant.operator].append(mutant)
    chosen = ranked["checker"][:CHECKER_MUTANTS]
    for operator, size in SIZES.items():
        chosen += ranked[operator][:size]
    return tuple(sorted(chosen, key=lambda mutant: mutant.id))


def digest_source() -> str:
    """Names the state of what a simulated run and its judges execute: findings of another state tell nothing about this
    one."""
    digest = hashlib.sha256()
    for name in SEARCHED:
        place = SOURCE / "amcast" / name if not name.startswith("tests/") else SOURCE.parent / name
        for file in sorted(place.rglob("*.py")) if place.is_dir() else (place,):
            digest.update(file.read_bytes())
    return digest.hexdigest()[:16]


def find_mutant(id: str) -> Mutant:
    """The mutant with an id; KeyError if its module has none."""
    module = id.partition(":")[0]
    source = SOURCE.joinpath(*module.split(".")).with_suffix(".py").read_text()
    return {mutant.id: mutant for mutant in list_mutants(module, source)}[id]


def rank(mutant: Mutant) -> bytes:
    """The place of a mutant among all: without regard to what it is."""
    return hashlib.sha256(f"{SEED} {mutant.id}".encode()).digest()
