"""Parts of a scope that are searched apart: by the servers that crash and the leaders that are suggested.

Every run of a scope has its faults from some small set, and belongs to the part that allows no others. Runs with fewer
faults belong to several parts and are seen again in each, but a part knows that the packets of most processes cannot be
lost, parts are searched side by side, and a part that a symmetry maps to another one need not be searched.
"""

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from typing import Final

from amcast.kernel.ids import ProcessId
from amcast.simulation.exploration.symmetry import Permutation
from amcast.simulation.schedulers.scope import Scope
from amcast.simulation.world.actions import Suggest

MAX_PARTS: Final = 1_000


def split_scope(scope: Scope) -> list[Scope]:
    """The parts of a scope; the scope itself if its faults cannot be told apart, or too many parts would be needed."""
    budget = scope.budget
    if not scope.reduced or budget.recoveries or budget.renewals:
        return [scope]
    servers, suggested = scope.list_mortal(), scope.list_suggestions()
    crashing = list(combinations(servers, min(budget.crashes, len(servers))))
    leading = list(combinations(suggested, min(budget.suggestions, len(suggested))))
    if len(crashing) * len(leading) > MAX_PARTS:
        return [scope]
    return [replace(scope, mortal=mortal, suggestions=suggestions) for mortal in crashing for suggestions in leading]


_Faults = tuple[frozenset[ProcessId], frozenset[Suggest]]


def maps_to_itself(permutation: Permutation, part: Scope) -> bool:
    """Whether a permutation maps the faults of a part to each other."""
    return _map_faults(permutation, part) == _faults_of(part)


def list_mappings(parts: Sequence[Scope], candidates: Sequence[Permutation]) -> list[dict[int, set[Permutation]]]:
    """By part: the earlier parts that a permutation maps to it, with these permutations."""
    numbers = {_faults_of(part): number for number, part in enumerate(parts)}
    found: list[dict[int, set[Permutation]]] = [{} for _ in parts]
    for earlier, part in enumerate(parts):
        for one in candidates:
            number = numbers[_map_faults(one, part)]
            if number > earlier:
                found[number].setdefault(earlier, set()).add(one)
    return found


def _faults_of(part: Scope) -> _Faults:
    return frozenset(part.list_mortal()), frozenset(part.list_suggestions())


def _map_faults(permutation: Permutation, part: Scope) -> _Faults:
    topology = part.topology
    processes = topology.processes
    renamed = {process: processes[place] for process, place in zip(processes, permutation, strict=True)}
    groups = {group: topology.group_of(renamed[topology.members(group)[0]]) for group in topology.groups}
    suggestions = []
    for one in part.list_suggestions():
        group = groups[one.group]
        assert group is not None
        suggestions.append(Suggest(renamed[one.process], group, renamed[one.leader]))
    return frozenset(renamed[process] for process in part.list_mortal()), frozenset(suggestions)
