"""A node of a cluster: one replica as an operating-system process, from its cluster.toml until SIGTERM.

SIGTERM and SIGINT stop it gracefully (`drain_and_stop`); so does its removal from its group
(`live/membership/topology_follower.py`). A failure ends it with exit code 1. SIGHUP makes it reload its certificates,
revocations and the rights of clients.

It prints `ready` on its standard output when it listens, its group has admitted its data folder and it has its group's
state, from its log or from other members; `waiting: REASON` before, if it takes long or an operator must act; and
`stopped` after a graceful stop. A node whose folder turns out to be doubtful begins its next incarnation by itself, in
the same operating-system process.
"""

import asyncio
import contextlib
import ctypes
import gc
import logging
import os
import signal
import sys
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.kernel.spec import Spec
from amcast.live import log_output as logs
from amcast.live.audit_log import close_audit, configure_audit, record_audit
from amcast.live.config.cluster import Cluster, read_cluster
from amcast.live.host.host import Host, RestartNeededError
from amcast.live.host.recent_deliveries import Closing
from amcast.live.host.skewed_clock import SkewedClock
from amcast.live.host.step_log import StepLog
from amcast.live.limits import MIB
from amcast.live.membership import data_folder
from amcast.live.membership.topology_follower import RemovedFromGroupError, load_known_members, load_roster
from amcast.live.rpc.client import RpcClient
from amcast.live.server.application import Application
from amcast.live.server.descriptors import reserve_descriptors
from amcast.live.server.http import HttpServer
from amcast.live.server.journal import Journal
from amcast.live.server.replica_runtime import ReplicaRuntime
from amcast.live.server.service_host import ServiceHost
from amcast.live.storage.delivery_archive import DeliveryArchive
from amcast.live.storage.store import open_store
from amcast.live.storage.system_files import SystemFiles
from amcast.storage.client_ids import ClientIdAllocator

if TYPE_CHECKING:
    from amcast.trace.run_folder import FolderRecorder

log = logging.getLogger("amcast.live")

READY = "ready"
WAITING = "waiting"
STOPPED = "stopped"
COMPARE_DELIVERIES: Final = 1024
"""After so many deliveries the replicas of a service compare what they have answered."""
ADMISSION_S: Final = 2.0
"""After so long without admission, a node prints that it waits."""
GC_THRESHOLD = 50_000
"""Collections are rare, because a node has many long-lived objects: frequent ones cost a tenth of the CPU."""
_MALLOC: Final = {-1: 64 * MIB, -2: 4 * MIB, -3: 32 * MIB}
"""mallopt parameters (malloc.h): trim threshold, top padding, mmap threshold."""


PRIVATE: Final = 0o077
"""Umask of a node: only its owner can read what it writes (data, traces, steps)."""
DRAIN_S: Final = 2.0
"""How long a stopping node waits for answers to its gateway's requests."""
DRAIN_POLL_S: Final = 0.05


async def drain_and_stop(host: Host, timeout_s: float = DRAIN_S) -> None:
    """Announces that the process leaves, and waits until its gateway's requests are answered.

    After the announcement the other members elect another leader and clients choose another gateway at once, without a
    time-out. The process stays at least for a moment, so that what was on its way to it is served. A host that has
    failed, or whose protocol has no farewell, just stops.
    """
    if not host.announce_leaving():
        return
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_s
    await asyncio.sleep(DRAIN_POLL_S)
    while not host.ended.done() and loop.time() < deadline and host.process.status().get("open_requests", 0):
        await asyncio.sleep(DRAIN_POLL_S)


def run_loop(main: Coroutine[Any, Any, None]) -> None:
    """Runs a coroutine on uvloop where it is installed."""
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
    on_diverged: Callable[[str], object] | None = None,
    coalesce_us: int = 0,
    service: ServiceHost | None = None,
) -> "tuple[ReplicaRuntime, FolderRecorder | None]":
    """Builds a replica from its cluster.toml, not started, and its recorder, which the caller closes at the end.

    What a configuration can lack is found before the data folder is opened. The file of client ids is written at once:
    a later incarnation that finds none takes it for lost.
    """
    spec.check_topology(cluster.topology)
    wiring = cluster.node_transport(cluster.name_of(me))
    recorder, recorded = open_recorder(cluster, me) if cluster.trace_mode != "off" else (None, 0)
    with contextlib.ExitStack() as undo:
        store = open_store(cluster.data_folder(me), cluster.durability)
        undo.callback(store.close)
        client_ids = ClientIdAllocator(SystemFiles(cluster.data_folder(me)), me, store.incarnation)
        roster, first = load_roster(cluster, me, store.has_records)
        process = spec.process(me, first, spec.configure(protocol_options(cluster, spec)))
        data_folder.record_owner(cluster, me)
        archive = open_archive(cluster, me)
        if archive is not None:
            undo.callback(archive.close)
        runtime = ReplicaRuntime(
            process,
            spec,
            name=cluster.name_of(me),
            protocol=cluster.protocol,
            cluster=cluster.name,
            limits=cluster.limits,
            durability=cluster.durability,
            config=str(cluster.file),
            client_ids=client_ids,
            roster=roster,
            folder=cluster.data_folder(me),
            state_source=application if application is not None and application.can_take else None,
            wait_for_application=None if application is None else application.wait_for_position,
            on_retired=on_retired,
            on_diverged=on_diverged,
            scrubber=store.make_scrubber(),
            closing=find_closing(cluster, spec),
            archive=archive,
            service=service,
            coalesce_us=coalesce_us,
            store=store,
            recorder=recorder,
            step_log=None
            if steps is None
            else StepLog(steps / f"{me}-{store.incarnation}.steps", spec.name, me, store.incarnation),
            on_deliver=None if application is None else application.deliver,
            on_skipped=None if application is None else application.skip_to,
            on_closed=None if application is None else application.close_until,
            before_log_truncation=_combine(
                recorder.flush if recorder else None,
                application.save if application else None,
                archive.save if archive else None,
            ),
            delivered_until=0 if application is None else application.taken_until,
            recorded_until=recorded,
            skew=None if skew is None else SkewedClock(skew / cluster.name_of(me).replace("/", "-")),
            wiring=wiring,
        )
        reserve_descriptors(runtime.host.network, len(cluster.addresses), cluster.limits)
        if application is not None:
            asker = RpcClient(cluster.name, cluster.addresses, cluster.limits, wiring)
            application.serve(runtime.host, runtime.follower, asker)
        undo.pop_all()
        return runtime, recorder


def open_archive(cluster: Cluster, me: ProcessId) -> DeliveryArchive | None:
    """The archive of deliveries of a node, if its limits ask for one and it keeps anything on disk."""
    limits = cluster.limits
    if not limits.retained_bytes or cluster.durability == "memory":
        return None
    folder = cluster.data_folder(me) / "deliveries"
    return DeliveryArchive(folder, cluster.durability, limits.retained_bytes, limits.retained_s)


def find_closing(cluster: Cluster, spec: Spec) -> Closing:
    """When deliveries are known to be closed, by the order that the cluster promises."""
    if cluster.order == "acyclic":
        return "unknown"
    return "delivered" if spec.claims.real_time else "stated"


def make_service_application(cluster: Cluster, me: ProcessId, service: ServiceHost) -> Application:
    """The application that feeds a service: its state survives restarts, snapshots and transfers."""
    journal = Journal(cluster.data_folder(me) / "application", cluster.durability)
    service.open_files(journal.folder / "service", journal.keeps)
    return Application(
        service.deliver,
        cluster.topology,
        take=service.take,
        install=service.install,
        journal=journal,
        files=service.files,
        compare_every=COMPARE_DELIVERIES,
        digest=lambda: service.executor.answers,
    )


def protocol_options(cluster: Cluster, spec: Spec) -> dict[str, Any]:
    """The options of the protocol. With `durability = "memory"`, a protocol that can do without records makes none; but
    a trace of packets includes those that a process sends to itself."""
    options = dict(cluster.options)
    if options.get("records") is False and cluster.durability != "memory":
        raise UsageError(
            f"options.records = false; expected true, or no such option, with durability {cluster.durability!r}"
        )
    if cluster.durability == "memory" and cluster.trace_mode != "full" and "records" in spec.config.__struct_fields__:
        options.setdefault("records", False)
    if cluster.durability == "fsync" and "proposes_early" in spec.config.__struct_fields__:
        options.setdefault("proposes_early", True)
    return options


def _combine(*callbacks: Callable[[], None] | None) -> Callable[[], None] | None:
    """Combines callbacks into one, leaving out None."""
    wanted = [callback for callback in callbacks if callback is not None]

    def call_all() -> None:
        for callback in wanted:
            callback()

    return call_all if wanted else None


def open_recorder(cluster: Cluster, me: ProcessId) -> "tuple[FolderRecorder, int]":
    """A recorder in the cluster's run folder, and the first position that it has not recorded yet."""
    # Arrow is slow to load; a node that records nothing starts without it.
    try:
        from amcast.live.server import trace_recorder
    except ModuleNotFoundError as error:
        raise UsageError(
            f"trace.mode = {cluster.trace_mode!r}, but {error.name} is not installed; expected:"
            " pip install 'amcast[trace]', or trace.mode = 'off'"
        ) from None
    return trace_recorder.open_recorder(cluster, f"process-{me:05d}"), trace_recorder.next_unrecorded_position(
        cluster, me
    )


def retain_freed_memory() -> None:
    """Makes malloc retain freed memory. The C library would return it to the system and fetch it again, page by page,
    with every large bundle. Other C libraries than GNU's are left alone."""
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (AttributeError, OSError, TypeError):
        return
    for parameter, value in _MALLOC.items():
        mallopt(parameter, value)


async def serve(
    cluster: Cluster,
    node: str,
    spec: Spec,
    steps: Path | None = None,
    skew: Path | None = None,
    make_service: Callable[[], ServiceHost] | None = None,
) -> None:
    """Runs a node until SIGTERM or SIGINT, or until it fails; one incarnation after the other, if its data folder turns
    out to be doubtful."""
    data_folder.verify_owner(cluster, cluster.process_of(node))
    cluster = load_known_members(cluster, node)
    stop_requested = asyncio.Event()
    loop = asyncio.get_running_loop()
    for name in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(name, stop_requested.set)
    while not stop_requested.is_set():
        try:
            service = None if make_service is None else make_service()
            await _serve_incarnation(cluster, node, spec, stop_requested, steps, skew, service)
        except RestartNeededError as restart:
            log.warning("%s: %s", node, restart)
    record_audit("stopped")
    print(STOPPED, flush=True)


async def _serve_incarnation(
    cluster: Cluster,
    node: str,
    spec: Spec,
    stop_requested: asyncio.Event,
    steps: Path | None,
    skew: Path | None,
    service: ServiceHost | None,
) -> None:
    me = cluster.process_of(node)
    application = None if service is None else make_service_application(cluster, me, service)
    runtime, recorder = build_replica(
        cluster,
        me,
        spec,
        application,
        steps=steps,
        skew=skew,
        on_retired=stop_requested.set,
        coalesce_us=cluster.limits.coalesce_us,
        service=service,
    )
    host = runtime.host
    http = HttpServer(runtime.status)
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGHUP, reload_configuration, cluster, host)
    announcing = asyncio.Future[None]()
    try:
        await host.listen(cluster.listen_addresses[me])
        if me in cluster.http_addresses:
            await http.listen(*cluster.http_addresses[me])
        runtime.start(cluster.addresses)
        if service is not None:
            service.start(runtime)
        gc.collect()
        gc.freeze()
        gc.set_threshold(GC_THRESHOLD, 50, 50)
        retain_freed_memory()
        announcing = loop.create_task(announce(runtime))
        record_audit("started", incarnation=host.incarnation, protocol=cluster.protocol)
        stopping = loop.create_task(stop_requested.wait())
        await asyncio.wait((stopping, host.ended), return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        failed = host.ended.exception() if host.ended.done() else None
        await drain_and_stop(host)
    finally:
        announcing.cancel()
        if service is not None:
            await service.close()
        await http.close()
        await runtime.stop()
        if application is not None:
            await application.close()
        if recorder is not None:
            # A full disk ends the trace as well; the complete files stay.
            with contextlib.suppress(OSError):
                recorder.close()
    if failed is not None:
        raise failed


async def announce(runtime: ReplicaRuntime) -> None:
    """Prints that the node is ready; that it waits, and why, if that takes long."""
    if not await runtime.wait_admitted(ADMISSION_S) and not runtime.host.ended.done():
        print(f"{WAITING}: {'; '.join([runtime.status.admission_reason(), *runtime.status.advice()])}", flush=True)
        await runtime.admitted.wait()
    if not runtime.status.survey.has_state():
        print(f"{WAITING}: {'; '.join([*runtime.status.reasons_not_ready(), *runtime.status.advice()])}", flush=True)
        await runtime.wait_for_state()
    print(READY, flush=True)


def reload_configuration(cluster: Cluster, host: Host) -> None:
    """Handles SIGHUP: reads certificates, authority, revocations and the clients of cluster.toml again.

    Connections end whose peers may be trusted no more: all, if the authority or the revocations have changed, and those
    of clients whose rights have. Whoever is still trusted connects again, and links lose nothing.
    """
    security = host.network.wiring.security
    if security is None:
        log.info("no certificates are in use; there is nothing to reload")
        return
    try:
        clients = read_cluster(cluster.file).clients
        is_trust_changed = security.reload()
    except UsageError as error:
        log.error("the old certificates and clients stay in use: %s", error)
        record_audit("reload failed", reason=str(error))
        return
    changed = {f"client {name}" for name in security.permissions.replace_clients(clients)}
    ended = host.network.end_connections(lambda one: is_trust_changed or one.describe_owner() in changed)
    log.info("the certificates and clients were reloaded; %d connections must identify themselves again", ended)
    record_audit("reloaded", authority_changed=is_trust_changed, clients_changed=sorted(changed), ended=ended)


def main(
    cluster: Cluster,
    node: str,
    spec: Spec,
    steps: Path | None = None,
    skew: Path | None = None,
    make_service: Callable[[], ServiceHost] | None = None,
) -> int:
    """Entry point of the command line. Exit code 0 after SIGTERM or a removal, 64 for an invalid cluster.toml, 1 for a
    failure."""
    os.umask(PRIVATE)
    logs.configure_logging(node, cluster.logs)
    try:
        configure_audit(node, cluster.audit)
        run_loop(serve(cluster, node, spec, steps, skew, make_service))
    except RemovedFromGroupError as removed:
        print(f"{node}: {removed}", file=sys.stderr)
        print(STOPPED, flush=True)
    except UsageError as error:
        print(f"{node}: {error}", file=sys.stderr)
        return 64
    except Exception as error:
        print(f"{node}: stopped: {error}", file=sys.stderr)
        return 1
    finally:
        close_audit()
    return 0
