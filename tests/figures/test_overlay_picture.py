"""Pictures of overlays: well-formed, everything on them, nothing outside."""

from xml.etree import ElementTree

import pytest

from amcast.figures.overlay import draw_order, draw_tree
from amcast.lab.overlays import find_overlay, list_overlays

SVG = "{http://www.w3.org/2000/svg}"


@pytest.mark.parametrize("name", list_overlays())
def test_every_named_overlay_is_drawn(name: str) -> None:
    options = find_overlay(name)
    regions = {group: f"<{group}>" for group in range(12)}
    if "edges" in options:
        picture, groups = draw_tree(options["edges"], regions), len(options["edges"]) + 1
        lines = len(options["edges"])
    else:
        picture, groups = draw_order(options["order"], regions), len(options["order"])
        lines = groups * (groups - 1) // 2
    root = ElementTree.fromstring(picture)
    circles = root.findall(f"{SVG}circle")
    assert len(circles) == groups
    assert len(root.findall(f"{SVG}g/{SVG}path")) == lines
    places = {(circle.get("cx"), circle.get("cy")) for circle in circles}
    assert len(places) == groups, "two groups are drawn over each other"
    width, height = (float(part) for part in (root.get("viewBox") or "").split()[2:])
    for circle in circles:
        assert 0 < float(circle.get("cx") or -1) < width
        assert 0 < float(circle.get("cy") or -1) < height


def test_parents_are_above_their_children() -> None:
    root = ElementTree.fromstring(draw_tree([[0, 1], [0, 2], [1, 3], [1, 4]]))
    height = {
        text.text: float(circle.get("cy") or 0)
        for circle, text in zip(root.findall(f"{SVG}circle"), root.findall(f"{SVG}text"), strict=True)
    }
    assert height["0"] < height["1"] == height["2"] < height["3"]
