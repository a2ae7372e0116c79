"""The recorder of a node: it continues behind earlier incarnations, and starts without pandas."""

import subprocess
import sys
from pathlib import Path

from tests.live.secure_cluster import plain

RECORDS_TWICE = """
import sys
from amcast.kernel.message import Message
from amcast.live.config.cluster import read_cluster
from amcast.live.server.trace_recorder import next_unrecorded_position, open_recorder

cluster = read_cluster(sys.argv[1])
for first in (0, 3):
    with open_recorder(cluster, "process-00000") as recorder:
        assert next_unrecorded_position(cluster, 0) == first
        for position in range(first, first + 3):
            recorder.record_delivery(0, 0, position, Message(position, 9, (0,)), position)
assert next_unrecorded_position(cluster, 0) == 6
assert next_unrecorded_position(cluster, 1) == 0
assert "pandas" not in sys.modules
"""


def test_recorder_continues_after_a_restart_and_does_not_import_pandas(tmp_path: Path) -> None:
    """The import would double the time that a node takes to start."""
    cluster = plain(tmp_path, trace={"mode": "deliveries", "folder": "run"})
    done = subprocess.run([sys.executable, "-c", RECORDS_TWICE, str(cluster.file)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
