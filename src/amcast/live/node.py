"""A node of a cluster: one replica as an operating-system process, from its configuration until SIGTERM.

It says `ready` on its standard output when it listens and has read its log, and `stopped` when it has ended well.
"""

import asyncio
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amcast.kernel.effects import Deliver
from amcast.kernel.errors import WrongUse
from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Spec
from amcast.live.config import Cluster
from amcast.live.host import Host
from amcast.live.steps import StepLog
from amcast.live.store import opened_store

if TYPE_CHECKING:
    from amcast.trace.folder import FolderRecorder

READY = "ready"
STOPPED = "stopped"
GC_THRESHOLD = 50_000
"""Objects that live long are many; looking through them often costs a tenth of the CPU."""


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where there is one."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def built(
    cluster: Cluster,
    me: ProcessId,
    spec: Spec,
    on_deliver: Callable[[Deliver], None] | None = None,
    steps: Path | None = None,
    handed: int = 0,
) -> "tuple[Host, FolderRecorder | None]":
    """A replica as its configuration says, not started; and its recorder, to be closed at the end."""
    spec.check(cluster.topology)
    process = spec.process(me, cluster.topology, spec.configure(cluster.options))
    store = opened_store(cluster.data / f"process-{me:05d}", cluster.durability)
    recorder, recorded = joined(cluster, me) if cluster.trace != "off" else (None, 0)
    host = Host(
        process,
        spec,
        cluster=cluster.name,
        limits=cluster.limits,
        store=store,
        recorder=recorder,
        steps=None if steps is None else StepLog(steps / f"{me}-{store.life}.steps", spec.name, me, store.life),
        on_deliver=on_deliver,
        before_forgetting=None if recorder is None else recorder.flush,
        handed=handed,
        recorded=recorded,
    )
    return host, recorder


def joined(cluster: Cluster, me: ProcessId) -> "tuple[FolderRecorder, int]":
    """A recorder among others in the cluster's run folder, and the first position that it does not have yet."""
    # Arrow takes its time to load; a node that records nothing starts without it.
    from amcast.live import tracing

    return tracing.recorder_for(cluster, f"process-{me:05d}"), tracing.recorded_before(cluster, me)


async def serve(cluster: Cluster, node: str, spec: Spec, steps: Path | None = None) -> None:
    """Be this node until SIGTERM or SIGINT, or until something fails."""
    me = cluster.node(node)
    host, recorder = built(cluster, me, spec, steps=steps)
    loop = asyncio.get_running_loop()
    asked = asyncio.Event()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, asked.set)
    try:
        await host.listen(cluster.addresses[me])
        host.start(cluster.addresses)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 50)
        print(READY, flush=True)
        host.ended.add_done_callback(lambda _: asked.set())
        await asked.wait()
        failed = host.ended.exception() if host.ended.done() else None
    finally:
        await host.stop()
        if recorder is not None:
            recorder.close()
    if failed is not None:
        raise failed
    print(STOPPED, flush=True)


def main(cluster: Cluster, node: str, spec: Spec, steps: Path | None = None) -> int:
    """For the command line: exit code 0 after SIGTERM, 64 for a wrong configuration, 1 when the replica failed."""
    logging.basicConfig(level=logging.INFO, format=f"%(asctime)s {node} %(levelname)s %(message)s", stream=sys.stderr)
    try:
        run_loop(serve(cluster, node, spec, steps))
    except WrongUse as error:
        print(f"{node}: {error}", file=sys.stderr)
        return 64
    except Exception as error:
        print(f"{node}: stopped: {error}", file=sys.stderr)
        return 1
    return 0
