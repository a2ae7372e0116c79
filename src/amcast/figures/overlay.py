"""Drawings of overlays: groups as circles, with the edges along which they may communicate, as SVG text.

A tree is drawn from its root, level by level, every parent above the middle of its children. An order is a line from
the lowest group to the highest with arcs to all later ones. Both are given as plain data, as in a protocol's options.
"""

from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

from amcast.figures.style import INK, PAPER, SERIES, SOFT

STEP: Final = 74
RADIUS: Final = 17
EDGE: Final = 30

Names = Mapping[int, str]
Place = tuple[float, float]


def draw_tree(edges: Sequence[Sequence[int]], names: Names | None = None) -> str:
    """A tree of [parent, child] pairs."""
    children: dict[int, list[int]] = {}
    for parent, child in edges:
        children.setdefault(parent, []).append(child)
    below = {child for _, child in edges}
    roots = [parent for parent in children if parent not in below]
    assert len(roots) == 1, f"{roots} are roots; expected one"
    places = _place_groups(roots[0], children)
    lines = [_draw_line(places[parent], places[child]) for parent, child in edges]
    return _build_svg(places, lines, names or {})


def draw_order(order: Sequence[int], names: Names | None = None) -> str:
    """A complete order, lowest group first."""
    arcs = EDGE + RADIUS + 16 * max(0, len(order) - 2)
    places = {group: (EDGE + STEP * rank, float(arcs)) for rank, group in enumerate(order)}
    lines = []
    for rank, low in enumerate(order):
        for ahead, high in enumerate(order[rank + 1 :]):
            lines.append(_draw_arc(places[low], places[high], 16 * ahead))
    return _build_svg(places, lines, names or {})


def _place_groups(root: int, children: Mapping[int, Sequence[int]]) -> dict[int, Place]:
    """Leaves side by side, parents above the middle of their children."""
    line, depth = [root], {root: 0}
    for group in line:
        for child in sorted(children.get(group, ())):
            depth[child] = depth[group] + 1
            line.append(child)
    leaves = _find_leaves(root, children)
    across = {leaf: float(EDGE + STEP * place) for place, leaf in enumerate(leaves)}
    for group in reversed(line):
        if group not in across:
            mine = [across[child] for child in children[group]]
            across[group] = (min(mine) + max(mine)) / 2
    return {group: (across[group], float(EDGE + STEP * depth[group])) for group in line}


def _find_leaves(root: int, children: Mapping[int, Sequence[int]]) -> list[int]:
    """From left to right."""
    leaves, stack = [], [root]
    while stack:
        group = stack.pop()
        below = sorted(children.get(group, ()), reverse=True)
        stack += below
        if not below:
            leaves.append(group)
    return leaves


def _draw_line(start: Place, end: Place) -> str:
    return f'<path d="M{start[0]:g} {start[1]:g}L{end[0]:g} {end[1]:g}"/>'


def _draw_arc(start: Place, end: Place, height: float) -> str:
    middle = (start[0] + end[0]) / 2
    return f'<path d="M{start[0]:g} {start[1]:g}Q{middle:g} {start[1] - 2 * height:g} {end[0]:g} {end[1]:g}"/>'


def _build_svg(places: Mapping[int, Place], lines: Sequence[str], names: Names) -> str:
    width = max(x for x, _ in places.values()) + EDGE
    height = max(y for _, y in places.values()) + EDGE + (14 if names else 0)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" width="{width:g}"'
        f' font-family="DejaVu Sans, sans-serif" font-size="11" text-anchor="middle">',
        f'<g fill="none" stroke="{SOFT[0]}">',
        *lines,
        "</g>",
    ]
    for group, (x, y) in sorted(places.items()):
        parts.append(f'<circle cx="{x:g}" cy="{y:g}" r="{RADIUS}" fill="{PAPER[0]}" stroke="{SERIES[0][0]}"/>')
        parts.append(f'<text x="{x:g}" y="{y + 4:g}" fill="{INK[0]}">{group}</text>')
        if group in names:
            label = escape(names[group])
            parts.append(f'<text x="{x:g}" y="{y + RADIUS + 12:g}" font-size="9" fill="{SOFT[0]}">{label}</text>')
    return "\n".join((*parts, "</svg>", ""))
