"""Spark's schemas are pinned to the trace's columns, and to what our recorders write."""

from pathlib import Path

from pyspark.sql import SparkSession
from pyspark.sql import types as T  # noqa: N812

from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.schemas import SCHEMAS, read_frame
from amcast.trace.columns import TABLES
from tests.mutants.planted import healthy
from tests.pipeline.small_runs import write

SPARK = {
    "string": T.StringType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "double": T.DoubleType(),
    "array<int>": T.ArrayType(T.IntegerType(), False),
    "array<long>": T.ArrayType(T.LongType(), False),
}


def test_schemas_equal_trace_columns() -> None:
    assert set(SCHEMAS) == set(TABLES)
    for table, columns in TABLES.items():
        wanted = [(column.name, SPARK[column.type], column.nullable or column.optional) for column in columns]
        assert [(field.name, field.dataType, field.nullable) for field in SCHEMAS[table]] == wanted


def test_recorded_tables_are_read_back(spark: SparkSession, tmp_path: Path) -> None:
    trace = healthy()
    found = read_trace_folder(str(write(tmp_path / "run", trace)))
    recorder = trace.recorder()
    for table in TABLES:
        rows = read_frame(spark, [found], table)
        assert rows.columns == [column.name for column in TABLES[table]]
        assert rows.count() == len(getattr(recorder, table))
    row = read_frame(spark, [found], "multicasts").where("message = 6").first()
    assert row is not None
    assert row.asDict() == {
        "run": "run", "message": 6, "sender": 9, "destinations": [0, 1, 2], "at_ns": 50, "bytes": 0,
        "session": 9, "sequence": 2,
    }  # fmt: skip
    assert read_frame(spark, [found], "packets").where("sender is not null").count() == 0, (
        "a column that is not there is null"
    )
