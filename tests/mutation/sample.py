"""The sample of mutants, and where each is looked for. Both are fixed: no mutant is chosen by hand.

Mutants are ranked by a hash of the seed and their id, and each operator takes the first of its own. A change elsewhere
in a module therefore leaves the rest of the sample as it was.
"""

import hashlib
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import Final

from tests.mutation.operators import Mutant, list_mutants

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
SKIPPED_MODULES: Final = frozenset({"__init__", "messages", "claims", "catalogue", "explain"})
"""Modules without decisions: data, and texts for operators."""

ProtocolRuns = tuple[tuple[str, ...], ...]
"""Arguments of `amcast fuzz`, one tuple per search."""

MEMBERS: Final = ("--plan", "plans/members.toml", "-p")
TARGETS: Final[dict[str, ProtocolRuns]] = {
    "amcast.protocols.a_ge": (("-p", "a-ge"), ("-p", "a-ge-star")),
    "amcast.protocols.basecast": (("-p", "basecast"),),
    "amcast.protocols.fastcast": (("-p", "fastcast"),),
    "amcast.protocols.flexcast": (("-p", "flexcast"),),
    "amcast.protocols.multipaxos": (("-p", "multipaxos"),),
    "amcast.protocols.primcast": (("-p", "primcast"), ("-p", "primcast-hc")),
    "amcast.protocols.ring": (("-p", "ring"),),
    "amcast.protocols.rounds.a_dt": (("-p", "a-dt"),),
    "amcast.protocols.rounds.a_ng": (("-p", "a-ng"),),
    "amcast.protocols.rounds.process": (("-p", "a-ng"), ("-p", "a-dt")),
    "amcast.protocols.skeen": (("-p", "skeen"), ("-p", "skeen")),
    "amcast.protocols.treecast": (("-p", "treecast"),),
    "amcast.protocols.whitebox": (("-p", "whitebox"),),
    "amcast.parts.broadcast": (("-p", "a-ge"), ("-p", "a-ge-star")),
    "amcast.parts.client": (("-p", "primcast"), ("-p", "fastcast")),
    "amcast.parts.consensus.ring_paxos": (("-p", "ring"),),
    "amcast.parts.consensus": (("-p", "multipaxos"), ("-p", "fastcast")),
    "amcast.parts.groups.leader_group": (("-p", "primcast"), ("-p", "whitebox")),
    "amcast.parts.groups.replicated": (("-p", "flexcast"), ("-p", "treecast")),
    "amcast.parts.groups": (("-p", "basecast"), ("-p", "fastcast")),
    "amcast.parts.membership": ((*MEMBERS, "primcast"), (*MEMBERS, "fastcast")),
    "amcast.parts.node": (("-p", "primcast"), ("-p", "whitebox")),
    "amcast.parts.ordering.history": (("-p", "flexcast"),),
    "amcast.parts.ordering.overlay": (("-p", "flexcast"), ("-p", "treecast")),
    "amcast.parts.ordering": (("-p", "primcast"), ("-p", "fastcast")),
}
"""By package or module, the longest name first: the searches that share the seeds of a mutant."""
CHECKER_TESTS: Final = ("tests/check", "tests/mutants/test_planted.py")


def find_targets(module: str) -> ProtocolRuns:
    """The searches for mutants of a module; none for checkers, whose tests look for them."""
    for name in sorted(TARGETS, key=len, reverse=True):
        if module == name or module.startswith(name + "."):
            return TARGETS[name]
    assert module.startswith("amcast.check."), f"tests/mutation/sample.py: TARGETS lacks {module}"
    return ()


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
    for mutant in sorted(list_all(), key=_rank):
        is_checker = mutant.module.startswith("amcast.check.")
        ranked["checker" if is_checker else mutant.operator].append(mutant)
    chosen = ranked["checker"][:CHECKER_MUTANTS]
    for operator, size in SIZES.items():
        chosen += ranked[operator][:size]
    return tuple(sorted(chosen, key=lambda mutant: mutant.id))


def find_mutant(id: str) -> Mutant:
    """The mutant with an id; KeyError if its module has none."""
    module = id.partition(":")[0]
    source = SOURCE.joinpath(*module.split(".")).with_suffix(".py").read_text()
    return {mutant.id: mutant for mutant in list_mutants(module, source)}[id]


def _rank(mutant: Mutant) -> bytes:
    return hashlib.sha256(f"{SEED} {mutant.id}".encode()).digest()
