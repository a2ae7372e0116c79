"""Columns that are made without pandas are those that Arrow would make."""

import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from amcast.trace.arrow_columns import to_arrow

INT, LONG = st.integers(-(2**31), 2**31 - 1), st.integers(-(2**63), 2**63 - 1)
KINDS: dict[pa.DataType, st.SearchStrategy[Any]] = {
    pa.int32(): INT,
    pa.int64(): LONG,
    pa.float64(): st.floats(allow_nan=False),
    pa.string(): st.text(max_size=5),
    pa.list_(pa.int32()): st.lists(INT, max_size=4).map(tuple),
    pa.list_(pa.int64()): st.lists(LONG, max_size=4).map(tuple),
}
columns = st.sampled_from(list(KINDS)).flatmap(
    lambda kind: st.tuples(st.just(kind), st.lists(st.none() | KINDS[kind], max_size=20))
)


@settings(deadline=None)  # of the first one, in which Arrow loads pandas
@given(columns)
def test_columns_equal_those_of_pyarrow(column: tuple[pa.DataType, list[Any]]) -> None:
    kind, values = column
    made = to_arrow(tuple(values), kind)
    made.validate(full=True)
    assert made.equals(pa.array(values, kind))
    assert made.null_count == values.count(None)


@pytest.mark.parametrize(("values", "error"), [((1, 2**31), OverflowError), ((1, None, "2"), TypeError)])
def test_values_out_of_range_are_refused(values: tuple[Any, ...], error: type[Exception]) -> None:
    with pytest.raises(error):
        to_arrow(values, pa.int32())


RECORDS = """
import sys
from amcast.kernel.message import Message
from amcast.trace.run_folder import FolderRecorder
from amcast.trace.meta import Meta
with FolderRecorder(sys.argv[1], Meta(run="r"), rows_per_group=2) as recorder:
    for i in range(5):
        message = Message(i, 8, (0, 1))
        recorder.record_multicast(message, i)
        recorder.record_delivery(0, 0, i, message, i, None, None, i)
        recorder.record_packet((i, i + 1) if i else None, "Ack", 0, 1, 20, i, None)
        recorder.record_note(0, i, "waited")
    recorder.record_process(0, 0, "eu")
assert "pandas" not in sys.modules
"""


def test_recorder_does_not_import_pandas(tmp_path: Path) -> None:
    """The import takes half a second, in which a node sends nothing and would be suspected of a crash."""
    done = subprocess.run([sys.executable, "-c", RECORDS, str(tmp_path / "run")], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "run" / "run.json").exists()
