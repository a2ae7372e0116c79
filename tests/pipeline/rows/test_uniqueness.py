"""Rows that were recorded again: found by their order, and dropped."""

from pathlib import Path

import pyarrow as pa
import pytest

from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.footers import read_footers
from amcast.pipeline.rows.uniqueness import drop_repeated, find_repeated_tables
from tests.mutants.planted import Trace, healthy
from tests.pipeline.small_runs import load_tables, write


def test_earliest_of_repeated_rows_stays() -> None:
    data = load_tables(healthy())[1]["multicasts"]
    at = data.schema.get_field_index("at_ns")
    earlier = data.slice(2, 2).set_column(at, "at_ns", pa.array([-3, 1000], pa.int64()))
    found = drop_repeated("multicasts", pa.concat_tables([data, earlier]))
    assert found.column("message").to_pylist() == [1, 2, 4, 5, 6, 7, 3]
    assert found.column("at_ns").to_pylist() == [0, 10, 30, 40, 50, 60, -3]
    assert drop_repeated("multicasts", data) is data
    assert drop_repeated("packets", data) is data


def find(folder: Path, trace: Trace) -> list[str]:
    source = read_trace_folder(str(write(folder, trace, rows_per_group=3, rows_per_file=7)))
    footers = {table: tuple(read_footers(table, files, [folder.name])) for table, files in source.tables.items()}
    return find_repeated_tables(run_sequentially, footers)


def test_order_proves_that_no_row_is_repeated(tmp_path: Path) -> None:
    assert find(tmp_path / "healthy", healthy()) == []
    trace = healthy()
    trace.sequences[2].append(trace.sequences[2][1])
    assert find(tmp_path / "again", trace) == ["deliveries"]


@pytest.mark.parametrize("order", [(3, 1, 2), (1, 3, 2)])
def test_ids_out_of_order_prove_nothing(tmp_path: Path, order: tuple[int, ...]) -> None:
    trace = Trace({0: [0]}, [9])
    for message in order:
        trace.multicast(message, 0, sender=9)
    assert find(tmp_path / "run", trace) == ["multicasts"]
