"""Trace of a live cluster: each process writes files of its own into one run folder, and continues after a restart."""

import pyarrow.parquet as pq

from amcast.kernel.ids import ProcessId
from amcast.live.config.cluster import Cluster
from amcast.trace.meta import Meta
from amcast.trace.run_folder import FolderRecorder


def open_recorder(cluster: Cluster, writer: str) -> FolderRecorder:
    """Opens the recorder of one writer in the cluster's run folder; the process that started the cluster writes
    run.json."""
    return FolderRecorder(
        cluster.trace_folder,
        Meta(run=cluster.run),
        packets=cluster.trace_mode == "full",
        every=cluster.trace_every,
        writer=writer,
        joins=True,
    )


def next_unrecorded_position(cluster: Cluster, me: ProcessId) -> int:
    """The first position that no earlier incarnation of this process recorded."""
    last = -1
    for file in (cluster.trace_folder / "deliveries").glob(f"process-{me:05d}-*.parquet"):
        # pq.read_table would import pandas, if installed: half of the time that a node takes to start.
        opened = pq.ParquetFile(file)
        for batch in opened.iter_batches(columns=["position"]):
            last = max((last, *batch.column(0).to_pylist()))
    return last + 1
