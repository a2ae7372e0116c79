"""Overlays: lowest common ancestors, reach, and errors for options that are no overlay."""

from itertools import combinations

import pytest

from amcast.kernel.errors import UsageError
from amcast.kernel.topology import Topology
from amcast.lab.overlays import find_overlay, list_overlays
from amcast.parts.ordering.overlay import Order, Tree, binary_edges, parse_order, parse_tree, star_edges


def test_order_gives_ranks_ancestors_and_descendants() -> None:
    order = Order((3, 1, 0, 2))
    assert [order.rank[group] for group in (3, 1, 0, 2)] == [0, 1, 2, 3]
    assert order.lca((0, 2)) == 0
    assert order.lca((2, 1, 0)) == 1
    assert order.ancestors(0) == (3, 1)
    assert order.descendants(1) == (0, 2)
    assert order.reach(0) == {0, 2}
    assert order.sorted((0, 1, 2, 3)) == (3, 1, 0, 2)
    assert len(order.edges()) == 6
    assert all(order.rank[low] < order.rank[high] for low, high in order.edges())


def test_tree_lca_is_the_lowest_group_that_reaches_all() -> None:
    tree = parse_tree((), Topology.grid(7, 1))
    assert tree.edges() == binary_edges(range(7))
    for size in (1, 2, 3):
        for wanted in combinations(range(7), size):
            lca = tree.lca(wanted)
            assert set(wanted) <= tree.reach(lca)
            assert not any(set(wanted) <= tree.reach(child) for child in tree.children(lca))
    assert tree.lca((3, 4)) == 1
    assert tree.lca((4, 5)) == 0
    assert tree.lca((5,)) == 5
    assert tree.children_towards(0, (4, 5)) == (1, 2)
    assert tree.children_towards(0, (0, 3)) == (1,)
    assert tree.ancestors(4) == (0, 1)
    assert tree.descendants(2) == (5, 6)
    assert [tree.depth[group] for group in range(7)] == [0, 1, 1, 2, 2, 2, 2]


def test_deep_tree_needs_no_recursion() -> None:
    chain = tuple((group, group + 1) for group in range(3_000))
    tree = Tree(0, chain)
    assert tree.depth[3_000] == 3_000
    assert tree.lca((3_000, 17)) == 17


@pytest.mark.parametrize("name", list_overlays())
def test_named_overlays_fit_their_groups(name: str) -> None:
    options = find_overlay(name)
    topology = Topology.grid(7 if name.startswith("C") else 12, 1)
    if "order" in options:
        assert sorted(parse_order(options["order"], topology).groups) == list(topology.groups)
    else:
        tree = parse_tree([(parent, child) for parent, child in options["edges"]], topology)
        assert sorted(tree.groups) == list(topology.groups)


def test_thesis_trees_have_the_published_shape() -> None:
    star_of_seven, two = find_overlay("C1")["edges"], find_overlay("C2")["edges"]
    assert star_of_seven == [list(edge) for edge in star_edges(range(7))]
    assert max(Tree(0, [tuple(edge) for edge in two]).depth.values()) == 2
    assert len(find_overlay("C1", 4)["edges"]) == 3
    assert find_overlay("T1")["edges"][0] == [5, 4], "the papers count from 1"


@pytest.mark.parametrize(
    ("edges", "error"),
    [
        ([(0, 1)], "2 groups without a parent"),
        ([(0, 1), (0, 9)], "group 9 of"),
        ([(0, 1), (0, 2), (1, 2)], "group 2 has the parents 0 and 1"),
        ([(0, 1), (1, 0), (0, 2)], "0 groups without a parent"),
        ([(1, 2), (2, 1)], "is below itself"),
    ],
)
def test_parse_tree_rejects_other_graphs(edges: list[tuple[int, int]], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_tree(edges, Topology.grid(3, 1))


@pytest.mark.parametrize(
    ("order", "error"),
    [((0, 1), r"missing: \[2\]"), ((0, 1, 2, 7), r"unknown: \[7\]"), ((0, 1, 1, 2), r"twice: \[1\]")],
)
def test_parse_order_rejects_incomplete_orders(order: tuple[int, ...], error: str) -> None:
    with pytest.raises(UsageError, match=error):
        parse_order(order, Topology.grid(3, 1))


def test_unknown_overlay_error_lists_the_known_names() -> None:
    with pytest.raises(UsageError, match="expected one of: O1"):
        find_overlay("O9")
