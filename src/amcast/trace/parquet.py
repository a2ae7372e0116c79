"""Rows to Parquet and back: types, encodings, and the refusal of files that are no tables of a trace.

Sorted integers shrink to a byte or two with delta encoding; columns with few distinct values get a dictionary;
everything is compressed with zstd. Nothing in a file depends on when or where it was written: equal rows, equal bytes.
"""

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.parquet as pq

from amcast.kernel.errors import UsageError
from amcast.trace.arrow_columns import to_arrow
from amcast.trace.columns import BATCH_ROWS, TABLES, Column, ColumnType
from amcast.trace.recorder import Row

TYPES: Final[dict[ColumnType, pa.DataType]] = {
    "string": pa.string(),
    "int": pa.int32(),
    "long": pa.int64(),
    "double": pa.float64(),
    "array<int>": pa.list_(pa.int32()),
    "array<long>": pa.list_(pa.int64()),
}
DICTIONARY_COLUMNS: Final = frozenset(
    {"run", "region", "host", "body", "name", "process", "group", "sender", "source", "target", "bytes"}
)
"""Columns with few distinct values, for which a dictionary pays."""
OMITTED_COLUMNS: Final = {"packets": frozenset({"sender", "destinations"})}
"""Optional columns that amcast's recorders omit: filling them would keep every message's destinations in memory."""


def list_written_columns(table: str) -> list[tuple[int, Column]]:
    """The columns that amcast's recorders write, each with its place in a recorder's row."""
    left_out = OMITTED_COLUMNS.get(table, frozenset())
    return [(place, column) for place, column in enumerate(TABLES[table][1:]) if column.name not in left_out]


class TableBuilder:
    """Converts rows to columns in small chunks, while the rows are still in the processor's cache.

    Strings and short lists have few distinct values: each value gets a code when it first occurs, and rows carry codes.
    """

    def __init__(self, table: str, run: str) -> None:
        self.rows = 0
        self._run = run
        self._columns = list_written_columns(table)
        self._chunks: list[list[pa.Array]] = [[] for _ in self._columns]
        self._codes: list[dict[Any, int]] = [{} for _ in self._columns]

    def add_rows(self, rows: Sequence[Row]) -> None:
        self.rows += len(rows)
        columns = list(zip(*rows, strict=True))
        for (place, column), chunks, codes in zip(self._columns, self._chunks, self._codes, strict=True):
            values = columns[place]
            if column.type in ("string", "array<int>"):
                chunks.append(_encode_values(values, codes))
            else:
                chunks.append(to_arrow(values, TYPES[column.type]))

    def table(self) -> pa.Table:
        """Returns all rows added since the last call."""
        arrays = [_repeat_value(self._run, self.rows)]
        for (_, column), chunks, codes in zip(self._columns, self._chunks, self._codes, strict=True):
            arrays.append(_join_chunks(column, chunks, codes))
            chunks.clear()
            codes.clear()
        self.rows = 0
        names = ["run", *(column.name for _, column in self._columns)]
        nullable = [False, *(column.nullable for _, column in self._columns)]
        fields = [pa.field(*field) for field in zip(names, (array.type for array in arrays), nullable, strict=True)]
        return pa.table(arrays, schema=pa.schema(fields))


def open_writer(table: str, file: Path, schema: pa.Schema) -> pq.ParquetWriter:
    """A writer with the encodings of this table. It omits Arrow's own schema, so that plain types are read back."""
    dictionary, delta = [], {}
    for column in TABLES[table]:
        path = f"{column.name}.list.element" if column.type.startswith("array") else column.name
        if column.name in DICTIONARY_COLUMNS or column.type == "array<int>":
            dictionary.append(path)
        elif column.type in ("long", "array<long>") and column.name in schema.names:
            delta[path] = "DELTA_BINARY_PACKED"
    return pq.ParquetWriter(
        file, schema, compression="zstd", use_dictionary=dictionary, column_encoding=delta, store_schema=False
    )


def _repeat_value(value: str, count: int) -> pa.Array:
    return pa.DictionaryArray.from_arrays(to_arrow([0] * count, pa.int32()), to_arrow([value], pa.string()))


def _encode_values(values: Sequence[Any], codes: dict[Any, int]) -> pa.Array:
    try:
        return to_arrow([codes[value] for value in values], pa.int32())
    except KeyError:
        return to_arrow([codes.setdefault(value, len(codes)) for value in values], pa.int32())


def _join_chunks(column: Column, chunks: list[pa.Array], codes: dict[Any, int]) -> pa.Array:
    kind = TYPES[column.type]
    if column.type not in ("string", "array<int>"):
        return pa.concat_arrays(chunks) if chunks else pa.nulls(0, kind)
    numbers = pa.concat_arrays(chunks) if chunks else pa.nulls(0, pa.int32())
    values = to_arrow(list(codes), kind)
    if column.type == "string" and None not in codes:  # Parquet takes no dictionary with a null
        return pa.DictionaryArray.from_arrays(numbers, values)
    return values.take(numbers)


# Reading files of any writer


def open_parquet(file: Path) -> pq.ParquetFile:
    """A Parquet file with a readable footer; UsageError, which names the file, otherwise."""
    try:
        return pq.ParquetFile(file)
    except (pa.ArrowException, OSError) as error:
        raise unreadable_file_error(file, error) from None


def unreadable_file_error(file: Path | str, error: Exception) -> UsageError:
    """The error for a file that Arrow cannot read."""
    return UsageError(f"{file}: {_first_line(error)}; expected a whole Parquet file")


def check_schema(table: str, file: Path | str, schema: pa.Schema, names: Collection[str] | None = None) -> list[str]:
    """The known columns of a file, or those of the named ones that it has; refuses missing columns and wrong types."""
    known = []
    for column in TABLES[table]:
        if names is not None and column.name not in names:
            continue
        if column.name not in schema.names:
            if not column.optional:
                raise UsageError(f"{file}: column {column.name} is missing; expected {column.type}")
            continue
        found = schema.field(column.name).type
        if not _is_compatible(found, column):
            raise UsageError(f"{file}: column {column.name} is {found}; expected {column.type}")
        known.append(column.name)
    return known


def to_canonical(
    table: str, file: Path | str, data: pa.Table, names: Collection[str] | None = None, first_row: int = 0
) -> pa.Table:
    """The known columns, or the named ones, in the trace's types and order; an absent optional column becomes null.

    Refuses nulls where none may be, and times and positions beyond their bounds; `first_row` is the number of the first
    of these rows in the file.
    """
    arrays, wanted = [], [column for column in TABLES[table] if names is None or column.name in names]
    for column in wanted:
        if column.name in data.schema.names:
            arrays.append(_to_canonical_column(column, file, data.column(column.name), first_row))
        else:
            arrays.append(pa.nulls(len(data), TYPES[column.type]))
    return pa.table(arrays, names=[column.name for column in wanted])


def _to_canonical_column(column: Column, file: Path | str, array: pa.ChunkedArray, first_row: int) -> pa.ChunkedArray:
    import pyarrow.compute as pc

    where = f"{file}: column {column.name}"
    if pa.types.is_dictionary(array.type):
        array = array.cast(array.type.value_type)  # only now are nulls inside the dictionary visible
    if array.null_count and not column.nullable:
        row = first_row + pc.index(pc.is_null(array), True).as_py()
        raise UsageError(f"{where} is null in row {row} ({array.null_count} nulls); expected {column.type}, never null")
    if array.type != TYPES[column.type]:
        try:
            array = _to_plain_lists(array).cast(TYPES[column.type])
        except pa.ArrowInvalid as error:
            raise UsageError(f"{where}: {_first_line(error)}; expected {column.type}") from None
    if column.type.startswith("array") and pc.list_flatten(array).null_count:
        row = first_row + next(at for at, values in enumerate(array.to_pylist()) if values and None in values)
        raise UsageError(f"{where} has a null inside its list in row {row}; expected {column.type}")
    if column.bounds is not None and len(array):
        _refuse_out_of_bounds(where, array, column.bounds, first_row)
    return array


def _to_plain_lists(array: pa.ChunkedArray) -> pa.ChunkedArray:
    """Views of lists as lists, whose offsets Arrow's own cast makes one too short; other columns as they are."""
    import pyarrow.compute as pc

    if not (pa.types.is_list_view(array.type) or pa.types.is_large_list_view(array.type)):
        return array
    kind, chunks = pa.large_list(array.type.value_type), []
    for chunk in array.chunks:
        lengths = pc.fill_null(pc.list_value_length(chunk), 0).cast(pa.int64())
        offsets = pa.concat_arrays([pa.array([0], pa.int64()), pc.cumulative_sum(lengths)])
        mask = chunk.is_null() if chunk.null_count else None
        chunks.append(pa.LargeListArray.from_arrays(offsets, pc.list_flatten(chunk), kind, mask=mask))
    return pa.chunked_array(chunks, kind)


def _refuse_out_of_bounds(where: str, array: pa.ChunkedArray, bounds: tuple[int, int], first_row: int) -> None:
    import pyarrow.compute as pc

    found = pc.min_max(array).as_py()
    for value in (found["min"], found["max"]):
        if value is not None and not bounds[0] <= value <= bounds[1]:
            row = first_row + pc.index(array, pa.scalar(value, array.type)).as_py()
            raise UsageError(f"{where} is {value} in row {row}; expected {bounds[0]} to {bounds[1]}")


def iterate_canonical(
    table: str,
    path: Path | str,
    file: pq.ParquetFile,
    names: Collection[str] | None = None,
    row_group: int | None = None,
    rows: int = BATCH_ROWS,
) -> Iterator[pa.Table]:
    """The rows of a file, or of one of its row groups, in canonical form, a bounded number at a time.

    Every reader of traces, plain or in Spark's tasks, reads through this function or `to_canonical`: all of them accept
    and refuse the same files.
    """
    columns = check_schema(table, path, file.schema_arrow, names)
    groups = range(file.metadata.num_row_groups) if row_group is None else [row_group]
    first = sum(file.metadata.row_group(number).num_rows for number in range(row_group or 0))
    assert columns, f"no column of {names}"
    try:
        for batch in file.iter_batches(rows, row_groups=groups, columns=columns, use_threads=False):
            yield to_canonical(table, path, pa.Table.from_batches([batch]), names, first)
            first += batch.num_rows
    except (pa.ArrowException, OSError) as error:
        raise unreadable_file_error(path, error) from None


def _is_compatible(found: pa.DataType, column: Column) -> bool:
    types = pa.types
    if types.is_null(found):
        return True  # an empty table of many writers; a row in it is refused as null
    if types.is_dictionary(found):
        found = found.value_type
    match column.type:
        case "string":
            return bool(types.is_string(found) or types.is_large_string(found) or types.is_string_view(found))
        case "int" | "long":
            return bool(types.is_integer(found))
        case "double":
            return bool(types.is_floating(found))
        case _:
            listed = types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found)
            listed = listed or types.is_list_view(found) or types.is_large_list_view(found)
            return bool(listed and (types.is_integer(found.value_type) or types.is_null(found.value_type)))


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__
