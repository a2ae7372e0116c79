"""Which seeds execute the line of which mutant: a mutant changes nothing in the others, so nobody needs to run them.

Every sampled statement gets a probe, and all searches run once without any mutant. A seed that fails already then is a
bug of its own: it is printed, and looks for no mutant.
"""

import ast
import importlib
import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final

from tests.mutation.operators import Mutant
from tests.mutation.patch import PatchError, collect_functions, find_function, set_code
from tests.mutation.sample import SOURCE, Target, find_targets

PROBE: Final = "mutation_hits"
CHUNK: Final = 25

Hits = dict[str, dict[str, list[int]]]
"""By mutant, then by target: the seeds that execute its line."""


def measure_hits(
    mutants: Sequence[Mutant], asked: Sequence[Mutant], seeds: int, jobs: int, file: Path, source: str
) -> Hits:
    """The hits of all mutants within the seeds of those targets that the asked mutants have; what the file has of the
    same source is not measured again."""
    data: dict[str, Any] = json.loads(file.read_text()) if file.exists() else {}
    if data.get("source") != source:
        data = {"source": source, "measured": {}, "hits": {}}
    measured: dict[str, int] = data["measured"]
    hits: Hits = data["hits"]
    shares: dict[Target, int] = defaultdict(int)
    for mutant in asked:
        targets = find_targets(mutant.module)
        for target in targets:
            shares[target] = max(shares[target], seeds // len(targets))
    wanted = [(target, share) for target, share in sorted(shares.items()) if measured.get(target.name, 0) < share]
    if not wanted:
        return hits
    with ProcessPoolExecutor(jobs, get_context("spawn"), plant_probes, (tuple(mutants),)) as pool:
        for target, share in wanted:
            first = measured.get(target.name, 0)
            chunks = [(target, range(at, min(at + CHUNK, share))) for at in range(first, share, CHUNK)]
            for found in pool.map(run_probed, chunks):
                for id, seed in found:
                    hits.setdefault(id, {}).setdefault(target.name, []).append(seed)
            measured[target.name] = share
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(json.dumps(data))
    return hits


_hits: set[str] = set()


def plant_probes(mutants: tuple[Mutant, ...]) -> None:
    """Plants a probe before the statement of every mutant."""
    by_module: dict[str, list[Mutant]] = defaultdict(list)
    for mutant in mutants:
        by_module[mutant.module].append(mutant)
    for name, listed in sorted(by_module.items()):
        module = importlib.import_module(name)
        setattr(module, PROBE, _hits.add)
        file = SOURCE.joinpath(*name.split(".")).with_suffix(".py")
        tree = ast.parse(file.read_text())
        for mutant in listed:
            _insert_probe(tree, mutant)
        ast.fix_missing_locations(tree)
        codes = collect_functions(compile(tree, str(file), "exec", dont_inherit=True))
        for function in {mutant.function for mutant in listed}:
            set_code(find_function(module, function), codes[function])


def run_probed(task: tuple[Target, range]) -> list[tuple[str, int]]:
    """Runs seeds of a target with probes; returns which mutants each seed hits."""
    target, seeds = task
    judge = target.make_judge()
    found: list[tuple[str, int]] = []
    for seed in seeds:
        _hits.clear()
        status, story = judge(seed)
        if status != "holds":  # it would fail with every mutant, too
            print(f"seed {seed} of {target.name} fails without any mutant: {story}", file=sys.stderr)
            continue
        found += [(id, seed) for id in sorted(_hits)]
    return found


def _insert_probe(tree: ast.Module, mutant: Mutant) -> None:
    """Inserts a probe before the innermost statement that contains the mutant's line."""
    block: list[ast.stmt] = tree.body
    while True:
        place = next(
            (n for n, one in enumerate(block) if one.lineno <= mutant.line <= (one.end_lineno or one.lineno)), None
        )
        if place is None:
            raise PatchError(f"{mutant.id}: no statement at line {mutant.line}")
        inner = [
            body
            for body in _list_blocks(block[place])
            if body[0].lineno <= mutant.line <= (body[-1].end_lineno or body[-1].lineno)
        ]
        if not inner:
            break
        block = inner[0]
    call = f"{PROBE}({mutant.id!r})"
    block.insert(place, ast.copy_location(ast.parse(call).body[0], block[place]))


def _list_blocks(statement: ast.stmt) -> list[list[ast.stmt]]:
    blocks = [getattr(statement, name, []) for name in ("body", "orelse", "finalbody")]
    blocks += [handler.body for handler in getattr(statement, "handlers", [])]
    blocks += [case.body for case in getattr(statement, "cases", [])]
    return [block for block in blocks if block]
