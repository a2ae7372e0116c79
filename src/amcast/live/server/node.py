"""A node of a cluster: one replica as an operating-system process, from its configuration until SIGTERM.

SIGTERM and SIGINT end it in good order (`live/server/leaving.py`); so does its removal from its group
(`live/membership/topology_follower.py`). A failure ends it with exit code 1. SIGHUP makes it read its certificates
again.

It says `ready` on its standard output when it listens and has read its log, and `stopped` when it has ended well.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Spec
from amcast.live import log_output as logs
from amcast.live.config.cluster import Cluster
from amcast.live.host.host import Host
from amcast.live.host.skewed_clock import SkewedClock
from amcast.live.host.step_log import StepLog
from amcast.live.limits import MIB
from amcast.live.membership import data_folder as owning
from amcast.live.membership.topology_follower import RemovedFromGroupError, load_known_members, load_roster
from amcast.live.rpc.client import RpcClient
from amcast.live.server.application import Application
from amcast.live.server.http import HttpServer
from amcast.live.server.leaving import drain_and_stop
from amcast.live.server.replica_runtime import ReplicaRuntime
from amcast.live.storage.client_ids import ClientIdAllocator
from amcast.live.storage.store import open_store

if TYPE_CHECKING:
    from amcast.trace.run_folder import FolderRecorder

log = logging.getLogger("amcast.live")

READY = "ready"
STOPPED = "stopped"
GC_THRESHOLD = 50_000
"""Objects that live long are many; looking through them often costs a tenth of the CPU."""
_MALLOC: Final = {-1: 64 * MIB, -2: 4 * MIB, -3: 32 * MIB}
"""malloc.h: from how much on free memory goes back, what is asked for at a time, what is mapped by itself."""


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Run on uvloop where there is one."""
    try:
        import uvloop

        factory: Callable[[], asyncio.AbstractEventLoop] | None = uvloop.new_event_loop
    except ImportError:
        factory = None
    with asyncio.Runner(loop_factory=factory) as runner:
        runner.run(main)


def build_replica(
    cluster: Cluster,
    me: ProcessId,
    spec: Spec,
    application: Application | None = None,
    steps: Path | None = None,
    skew: Path | None = None,
    on_retired: Callable[[], object] | None = None,
    coalesce_us: int = 0,
) -> "tuple[ReplicaRuntime, FolderRecorder | None]":
    """A replica as its configuration says, not started; and its recorder, to be closed at the end."""
    spec.check_topology(cluster.topology)
    logged = any(cluster.data_folder(me).glob("*.log"))
    with contextlib.ExitStack() as undo:
        store = open_store(cluster.data_folder(me), cluster.durability)
        undo.callback(store.close)
        wiring = cluster.node_transport(cluster.name_of(me))
        roster, first = load_roster(cluster, me, logged)
        process = spec.process(me, first, spec.configure(protocol_options(cluster, spec)))
        owning.record_owner(cluster, me)
        recorder, recorded = open_recorder(cluster, me) if cluster.trace_mode != "off" else (None, 0)
        runtime = ReplicaRuntime(
            process,
            spec,
            name=cluster.name_of(me),
            protocol=cluster.protocol,
            cluster=cluster.name,
            limits=cluster.limits,
            durability=cluster.durability,
            client_ids=ClientIdAllocator(cluster.data_folder(me), me, store.incarnation),
            roster=roster,
            folder=cluster.data_folder(me),
            take_state=application.read_state if application is not None and application.can_take else None,
            on_retired=on_retired,
            coalesce_us=coalesce_us,
            store=store,
            recorder=recorder,
            step_log=None
            if steps is None
            else StepLog(steps / f"{me}-{store.incarnation}.steps", spec.name, me, store.incarnation),
            on_deliver=None if application is None else application.deliver,
            on_installed=None if application is None else application.skip_to,
            before_log_truncation=_combine(
                recorder.flush if recorder else None, application.save if application else None
            ),
            delivered_until=0 if application is None else application.position,
            recorded_until=recorded,
            skew=None if skew is None else SkewedClock(skew / cluster.name_of(me).replace("/", "-")),
            wiring=wiring,
        )
        if application is not None:
            asker = RpcClient(cluster.name, cluster.addresses, cluster.limits, wiring)
            application.serve(runtime.host, runtime.recent, runtime.follower, asker)
        undo.pop_all()
        return runtime, recorder


def protocol_options(cluster: Cluster, spec: Spec) -> dict[str, Any]:
    """Of the protocol. Where nothing is kept, one that can do without records makes none; but a trace of packets tells
    what a process says to itself, too."""
    options = dict(cluster.options)
    if options.get("records") is False and cluster.durability != "memory":
        raise UsageError(
            f"options.records = false; expected true, or no such option, with durability {cluster.durability!r}"
        )
    if cluster.durability == "memory" and cluster.trace_mode != "full" and "records" in spec.config.__struct_fields__:
        options.setdefault("records", False)
    return options


def _combine(*acts: Callable[[], None] | None) -> Callable[[], None] | None:
    """One after the other, those that there are."""
    wanted = [act for act in acts if act is not None]

    def do() -> None:
        for act in wanted:
            act()

    return do if wanted else None


def open_recorder(cluster: Cluster, me: ProcessId) -> "tuple[FolderRecorder, int]":
    """A recorder among others in the cluster's run folder, and the first position that it does not have yet."""
    # Arrow takes its time to load; a node that records nothing starts without it.
    from amcast.live.server import trace_recorder as tracing

    return tracing.open_recorder(cluster, f"process-{me:05d}"), tracing.next_unrecorded_position(cluster, me)


def retain_freed_memory() -> None:
    """Keep memory that is free for what comes next. The C library gives it back to the system, and asks for it again,
    page by page, with every large bundle. Other C libraries than GNU's are left alone."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter, value in _MALLOC.items():
        mallopt(parameter, value)


async def serve(cluster: Cluster, node: str, spec: Spec, steps: Path | None = None, skew: Path | None = None) -> None:
    """Be this node until SIGTERM or SIGINT, or until something fails."""
    owning.verify_owner(cluster, cluster.process_of(node))
    cluster = load_known_members(cluster, node)
    me = cluster.process_of(node)
    asked = asyncio.Event()
    runtime, recorder = build_replica(
        cluster, me, spec, steps=steps, skew=skew, on_retired=asked.set, coalesce_us=cluster.limits.coalesce_us
    )
    host = runtime.host
    http = HttpServer(runtime.status)
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, asked.set)
    loop.add_signal_handler(signal.SIGHUP, reload_certificates, host)
    try:
        await host.listen(cluster.listen_addresses[me])
        if me in cluster.http_addresses:
            await http.listen(*cluster.http_addresses[me])
        runtime.start(cluster.addresses)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 50)
        retain_freed_memory()
        print(READY, flush=True)
        host.ended.add_done_callback(lambda _: asked.set())
        await asked.wait()
        failed = host.ended.exception() if host.ended.done() else None
        await drain_and_stop(host)
    finally:
        await http.close()
        await runtime.stop()
        if recorder is not None:
            # A disk that is full ends the trace as well: what is whole stays.
            with contextlib.suppress(OSError):
                recorder.close()
    if failed is not None:
        raise failed
    print(STOPPED, flush=True)


def reload_certificates(host: Host) -> None:
    """SIGHUP: read the certificates again; new connections use them."""
    security = host.network.wiring.security
    if security is None:
        log.info("no certificates are in use; there is nothing to read again")
        return
    try:
        security.reload()
        log.info("the certificates were read again")
    except UsageError as error:
        log.error("the old certificates stay in use: %s", error)


def main(cluster: Cluster, node: str, spec: Spec, steps: Path | None = None, skew: Path | None = None) -> int:
    """For the command line: exit code 0 after SIGTERM or a removal, 64 for a wrong configuration, 1 for a failure."""
    logs.configure_logging(node, cluster.logs)
    try:
        run_loop(serve(cluster, node, spec, steps, skew))
    except RemovedFromGroupError as removed:
        print(f"{node}: {removed}", file=sys.stderr)
        print(STOPPED, flush=True)
    except UsageError as error:
        print(f"{node}: {error}", file=sys.stderr)
        return 64
    except Exception as error:
        print(f"{node}: stopped: {error}", file=sys.stderr)
        return 1
    return 0
