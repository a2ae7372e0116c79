"""The trace's tables in Spark: schemas made from `trace/columns`, never inferred, and frames over files."""

from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812
from pyspark.sql import types as T  # noqa: N812

from amcast.pipeline.rows.files import TraceFolder
from amcast.trace.columns import TABLES, Column, ColumnType

TYPES: Final[dict[ColumnType, T.DataType]] = {
    "string": T.StringType(),
    "int": T.IntegerType(),
    "long": T.LongType(),
    "double": T.DoubleType(),
    "array<int>": T.ArrayType(T.IntegerType(), containsNull=False),
    "array<long>": T.ArrayType(T.LongType(), containsNull=False),
}


def build_schema(table: str) -> T.StructType:
    """A table's schema with its optional columns: where a file lacks one, it reads as null."""
    return T.StructType([_build_field(column) for column in TABLES[table]])


def _build_field(column: Column) -> T.StructField:
    return T.StructField(column.name, TYPES[column.type], column.nullable or column.optional)


SCHEMAS: Final = {table: build_schema(table) for table in TABLES}


def read_frame(spark: SparkSession, sources: list[TraceFolder], table: str) -> DataFrame:
    """One table over all the given folders; empty when no folder has it."""
    files = [file for source in sources for file in source.tables.get(table, ())]
    if not files:
        return spark.createDataFrame([], SCHEMAS[table])
    return spark.read.schema(SCHEMAS[table]).parquet(*files).select(*[F.col(c.name) for c in TABLES[table]])
