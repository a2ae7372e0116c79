"""A run copied into few files: the same rows, laid out for checks."""

import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amcast.check import judge
from amcast.kernel.errors import UsageError
from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.footers import prove_row_groups, read_footers
from amcast.pipeline.rows.run_copy import copy_run
from amcast.pipeline.rows.sequences import are_separated
from amcast.trace.run import read_run
from tests.pipeline.small_runs import random_run, write


def list_rows(folder: Path, table: str) -> list[str]:
    """The rows of a table in any order; an absent column is as good as nulls."""
    files = sorted((folder / table).glob("*.parquet"))
    rows = [row for file in files for row in pq.read_table(file).to_pylist()]
    return sorted(repr({name: value for name, value in row.items() if value is not None}) for row in rows)


@pytest.mark.parametrize("rows_per_file", [9, 1000])
def test_copy_has_the_same_rows_in_fewer_files(tmp_path: Path, rows_per_file: int) -> None:
    trace = random_run(2011)
    write(tmp_path / "run", trace, rows_per_group=2, rows_per_file=2)
    copied = copy_run(str(tmp_path / "run"), tmp_path / "copy", rows_per_file)
    assert (tmp_path / "copy" / "run.json").read_bytes() == (tmp_path / "run" / "run.json").read_bytes()
    for table in copied:
        assert list_rows(tmp_path / "copy", table.table) == list_rows(tmp_path / "run", table.table)
        assert table.files_before == len(list((tmp_path / "run" / table.table).iterdir()))
        assert table.files == len(list((tmp_path / "copy" / table.table).iterdir())) <= max(1, table.files_before)
    assert judge(read_run(tmp_path / "copy")).as_dict() == judge(read_run(tmp_path / "run")).as_dict()
    source = read_trace_folder(str(tmp_path / "copy"))
    row_groups = read_footers("deliveries", source.tables["deliveries"], ["run"])
    assert are_separated(prove_row_groups("deliveries", row_groups, ["run"]).row_groups)


def test_copy_refuses_what_checks_refuse(tmp_path: Path) -> None:
    write(tmp_path / "run", random_run(2011))
    with pytest.raises(UsageError, match="expected a new one"):
        copy_run(str(tmp_path / "run"), tmp_path / "run")
    (file,) = (tmp_path / "run" / "notes").glob("*.parquet")
    other = pq.read_table(file).slice(0, 0)
    row = {"run": "another", "process": 0, "at_ns": 0, "name": "x", "message": None, "value": None}
    pq.write_table(pa.Table.from_pylist([row], other.schema), file)
    with pytest.raises(UsageError, match="rows of run 'another'"):
        copy_run(str(tmp_path / "run"), tmp_path / "copy")
    assert not (tmp_path / "copy" / "run.json").exists()
    shutil.rmtree(tmp_path / "run" / "multicasts")
    with pytest.raises(UsageError, match="table multicasts is missing"):
        copy_run(str(tmp_path / "run"), tmp_path / "another")
