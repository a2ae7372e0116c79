"""Arrow columns from Python values, without pandas.

`pa.array` tests whether its argument comes from pandas, and imports pandas for this if it is installed: half a second
of CPU time. A node that writes a trace would send nothing for that long, at its first few thousand rows, and be
suspected of a crash. This module fills Arrow's buffers itself.
"""

from array import array
from collections.abc import Sequence
from itertools import accumulate, chain
from typing import Any, Final

import pyarrow as pa

_CODES: Final = {pa.int32(): "i", pa.int64(): "q", pa.float64(): "d"}
"""Arrow type -> type code of Python's `array`."""


def to_arrow(values: Sequence[Any], kind: pa.DataType) -> pa.Array:
    """One column of numbers, strings or lists of numbers; None is null."""
    code = _CODES.get(kind)
    if code is not None:
        try:
            return _build_array(len(values), kind, None, array(code, values))
        except TypeError:  # a null; most columns have none, and checking first costs more than trying
            pass
    nulls = _build_validity_bitmap(values)
    if nulls is not None and not any(nulls):
        return pa.nulls(len(values), kind)
    if code is not None:
        return _build_array(len(values), kind, nulls, array(code, [0 if value is None else value for value in values]))
    if pa.types.is_string(kind):
        texts = [b"" if value is None else value.encode() for value in values]
        return _build_array(len(values), kind, nulls, _build_offsets(texts), b"".join(texts))
    lists = [() if value is None else value for value in values]
    inside = to_arrow(list(chain.from_iterable(lists)), kind.value_type)
    return _build_array(len(values), kind, nulls, _build_offsets(lists), inside=[inside])


def _build_array(
    count: int, kind: pa.DataType, nulls: bytes | None, *data: Any, inside: list[pa.Array] | None = None
) -> pa.Array:
    buffers = [None if nulls is None else pa.py_buffer(nulls), *map(pa.py_buffer, data)]
    return pa.Array.from_buffers(kind, count, buffers, children=inside)


def _build_validity_bitmap(values: Sequence[Any]) -> bytes | None:
    """One bit per value, the first one lowest: 1 if the value is not null. None if no value is null."""
    valid = "".join(["0" if value is None else "1" for value in reversed(values)])
    return int(valid, 2).to_bytes((len(valid) + 7) // 8, "little") if "0" in valid else None


def _build_offsets(parts: Sequence[Sequence[Any]]) -> "array[int]":
    return array("i", accumulate(map(len, parts), initial=0))
