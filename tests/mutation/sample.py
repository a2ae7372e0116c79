"""The sample of mutants, and where each is looked for. Both are fixed: no mutant is chosen by hand.

Mutants are ranked by a hash of the seed and their id, and each operator takes the first of its own. A change elsewhere
in a module therefore leaves the rest of the sample as it was.
"""

import hashlib
import tomllib
from collections import defaultdict
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


@dataclass(frozen=True, order=True)
class Target:
    """A search: seeds of a protocol, each with its own shape; where a plan is named, with its members and changes."""

    protocol: str
    plan: str = ""

    @property
    def name(self) -> str:
        return " ".join(self.arguments)

    @property
    def arguments(self) -> tuple[str, ...]:
        """Of `amcast fuzz`."""
        return ("-p", self.protocol, *(("--plan", self.plan, "--swarm") if self.plan else ()))

    def make_runs(self) -> "SwarmRuns":
        from amcast.lab.fuzz_campaign import SwarmRuns  # not before a mutant is planted

        values = tomllib.loads((SOURCE.parent / self.plan).read_text()) if self.plan else {}
        return SwarmRuns({**values, "protocol": self.protocol}, self.name)


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
    "amcast.parts.broadcast": _list_targets("a-dt"),
    "amcast.parts.client": _list_targets("primcast", "fastcast"),
    "amcast.parts.consensus.ring_paxos": _list_targets("basecast", "fastcast"),
    "amcast.parts.consensus": _list_targets("multipaxos", "fastcast"),
    "amcast.parts.groups.leader_group": _list_targets("primcast", "whitebox"),
    "amcast.parts.groups.replicated": _list_targets("flexcast", "treecast"),
    "amcast.parts.groups": _list_targets("basecast", "fastcast"),
    "amcast.parts.membership": _list_targets("primcast", "fastcast", plan="plans/members.toml"),
    "amcast.parts.node": _list_targets("primcast", "whitebox"),
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
)
"""What the result of a seed depends on."""
CHECKER_TESTS: Final = ("tests/check", "tests/mutants/test_planted.py")


def find_targets(module: str) -> tuple[Target, ...]:
    """The searches for mutants of a module; none for checkers, whose tests look for them."""
    for name in sorted(TARGETS, key=len, reverse=True):
        if module == name or module.startswith(name + "."):
            return TARGETS[name]
    assert module.startswith("amcast.check."), f"tests/mutation/sample.py: TARGETS lacks {module}"
    return ()


def list_tests(module: str) -> tuple[str, ...]:
    """The tests that look for mutants of a module which fuzzing does not find at once: those of its package."""
    if not find_targets(module):
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
        place = SOURCE / "amcast" / name
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
