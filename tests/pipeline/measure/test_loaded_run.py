"""`amcast.load`: tables and measures of runs for analysts."""

from importlib.util import find_spec
from pathlib import Path
from textwrap import dedent

import pytest
from pyspark.sql import SparkSession

import amcast
from amcast.pipeline.measure.job import measure
from amcast.trace.columns import TABLES
from tests import ROOT
from tests.mutants.planted import healthy
from tests.pipeline.small_runs import write


def test_tables_are_loaded_when_asked_for(spark: SparkSession, tmp_path: Path) -> None:
    write(tmp_path / "runs" / "one", healthy())
    write(tmp_path / "runs" / "two", healthy())
    runs = amcast.load(str(tmp_path / "runs"))
    assert [meta.run for meta in runs.metas] == ["one", "two"]
    table = runs["deliveries"]
    assert table.rows == len(table.to_arrow()) == len(table.to_pandas()) == table.to_spark(spark).count() > 0
    assert table.to_arrow().column_names == [column.name for column in TABLES["deliveries"]]
    assert set(runs) <= set(TABLES)
    assert runs["answers"].to_arrow().num_rows == 0
    assert {row["run"] for row in runs.measures["spans"].to_arrow().to_pylist()} == {"one", "two"}
    with pytest.raises(amcast.UsageError, match="table 'delivery'; expected one of processes, multicasts"):
        runs["delivery"]
    with pytest.raises(amcast.UsageError, match="measure 'speed'; expected one of spans, latency"):
        runs.measures["speed"]


def test_measures_in_the_folder_are_those_that_are_computed(spark: SparkSession, tmp_path: Path) -> None:
    folder = write(tmp_path / "run", healthy())
    names = ("spans", "latency", "packets", "fairness")
    computed = {name: amcast.load(str(folder)).measures[name].to_arrow().to_pylist() for name in names}
    measure(spark, str(folder), folder / "measures")
    written = amcast.load(str(folder)).measures
    for name, rows in computed.items():
        assert sorted(map(repr, written[name].to_arrow().to_pylist())) == sorted(map(repr, rows)), name
    assert len(written["latency"].to_pandas()) == written["latency"].to_spark(spark).count()


def test_documented_lines_run(spark: SparkSession, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Every line of the page about notebooks; where Polars or DuckDB is missing, its line says what to install."""
    write(tmp_path / "runs" / "latest", healthy())
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs" / "reports.md").read_text().partition("reads nothing before it is asked for:\n\n")[2]
    block = [line for line in page.partition("\n\n`")[0].splitlines() if line]
    lines = dedent("\n".join(block)).splitlines()
    assert len(lines) == 9
    names: dict[str, object] = {"spark": spark}
    for line in lines:
        missing = [name for name in ("polars", "duckdb") if f"to_{name}()" in line and find_spec(name) is None]
        if missing:
            with pytest.raises(amcast.UsageError, match=f"pip install {missing[0]}"):
                exec(line, names)
        else:
            exec(line, names)
