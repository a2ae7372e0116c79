"""Rows that were recorded again: found by their order, and dropped."""

import numpy as np
import pyarrow as pa

from amcast.pipeline.rows.uniqueness import Ends, are_positions_ascending, drop_repeated, extend_ends
from tests.mutants.planted import healthy
from tests.pipeline.small_runs import load_tables


def test_earliest_of_repeated_rows_stays() -> None:
    data = load_tables(healthy())[1]["multicasts"]
    at = data.schema.get_field_index("at_ns")
    earlier = data.slice(2, 2).set_column(at, "at_ns", pa.array([-3, 1000], pa.int64()))
    found = drop_repeated("multicasts", pa.concat_tables([data, earlier]))
    assert found.column("message").to_pylist() == [1, 2, 4, 5, 6, 7, 3]
    assert found.column("at_ns").to_pylist() == [0, 10, 30, 40, 50, 60, -3]
    assert drop_repeated("multicasts", data) is data
    assert drop_repeated("packets", data) is data
    assert drop_repeated("multicasts", data.drop_columns(["run"])).num_rows == len(data)


def read_ends(*rows: tuple[int, int]) -> Ends | None:
    """What rows of (process, position) show."""
    ends: Ends = {}
    process, position = np.array(rows, np.int64).T
    return ends if extend_ends(ends, process, position) else None


def test_order_proves_that_no_row_is_repeated() -> None:
    first = read_ends((1, 0), (2, 0), (1, 1), (2, 5))
    assert first == {1: (0, 1), 2: (0, 5)}
    assert are_positions_ascending([first, read_ends((2, 6), (1, 3))])
    assert read_ends((1, 0), (2, 0), (1, 0)) is None
    assert not are_positions_ascending([first, read_ends((2, 5))])
    assert not are_positions_ascending([first, None])
