"""How the processes of one cluster share a run folder: each is a writer of its own, and goes on where it stopped."""

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from amcast.kernel.ids import ProcessId
from amcast.live.config.cluster import Cluster
from amcast.trace.meta import Meta
from amcast.trace.run_folder import FolderRecorder


def open_recorder(cluster: Cluster, writer: str) -> FolderRecorder:
    """One writer among others in the cluster's run folder; whoever started the cluster writes run.json."""
    # The first array makes Arrow import pandas, if it is there: a second that no message should wait for.
    pa.array([0])
    return FolderRecorder(
        cluster.trace_folder,
        Meta(run=cluster.run),
        packets=cluster.trace_mode == "full",
        every=cluster.trace_every,
        writer=writer,
        joins=True,
    )


def next_unrecorded_position(cluster: Cluster, me: ProcessId) -> int:
    """The first position that an earlier incarnation of this process did not get to its trace."""
    last = -1
    for file in (cluster.trace_folder / "deliveries").glob(f"process-{me:05d}-*.parquet"):
        column = pq.read_table(file, columns=["position"]).column("position")
        last = max(last, pc.max(column).as_py() or 0) if len(column) else last
    return last + 1
