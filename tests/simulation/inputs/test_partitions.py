"""Partitions take every shape that separates a quorum, and each of their links heals."""

from random import Random

from amcast.kernel.spec import FAULTS, Claims, majorities_survive
from amcast.kernel.topology import Topology
from amcast.simulation.inputs.faults import FaultInjector, perform_fault
from amcast.simulation.inputs.partitions import Pair, draw_partition, find_cut_members
from amcast.simulation.schedulers.pending_actions import PendingActions
from amcast.simulation.world.actions import Block, Heal, Suggest
from amcast.simulation.world.world import World
from tests.simulation.puppets import Puppet

TOPOLOGY = Topology.grid(2, 3, 1)
ALL = Claims("no", faults=frozenset(FAULTS), tolerates=majorities_survive)  # type: ignore[arg-type]


def both_ways(*pairs: Pair) -> set[Pair]:
    return {link for one, other in pairs for link in ((one, other), (other, one))}


def test_each_kind_of_partial_partition_is_drawn() -> None:
    drawn = [set(draw_partition(TOPOLOGY, Random(seed))) for seed in range(2000)]
    assert both_ways((0, 1), (0, 2)) in drawn, "the first leader loses its own group alone"
    assert {(1, 0), (2, 0)} in drawn, "it does not hear its group, which hears it"
    assert both_ways((0, 1), (3, 5)) in drawn, "in each group a chain: one member hears the two ends"
    assert both_ways(*((0, other) for other in (3, 4, 5, 6))) in drawn, "a member hears its group alone"
    assert any(
        not any(process in link for link in links) and {0, 1} <= set(find_cut_members(TOPOLOGY, links))
        for links in drawn
        for process in range(2, 7)
    ), "one process hears two sides that do not hear each other"
    assert any({(a, b) in links for a, b in both_ways((0, 1), (3, 4))} == {True, False} for links in drawn)
    assert all(links and all(one != other for one, other in links) for links in drawn)


def test_partition_of_groups_of_one_cuts_links_between_them() -> None:
    assert all(draw_partition(Topology.grid(2, 1, 1), Random(seed)) for seed in range(100))


def test_member_is_cut_off_without_a_majority_in_either_direction() -> None:
    assert find_cut_members(TOPOLOGY, both_ways((0, 1), (0, 2))) == [0]
    assert find_cut_members(TOPOLOGY, [(0, 1), (0, 2)]) == [0], "it is not heard"
    assert find_cut_members(TOPOLOGY, [(1, 0), (2, 0)]) == [0], "it does not hear"
    assert find_cut_members(TOPOLOGY, both_ways((0, 1))) == []


def test_partition_replaces_the_leader_that_lost_its_group_and_heals_its_own_links() -> None:
    pool = PendingActions()
    pool.world = world = World(TOPOLOGY, lambda me: Puppet(me, TOPOLOGY, lambda puppet, event: None, {}), pool)
    world.start()
    replaced = flapping = False
    for seed in range(200):
        faults = FaultInjector(frozenset({"partition", "leaders"}), ALL, Random(seed), 1000).draw(world)
        if not isinstance(faults[0], Block):
            continue
        cut = find_cut_members(TOPOLOGY, faults[0].pairs)
        suggestions = [fault for fault in faults if isinstance(fault, Suggest)]
        assert not any(fault.process in cut or fault.leader in cut for fault in suggestions)
        replaced = replaced or bool(suggestions)
        flapping = flapping or faults.count(faults[0]) > 1
        other = Block(((0, 6),)) if (0, 6) not in faults[0].pairs else Block(())
        end = faults.index(Heal(faults[0].pairs))
        assert set(faults[1:end]) <= set(suggestions), "others are told of a leader while the links are blocked"
        for fault in (other, faults[0], faults[end]):
            perform_fault(world, pool, fault)
        assert world.blocked == set(other.pairs), "another partition goes on"
        perform_fault(world, pool, Heal())
        assert not world.blocked
    assert replaced
    assert flapping
