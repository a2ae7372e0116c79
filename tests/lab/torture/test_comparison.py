"""The second judge of a torture: every contradiction between clients, hosted programs and observers is found."""

from amcast.lab.torture.comparison import compare_acknowledged, compare_ends, compare_ledgers, compare_observed
from amcast.lab.torture.ledger import EMPTY, INSTALLED, Row, chain_delivery
from amcast.live.client_batch import Delivery
from amcast.live.torture.session import Acknowledgement, Observation


def make_rows(*payloads: str, first: int = 0, chain: bytes = EMPTY) -> list[Row]:
    """The ledger of a replica that executes these payloads in this order, one message each."""
    rows = []
    for position, payload in enumerate(payloads, first):
        message = 100 + int(payload[1:])
        chain = chain_delivery(chain, Delivery(message, 0, position, 7, ("a",), payload.encode()))
        rows.append(Row(position, 0, message, chain.hex(), payload))
    return rows


def test_equal_ledgers_and_repeated_rows_agree() -> None:
    rows = make_rows("m1", "m2", "m3")
    executed, sentences = compare_ledgers(0, {"a/1": rows, "a/2": [*rows[:2], *rows[1:]]})
    assert sentences == []
    assert [row.payload for row in executed.values()] == ["m1", "m2", "m3"]
    assert compare_ends(0, {"a/1": rows, "a/2": rows}) == []


def test_swapped_deliveries_of_one_replica_are_found() -> None:
    _, sentences = compare_ledgers(0, {"a/1": make_rows("m1", "m2", "m3"), "a/2": make_rows("m2", "m1", "m3")})
    assert len(sentences) == 1
    assert "a/2 executed 'm2' at position 0.0" in sentences[0]


def test_replica_that_differs_only_in_earlier_history_is_found_by_its_hash() -> None:
    known = make_rows("m1", "m2", "m3")
    late = make_rows("m2", "m3", first=1, chain=bytes(15) + b"x")
    _, sentences = compare_ledgers(0, {"a/1": known, "a/2": late})
    assert len(sentences) == 1


def test_installed_state_with_another_hash_is_found() -> None:
    rows = make_rows("m1", "m2", "m3")
    sound = Row(2, INSTALLED, 0, rows[1].chain, "")
    assert compare_ledgers(0, {"a/1": rows, "a/2": [sound, rows[2]]})[1] == []
    wrong = Row(2, INSTALLED, 0, rows[0].chain, "")
    assert len(compare_ledgers(0, {"a/1": rows, "a/2": [wrong]})[1]) == 1


def test_replica_that_stays_behind_is_found() -> None:
    rows = make_rows("m1", "m2", "m3")
    assert compare_ends(0, {"a/1": rows, "a/2": rows[:2]}) == ["group 0: a/2 executed 2 positions; others executed 3"]
    installed = Row(3, INSTALLED, 0, rows[2].chain, "")
    assert compare_ends(0, {"a/1": rows, "a/2": [*rows[:1], installed]}) == []


def test_lost_duplicated_and_misplaced_acknowledged_payloads_are_found() -> None:
    rows = {(row.position, row.place): row for row in make_rows("m1", "m2", "m2")}
    executed = {0: rows, 1: {}}
    assert compare_acknowledged([Acknowledgement("m1", 101, (0,))], executed) == []
    (lost,) = compare_acknowledged([Acknowledgement("m1", 101, (0, 1))], executed)
    assert "group 1 executed it never" in lost
    (twice,) = compare_acknowledged([Acknowledgement("m2", 102, (0,))], executed)
    assert "group 0 executed it 2 times" in twice
    (stray,) = compare_acknowledged([Acknowledgement("m1", 101, ())], executed)
    assert "group 0 executed it 1 times" in stray
    (renamed,) = compare_acknowledged([Acknowledgement("m1", 999, (0,))], executed)
    assert "in message 101" in renamed


def test_observer_that_reads_other_deliveries_reorders_or_skips_is_found() -> None:
    rows = {(row.position, row.place): row for row in make_rows("m1", "m2", "m3")}
    read = [Observation(row.position, row.place, row.message, row.payload) for row in rows.values()]
    assert compare_observed(0, read, rows, 0) == []
    assert "executed was 'm2'" in compare_observed(0, [read[0], read[1]._replace(payload="m9")], rows, 0)[0]
    assert "after 1.0" in compare_observed(0, [read[1], read[0]], rows, 0)[0]
    assert compare_observed(0, [read[0], read[2]], rows, 0) == ["group 0: an observer skipped position 1.0 silently"]
    assert compare_observed(0, [read[0], read[2]], rows, 1) == []
