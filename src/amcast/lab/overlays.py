"""Overlays by name, as options for a plan: those of the papers, from the package's data.

O1, O2 are the orders and T1, T2, T3 the trees that FlexCast's authors deployed over twelve regions; C1 (star) and C2
(binary) are the thesis' trees. The papers count groups from 1; the group in place n of a topology is their number
n + 1.
"""

import json
from functools import cache
from importlib.resources import files
from typing import Any

from amcast.kernel.errors import UsageError
from amcast.parts.ordering.overlay import binary_edges, star_edges

THESIS_GROUPS = 7


@cache
def _published() -> dict[str, dict[str, Any]]:
    data = json.loads(files("amcast").joinpath("data", "flexcast_overlays.json").read_text(encoding="utf-8"))
    known: dict[str, dict[str, Any]] = {}
    for name, order in data["orders"].items():
        if isinstance(order, list):
            known[name] = {"order": [number - 1 for number in order]}
    for name, tree in data["trees"].items():
        known[name] = {"edges": [[parent - 1, child - 1] for parent, child in tree["edges_parent_child"]]}
    return known


def list_overlays() -> tuple[str, ...]:
    """All overlays that have a name."""
    return (*_published(), "C1", "C2")


def find_overlay(name: str, groups: int = THESIS_GROUPS) -> dict[str, Any]:
    """The protocol options that choose an overlay. `groups` sizes C1 and C2, which exist for any number."""
    if name == "C1":
        return {"edges": [list(edge) for edge in star_edges(range(groups))]}
    if name == "C2":
        return {"edges": [list(edge) for edge in binary_edges(range(groups))]}
    if name not in _published():
        raise UsageError(f"overlay {name!r} does not exist; expected one of: {', '.join(list_overlays())}")
    return dict(_published()[name])
