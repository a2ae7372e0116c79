"""The host: runs one process with sockets, a clock and a disk, by the same loop as the simulator.

One tick takes everything that arrived since the last one, feeds it to the process as one step, executes the effects in
order, and ends with one write per peer. A body that the process sends to itself is an input of the next step in the
same tick, so that its consequences share that write. A lone message waits for nothing; many are handled in bulk.

`Persist` is a barrier (`live/host/effect_queue.py`): effects that must not happen before the record is durable are
held, while the process keeps stepping.

The host knows nothing of RPC, membership or operations. Its builder (`live/server/replica_runtime.py`,
`live/client/client.py`) handles them through the callbacks of the constructor.
"""

import asyncio
import logging
import platform
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final

from amcast.kernel.effects import (
    About,
    CancelTimer,
    Close,
    Deliver,
    Effect,
    Note,
    ReadReady,
    Remember,
    Resolve,
    Restart,
    Send,
    SendEach,
    SetTimer,
)
from amcast.kernel.errors import Error, UsageError
from amcast.kernel.events import Event, LinkReset, PeerDown, Receive, Requests, Started, Submit, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.live.client_batch import BATCH_OVERHEAD_BYTES, stamp_calls
from amcast.live.host.delivery_sink import DeliverySink
from amcast.live.host.effect_queue import EffectQueue, skips_deliveries
from amcast.live.host.pending_reads import PendingReads
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.host.skewed_clock import SkewedClock
from amcast.live.host.step_log import StepLog
from amcast.live.host.timers import Timers
from amcast.live.host.wakeup_coalescer import WakeupCoalescer
from amcast.live.limits import Limits
from amcast.live.security.request_filter import RequestFilter
from amcast.live.storage.store import MemoryStore, Store
from amcast.live.wire.connection import ClientInbox, Connection
from amcast.live.wire.frames import Codec, Frame, topology_version
from amcast.live.wire.lost_packets import record_lost
from amcast.live.wire.network import Address, Network
from amcast.live.wire.transport import PLAIN, TransportOptions
from amcast.trace.recorder import Recorder

log = logging.getLogger("amcast.live")

STEPS_PER_TICK: Final = 16
"""Bounds a process that always sends to itself, so that it does not starve the sockets."""
_STEPS: Final = range(STEPS_PER_TICK)


class RestartNeededError(Error):
    """The process ends its incarnation and wants to be started again."""

    def __init__(self, incarnation: int, reason: str, has_lost_records: bool) -> None:
        why = f": {reason}" if reason else ""
        lost = "; its records were put aside, and its group sends it its state" if has_lost_records else ""
        super().__init__(f"incarnation {incarnation} has ended, and the next one must begin{why}{lost}")


class Host:
    """Runs one process, of a server or a client, in one incarnation."""

    # fmt: off
    __slots__ = (
        "_client_inbox", "_clock", "_coalescer", "_effects", "_expired", "_farewell", "_flush_is_scheduled",
        "_follower_delay_s", "_has_failed", "_has_new_requests", "_inbox", "_is_observed", "_is_running",
        "_is_stopped", "_is_traced", "_largest_payload", "_loopback", "_now", "_on_admitted", "_on_closed",
        "_on_resolve", "_on_retired", "_on_skipped", "_on_topology", "_outbox", "_recorder", "_request_filter",
        "_requests", "_skew", "_stamps_calls", "_step_log", "_store", "_tick_is_scheduled", "_timers", "codec", "ended",
        "events_taken", "home", "is_leaving", "limits", "lost_sends", "me", "network", "process", "reads",
        "retired_ns", "servers", "sink", "steps_taken", "topology",
    )
    # fmt: on

    def __init__(
        self,
        process: Process,
        spec: Spec,
        *,
        cluster: str = "amcast",
        limits: Limits | None = None,
        store: Store | None = None,
        recorder: Recorder | None = None,
        step_log: StepLog | None = None,
        recent: RecentDeliveries | None = None,
        on_deliver: Callable[[Deliver], None] | None = None,
        on_closed: Callable[[int], object] | None = None,
        on_resolve: Callable[[MessageId, tuple[GroupId, ...]], None] | None = None,
        on_skipped: Callable[[int], object] | None = None,
        on_topology: Callable[[Topology, Topology], list[Effect]] | None = None,
        on_retired: Callable[[int, int], object] | None = None,
        on_admitted: Callable[[], object] | None = None,
        on_rpc: Callable[[Connection, Any], None] | None = None,
        before_log_truncation: Callable[[], None] | None = None,
        delivered_until: int = 0,
        recorded_until: int = 0,
        coalesce_us: int = 0,
        rng: random.Random | None = None,
        clock: Callable[[], int] = time.time_ns,
        skew: SkewedClock | None = None,
        stamps_calls: bool = False,
        wiring: TransportOptions = PLAIN,
    ) -> None:
        """`on_topology` gets the old and the new topology and returns effects to execute with those of the step;
        `on_retired` gets the configuration that removed the process, and the time; `on_admitted` is called when the
        group has admitted the process' data folder; `on_rpc` gets connections that begin with an RPC request;
        `on_skipped` gets the position of a snapshot, or of a restart, `on_closed` that before which everything is
        closed. `recent` keeps deliveries for subscribers. `stamps_calls`: calls of services get the time of this host.
        `coalesce_us` is for a node that owns its operating-system process."""
        self.process = process
        self.me = process.me
        self.limits = limits or Limits()
        self.codec = Codec(spec.wire_bodies(), spec.records, self.limits)
        self.topology = process.topology
        """The topology that the process had after the last step."""
        self.servers = set(process.topology.servers)
        """Every process that is, or was in this incarnation, a member of some group."""
        self.home = process.group
        """The group of a server, kept after its removal; None for clients."""
        self.retired_ns: int | None = None
        """When this process, removed from its group, was not needed any more."""
        self.is_leaving = False
        """The process has announced that it leaves."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the host stopped; carries the error if it failed."""
        self.steps_taken = self.events_taken = self.lost_sends = 0
        """`lost_sends`: bodies for unknown processes, such as clients that left."""
        self._store = store or MemoryStore()
        self._recorder, self._step_log = recorder, step_log
        self._clock, self._skew, self._now = clock, skew, 0
        self._stamps_calls = stamps_calls and process.bundles_requests
        self._is_traced = recorder is not None and recorder.wants_packets
        self._is_observed = self._is_traced or step_log is not None or skew is not None
        """Steps take the slow way that records them, or skews their clock."""
        self._on_resolve, self._on_skipped = on_resolve, on_skipped
        self._on_topology, self._on_retired = on_topology, on_retired
        self._on_admitted, self._on_closed = on_admitted, on_closed
        self._farewell = spec.farewell
        self._largest_payload = self.limits.message_bytes + BATCH_OVERHEAD_BYTES
        self._follower_delay_s = self.limits.follower_delay_us / 1e6
        self._has_failed = self._is_running = self._is_stopped = False
        self._tick_is_scheduled = self._flush_is_scheduled = False
        self._has_new_requests = False
        """Clients, or a local user, have requested something since the last tick."""
        self._inbox: list[Event] = []
        self._requests: list[Message] | None = None
        """Messages requested by clients since the last step; the `Requests` event in the inbox shares the list."""
        self._loopback: list[tuple[About, str, int, int]] = []
        """Packets from this process to itself that the next step receives, for the trace."""
        rng = rng or random.Random()
        self._timers, self.reads = Timers(rng, self._wake), PendingReads(self.enqueue)
        self._expired = self._timers.expired
        self._coalescer = WakeupCoalescer(coalesce_us, lambda: process.is_leader)
        self.sink = DeliverySink(
            self.me, process.group, on_deliver=on_deliver, on_fresh=self._coalescer.record_delivery,
            recorder=recorder, recent=recent, delivered_until=delivered_until, recorded_until=recorded_until,
        )  # fmt: skip
        self._effects = self._make_effect_queue(before_log_truncation)
        self._request_filter, self._client_inbox = self._make_client_input(spec, wiring)
        self.network = self._make_network(spec.name, cluster, rng, wiring, on_rpc)
        self._outbox = self.network.outbox

    def _make_effect_queue(self, before_log_truncation: Callable[[], None] | None) -> EffectQueue:
        handlers: dict[type, Callable[[Any], None]] = {
            SendEach: self._send_each,
            Deliver: self._deliver,
            Resolve: self._resolve,
            Close: self._close,
            ReadReady: self._finish_read,
            SetTimer: self._timers.set,
            CancelTimer: self._timers.cancel,
            Note: self._note,
            Remember: self._store.remember,
            Restart: self._restart,
        }
        return EffectQueue(
            self._store,
            self.codec.encode_record,
            self._send,
            handlers,
            read_clock=self._read_clock,
            on_full=self._pause_reading,
            before_log_truncation=before_log_truncation,
        )

    def _make_client_input(self, spec: Spec, wiring: TransportOptions) -> tuple[RequestFilter, ClientInbox | None]:
        """The filter for requests of clients, and their inbox; clients themselves need none."""
        permissions = None if wiring.security is None else wiring.security.permissions
        request_filter = RequestFilter(self.process, spec, self._largest_payload, permissions)
        if self.home is None:
            return request_filter, None
        return request_filter, ClientInbox(request_filter, self._enqueue_requests, self._wake)

    def _make_network(
        self,
        protocol: str,
        cluster: str,
        rng: random.Random,
        wiring: TransportOptions,
        on_rpc: Callable[[Connection, Any], None] | None,
    ) -> Network:
        recorder = self._recorder
        return Network(
            self.me,
            self._store.incarnation,
            cluster,
            protocol,
            self.codec,
            on_bodies=self._on_bodies,
            on_frame=self._on_frame,
            on_link_reset=self._on_link_reset,
            on_peer_down=self._on_peer_down,
            on_rpc=on_rpc,
            on_lost=partial(record_lost, recorder, self.codec, self.me, wiring.security is None)
            if recorder and self._is_traced
            else None,
            topology_version=lambda: topology_version(self.process.topology),
            start=0 if self._store.folder is None else self._store.folder.start,
            client_inbox=self._client_inbox,
            rng=rng,
            wiring=wiring,
            is_traced=self._is_traced,
        )

    # Start and stop

    async def listen(self, address: Address = ("127.0.0.1", 0)) -> Address:
        """Accepts connections; returns the address that peers should dial."""
        return await self.network.listen(address)

    def start(self, addresses: Mapping[ProcessId, Address], lazy: bool = False) -> None:
        """Starts this incarnation with its records; then come arrivals. `lazy`: servers are dialled on demand."""
        loop = asyncio.get_running_loop()
        # The process itself may begin with an older topology, and follow when it has replayed its records.
        self.servers.update(addresses)
        self._store.start(
            lambda ticket: loop.call_soon_threadsafe(self._on_durable, ticket),
            lambda error: loop.call_soon_threadsafe(self.fail, error),
        )
        records = tuple(self.codec.decode_record(record) for record in self._store.records())
        self._is_running = True
        self._inbox.insert(0, Started(records, self._store.incarnation, self._store.folder))
        self.network.start(addresses, lazy)
        self._wake()

    def announce_leaving(self) -> bool:
        """Announces to all connected peers that this process leaves (`live/server/node.py`); False if it cannot."""
        if not self._is_running or self.is_leaving or self._farewell is None:
            return False
        self.is_leaving = True
        links = self.network.links
        peers = [peer for peer, link in links.items() if link.connection is not None]
        self._outbox.send(tuple(peers), self.codec.encode(self._farewell(self.incarnation)), None)
        self._outbox.flush(self._read_clock() if self._is_traced else None)
        return True

    async def stop(self) -> None:
        """Finishes the tick and closes everything; the process gets no event."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._is_running:
            self.tick()
            self._flush_deferred()
        self._is_running = False
        self._timers.stop()
        self.network.discard_unsent()
        await self.network.stop()
        self._store.close()
        if self._step_log is not None:
            self._step_log.close()
        if self._recorder is not None and not self._has_failed:
            # A failed process may come back; its last incarnation, or the run's owner, records it.
            region = self.process.topology.region(self.me)
            self._recorder.record_process(self.me, self.home, region, self.retired_ns, platform.node())
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Crash-stop: a process whose step or disk failed does nothing more."""
        log.error("process %d stops: %s", self.me, error, exc_info=error)
        self._has_failed = True
        self._is_running = False
        self.network.abort()
        if not self.ended.done():
            self.ended.set_exception(error)

    def _restart(self, effect: Restart) -> None:
        """Ends this incarnation: the process must start again, perhaps without its records."""
        if effect.incarnation:
            self._store.discard(effect.records, effect.incarnation)
        self._has_failed = True
        self._is_running = False
        self.network.abort()
        if not self.ended.done():
            reason = str(self.process.status().get("admission_reason", ""))
            self.ended.set_exception(RestartNeededError(self._store.incarnation, reason, effect.incarnation > 0))

    def retire(self, now: int) -> bool:
        """Records that this process, which was removed from its group, is not needed any more; False if known."""
        if self.retired_ns is not None:
            return False
        self.retired_ns = now
        return True

    @property
    def incarnation(self) -> int:
        """Counts the runs of this process, from 0."""
        return self._store.incarnation

    def queues(self) -> dict[str, int]:
        """Lengths of queues, for operators."""
        effects = self._effects
        return {
            "inbox": len(self._inbox),
            "held": effects.held_count,
            "appended": effects.appended,
            "durable": effects.durable,
        }

    # Input of the process

    def submit(self, message: Message, wake: bool = True) -> None:
        """Multicasts a message of the local user, who normally uses `live/client/multicaster.py`. A caller that calls
        `tick` next need not `wake` the host."""
        if len(message.payload) > self._largest_payload:
            raise UsageError(
                f"message {message.id}: payload of {len(message.payload)} bytes;"
                f" expected at most {self._largest_payload} (limits.message_bytes)"
            )
        self._inbox.append(Submit(message))
        self._has_new_requests = self.home is not None
        if wake:
            self._wake()

    def enqueue(self, event: Event) -> None:
        """Gives the process any other event, such as the suggestion of a leader oracle."""
        self._inbox.append(event)
        self._wake()

    def _on_bodies(self, peer: ProcessId, bodies: list[Body]) -> None:
        if peer in self.servers:
            inbox = self._inbox
            for body in bodies:
                inbox.append(Receive(peer, body))
        else:
            self._request_filter.check(peer, bodies)
            self._enqueue_requests([body.message for body in bodies])  # type: ignore[attr-defined]
        if not self._tick_is_scheduled:
            self._wake()

    def _enqueue_requests(self, messages: list[Message]) -> None:
        """Adds messages that clients request. Where this process orders them inside of its own bundles, it may put the
        time into calls: of two servers that are asked for the same message, groups deliver the bundle of one. Messages
        that are ordered by themselves must be the same at every server."""
        if self._stamps_calls:
            now_ns = self._clock() if self._skew is None else self._skew.skew(self._clock())
            messages = [stamp_calls(message, now_ns) for message in messages]
        if self._requests is None:
            self._requests = messages
            self._inbox.append(Requests(messages))
            self._has_new_requests = True
        else:
            self._requests += messages

    def _on_frame(self, peer: ProcessId, frame: Frame) -> None:
        """Handles a frame of a peer that traces its packets."""
        self._on_bodies(peer, frame.bodies)
        if self._recorder is not None:
            now = self._read_clock()
            for body, about, size in zip(frame.bodies, frame.abouts, frame.sizes, strict=True):
                self._recorder.record_packet(about, type(body).__name__, peer, self.me, size, frame.sent_ns, now)

    def _on_link_reset(self, peer: ProcessId, incarnation: int) -> None:
        self.enqueue(LinkReset(peer, incarnation))

    def _on_peer_down(self, peer: ProcessId) -> None:
        self.enqueue(PeerDown(peer))

    # The loop

    def _wake(self) -> None:
        if self._is_running and not self._tick_is_scheduled:
            self._tick_is_scheduled = True
            asyncio.get_running_loop().call_soon(self.tick)

    def tick(self) -> None:
        """Handles everything that has arrived. A caller that has just submitted something may call this directly."""
        self._tick_is_scheduled = False
        if not self._is_running:
            return
        try:
            if self._client_inbox is not None and self._client_inbox.arrived:
                self._client_inbox.fast_receive()
            commit = self._effects.commit
            for _ in _STEPS:
                if self._inbox or self._expired:
                    self._step()
                elif not commit():
                    break
            else:
                while commit():
                    pass
            self._outbox.flush(self._read_clock() if self._is_traced else None)
        except Exception as error:
            self.fail(error)
            return
        if self._has_new_requests or self.network.are_clients_paused or self.network.names_over_bytes:
            self._has_new_requests = False
            self._coalescer.record_request(self._now)
            self.network.limit_unordered(self.process.unanswered_bytes(), self.process.unanswered_bytes_by_client)
        if self._inbox or self._expired:
            self._wake()
        if self._outbox.deferred and not self._flush_is_scheduled:
            self._flush_is_scheduled = True
            asyncio.get_running_loop().call_later(self._follower_delay_s, self._flush_deferred)
        rest = self.process.rest
        if rest is None or not self._coalescer.is_allowed:
            self._coalescer.end_tick(self._now)
        elif self._coalescer.rest(rest[0], self._clock()):
            # Whatever arrived meanwhile is read first: it may leave with what waits.
            asyncio.get_running_loop().call_soon(self._timers.hasten, rest[1])

    def _flush_deferred(self) -> None:
        self._flush_is_scheduled = False
        self._outbox.flush_deferred(self._read_clock() if self._is_traced else None)

    def _step(self) -> None:
        now = self._clock()
        if now > self._now:
            self._now = now
        else:
            now = self._now
        events = self._inbox
        self._inbox, self._requests = [], None
        if self._expired and type(events[0] if events else None) is not Started:
            # One timer, and first: no other event of this step can have cancelled it.
            events.insert(0, Timer(self._expired.popleft()))
        process = self.process
        if self._is_observed:
            effects = self._observed_step(events, now)
        else:
            effects = process.step(events, now)
        self.steps_taken += 1
        self.events_taken += len(events)
        if process.topology is not self.topology:
            effects = [*effects, *self._change_topology()]
        self._effects.execute(effects)

    def _change_topology(self) -> list[Effect]:
        """Follows the process to a new topology, before anything of the step is sent to new members."""
        old, self.topology = self.topology, self.process.topology
        if old == self.topology:
            return []
        self.servers.update(self.topology.servers)
        return [] if self._on_topology is None else self._on_topology(old, self.topology)

    def _observed_step(self, events: list[Event], now: int) -> list[Effect]:
        """A step that is recorded, or whose clock is skewed."""
        if self._loopback:
            self._record_loopback(now)
        if self._skew is not None:
            now = self._skew.skew(now)
        effects = self.process.step(events, now)
        if self._is_traced:
            effects = self.process.attribute_to_messages(effects)
        if self._step_log is not None:
            self._step_log.write(now, events, effects)
        return effects

    def _read_clock(self) -> int:
        """Local time, which never goes back, whatever the machine's clock does."""
        now = self._clock()
        if now > self._now:
            self._now = now
        return self._now

    def _record_loopback(self, now: int) -> None:
        assert self._recorder is not None
        for about, body, size, sent_ns in self._loopback:
            self._recorder.record_packet(about, body, self.me, self.me, size, sent_ns, now)
        self._loopback.clear()

    # Effects

    def _send(self, effect: Send) -> None:
        body, me, targets = effect.body, self.me, effect.targets
        if me in targets:
            self._inbox.append(Receive(me, body))
            if self._is_traced:
                size = len(self.codec.encode(body))
                self._loopback.append((effect.about, type(body).__name__, size, self._now))
            if len(targets) == 1:
                return
        part = self.codec.encode(body)
        if effect.deferrable and self._follower_delay_s:
            unknown = self._outbox.send_deferrable(targets, effect.deferrable, part, effect.about)
        else:
            unknown = self._outbox.send(targets, part, effect.about)
        for target in unknown:
            self.lost_sends += 1
            if self._is_traced and self._recorder is not None:
                self._recorder.record_packet(effect.about, type(body).__name__, me, target, len(part), self._now, None)

    def _send_each(self, effect: SendEach) -> None:
        for send in self._outbox.fast_send_each(effect):
            self._send(send)

    def _deliver(self, effect: Deliver) -> None:
        self.sink.deliver(effect, self._now)

    def _resolve(self, effect: Resolve) -> None:
        if self._on_resolve is not None:
            self._on_resolve(effect.message, effect.absent)

    def _close(self, effect: Close) -> None:
        self.sink.close_until(effect.position)
        if self._on_closed is not None:
            self._on_closed(effect.position)

    def _finish_read(self, effect: ReadReady) -> None:
        self.reads.finish(effect.number, self.sink.delivered_until)

    def _note(self, effect: Note) -> None:
        if skips_deliveries(effect):
            self._skip_to(int(effect.value or 0), effect.name == "installed")
        elif effect.name == "admitted" and self._on_admitted is not None:
            self._on_admitted()
        elif effect.name == "retired" and self._on_retired is not None:
            self._on_retired(int(effect.value or 0), self._now)
        if self._recorder is not None:
            self._recorder.record_note(self.me, self._now, effect.name, effect.message, effect.value)

    def _skip_to(self, position: int, is_snapshot: bool) -> None:
        """Skips the deliveries that a snapshot replaced, or that an earlier incarnation has made."""
        self.sink.skip_to(position)
        what = "installed a snapshot and" if is_snapshot else "resumes, and"
        log.info("process %d %s is at position %d", self.me, what, position)
        if self._on_skipped is not None:
            self._on_skipped(position)

    def _pause_reading(self, paused: bool) -> None:
        self.network.pause_reading(paused)

    def _on_durable(self, ticket: int) -> None:
        """Handles the store's report that all records up to this ticket are durable."""
        if not self._is_running:
            return
        try:
            self._effects.release(ticket)
        except Exception as error:
            self.fail(error)
            return
        self.tick()
