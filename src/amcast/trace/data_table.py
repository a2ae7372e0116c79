"""A small table in memory, for the data frames of analysts."""

from importlib import import_module
from typing import Any

import pyarrow as pa

from amcast.kernel.errors import UsageError


class DataTable:
    """One table in memory, in the type that a program wants."""

    def __init__(self, name: str, table: pa.Table) -> None:
        self.name = name
        self._table = table

    @property
    def rows(self) -> int:
        """The number of rows."""
        return int(self._table.num_rows)

    @property
    def columns(self) -> list[str]:
        """The names of the columns."""
        return list(self._table.column_names)

    def to_rows(self) -> list[dict[str, Any]]:
        """The rows as plain data."""
        rows: list[dict[str, Any]] = self._table.to_pylist()
        return rows

    def to_arrow(self) -> pa.Table:
        """The table."""
        return self._table

    def to_pandas(self) -> Any:
        """A pandas DataFrame."""
        load_package("pandas")
        return self._table.to_pandas()

    def to_polars(self) -> Any:
        """A Polars DataFrame."""
        return load_package("polars").from_arrow(self._table)

    def to_duckdb(self) -> Any:
        """A DuckDB relation."""
        return load_package("duckdb").from_arrow(self._table)

    def to_spark(self, spark: Any) -> Any:
        """A Spark DataFrame."""
        return spark.createDataFrame(self._table)


def load_package(name: str) -> Any:
    """A package that is needed for one conversion alone."""
    try:
        return import_module(name)
    except ModuleNotFoundError:
        raise UsageError(f"{name} is not installed; expected it for this conversion: pip install {name}") from None
