"""Which side of a difference has a majority: what each member concludes from the findings of all."""

from amcast.parts.node.comparison_results import ComparisonResults
from amcast.parts.node.messages import Difference, Findings


def make_results(me: int, members: int) -> ComparisonResults:
    return ComparisonResults("deliveries", me, tuple(range(members)))


def differ(member: int, position: int) -> Difference:
    return Difference(member, position, 0xA, 0xB)


def test_member_whose_opponent_has_a_majority_is_wrong() -> None:
    results = make_results(2, 3)
    results.add_difference(differ(0, 10))
    assert results.decide() == "split"
    results.receive(0, Findings(equal=((1, 9),)))
    assert results.decide() == "split", "an equality before the difference proves nothing"
    results.receive(0, Findings(equal=((1, 10),)))
    assert results.decide() == "minority"
    assert results.list_wrong() == (2,)


def test_equality_that_the_other_member_found_counts_as_well() -> None:
    results = make_results(2, 3)
    results.add_difference(differ(0, 10))
    results.receive(1, Findings(equal=((0, 12),)))
    assert results.decide() == "minority"


def test_member_with_a_majority_on_its_side_goes_on() -> None:
    results = make_results(0, 3)
    results.add_difference(differ(2, 10))
    results.add_equal(1, 10)
    assert results.decide() == "majority"
    assert results.list_wrong() == (2,)
    (sentence,) = results.describe_differences()
    assert sentence == (
        "deliveries before position 10: process 0 holds 0000000a, process 2 holds 0000000b;"
        " process 2 is wrong: a majority agrees with process 0"
    )


def test_findings_of_others_alone_make_nobody_wrong() -> None:
    """The finding may be about an earlier incarnation of this member, whose folder was replaced since."""
    results = make_results(2, 3)
    results.receive(0, Findings(equal=((1, 10),), differing=(differ(2, 10),)))
    assert results.decide() == "split"


def test_member_that_is_not_compared_stops_with_the_others() -> None:
    results = make_results(2, 3)
    results.receive(0, Findings(differing=(differ(1, 10),)))
    assert results.decide() == "split"
    results.add_equal(0, 11)
    assert results.decide() == "majority"
    assert results.list_wrong() == (1,)


def test_even_split_has_no_majority() -> None:
    results = make_results(0, 4)
    results.add_equal(1, 20)
    results.add_difference(differ(2, 10))
    results.add_difference(differ(3, 10))
    results.receive(2, Findings(equal=((3, 20),), differing=(differ(0, 10), differ(1, 10))))
    assert results.decide() == "split"
    assert results.list_wrong() == ()


def test_side_of_a_member_that_appears_on_both_does_not_count() -> None:
    results = make_results(0, 3)
    results.add_difference(differ(1, 10))
    results.add_equal(2, 10)
    results.receive(1, Findings(equal=((2, 30),)))
    assert results.decide() == "split"


def test_new_incarnation_of_a_member_is_compared_anew() -> None:
    results = make_results(0, 2)
    results.add_difference(differ(1, 10))
    results.receive(1, Findings(differing=(differ(0, 10),)))
    assert results.decide() == "split"
    results.forget(1)
    assert results.decide() == "equal"
    assert results.describe_compared() == "process 1: not compared"


def test_removed_members_do_not_count() -> None:
    results = make_results(0, 3)
    results.add_difference(differ(2, 10))
    results.receive(1, Findings(differing=(differ(2, 10),)))
    assert results.decide() == "split"
    results.follow_members((0, 1, 3))
    assert results.decide() == "equal"


def test_later_equality_ends_a_difference() -> None:
    results = make_results(0, 2)
    results.add_difference(differ(1, 10))
    results.add_equal(1, 10)
    assert results.decide() == "split"
    results.add_equal(1, 20)
    assert results.decide() == "equal"
