"""A run measured in buckets by many calls has the tables of the same run measured whole."""

from pathlib import Path
from typing import Any

import pytest

from amcast.kernel.errors import UsageError
from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.measure.large_run import LargeRun
from amcast.pipeline.measure.small_run import MeasureSetting, measure_folders, read_members
from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.footers import prove_tables, read_footers
from tests.pipeline.check.trace_generator import make_trace

Tables = dict[str, list[dict[str, Any]]]


def measure_both(folder: Path, setting: MeasureSetting) -> tuple[Tables, Tables]:
    """The tables of the whole run, and those of its buckets, of a dozen rows or so."""
    source = read_trace_folder(str(folder))
    runs = [meta.run for meta in source.metas]
    footers = {table: tuple(read_footers(table, files, runs)) for table, files in source.tables.items()}
    whole = measure_folders([(source, footers)], setting)
    proven, members = prove_tables(run_sequentially, footers, runs), read_members(source, runs[0])
    (folder / "scratch").mkdir()
    large = LargeRun(run_sequentially, str(folder / "scratch"), proven.footers, members, setting, task_rows=12)
    return whole, large.measure(runs[0])


def sort_rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return sorted(rows, key=lambda row: repr({name: v for name, v in row.items() if not isinstance(v, float)}))


@pytest.mark.parametrize("setting", [MeasureSetting(0.1, None, True), MeasureSetting(0.0, [3, 0, 6], False)])
def test_buckets_add_up_to_the_whole_run(setting: MeasureSetting, tmp_path: Path) -> None:
    """Of generated traces: well formed, damaged, absurd, with repeated rows and lost ones."""
    compared = 0
    for seed in range(14):
        make_trace(seed).write(tmp_path / str(seed))
        try:
            whole, large = measure_both(tmp_path / str(seed), setting)
        except UsageError:
            continue
        compared += 1
        for table in whole.keys() | large.keys():
            one, other = sort_rows(whole.get(table, [])), sort_rows(large.get(table, []))
            assert len(one) == len(other), (seed, table)
            for a, b in zip(one, other, strict=True):
                assert a == {name: pytest.approx(v) if isinstance(v, float) else v for name, v in b.items()}, seed
    assert compared > 7
