"""A host: the same loop as the simulator's, with sockets, a clock and a disk.

One tick takes everything that arrived since the last one, feeds it to the process as one burst, executes the effects in
order, and ends with one write per peer. What the process sends to itself is the next step's input, in the same tick, so
that its consequences share that write. A lone message waits for nothing; a crowd is served in bulk.

`Persist` is a barrier (`live/host/effect_queue.py`): what must not happen before the record is durable is held, the
process goes on stepping.
"""

import asyncio
import logging
import random
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from amcast.kernel.effects import About, CancelTimer, Deliver, Effect, Note, Persist, Resolve, Send, SendEach, SetTimer
from amcast.kernel.errors import UsageError
from amcast.kernel.events import Event, LinkReset, PeerDown, Receive, Requests, Started, Submit, Timer
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.live.client_batch import BATCH_OVERHEAD_BYTES
from amcast.live.host.delivery_sink import DeliverySink
from amcast.live.host.effect_queue import EffectQueue, installs
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.host.skewed_clock import SkewedClock
from amcast.live.host.step_log import StepLog
from amcast.live.host.timers import Timers
from amcast.live.host.wakeup_coalescer import WakeupCoalescer
from amcast.live.limits import Limits
from amcast.live.security.request_filter import RequestFilter
from amcast.live.storage.store import MemoryStore, Store
from amcast.live.wire.client_inbox import ClientInbox
from amcast.live.wire.connection import Connection
from amcast.live.wire.frames import Codec, Frame, topology_version
from amcast.live.wire.lost_packets import record_lost
from amcast.live.wire.network import Address, Network
from amcast.live.wire.transport import PLAIN, TransportOptions
from amcast.trace.recorder import Recorder

log = logging.getLogger("amcast.live")

STEPS_PER_TICK = 16
"""A process that always sends to itself must not starve the sockets."""


class Host(EffectQueue):
    """Runs one process, server or client, in one incarnation."""

    # fmt: off
    __slots__ = (
        "_admission",
        "_asked",
        "_before_forgetting",
        "_chance",
        "_clock",
        "_coalescer",
        "_crowd",
        "_due",
        "_failed",
        "_farewell",
        "_inbox",
        "_keeping",
        "_looped",
        "_most_asked",
        "_most_bytes",
        "_now",
        "_on_installed",
        "_on_resolve",
        "_on_retired",
        "_on_topology",
        "_patience_s",
        "_recorder",
        "_requests",
        "_running",
        "_scheduled",
        "_skew",
        "_steps",
        "_stopped",
        "_timers",
        "_traces",
        "_watched",
        "codec",
        "ended",
        "events_taken",
        "home",
        "leaving",
        "limits",
        "lost_sends",
        "me",
        "network",
        "process",
        "retired_ns",
        "servers",
        "sink",
        "steps_taken",
        "topology",
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
        steps: StepLog | None = None,
        on_deliver: Callable[[Deliver], None] | None = None,
        on_resolve: Callable[[MessageId, tuple[GroupId, ...]], None] | None = None,
        on_installed: Callable[[int], object] | None = None,
        on_topology: Callable[[Topology, Topology], list[Effect]] | None = None,
        on_retired: Callable[[int, int], object] | None = None,
        on_rpc: Callable[[Connection, Any], None] | None = None,
        recent: RecentDeliveries | None = None,
        before_forgetting: Callable[[], None] | None = None,
        handed: int = 0,
        recorded: int = 0,
        coalesce_us: int = 0,
        chance: random.Random | None = None,
        clock: Callable[[], int] = time.time_ns,
        skew: SkewedClock | None = None,
        wiring: TransportOptions = PLAIN,
    ) -> None:
        """What others ask of a server besides its protocol, and what follows from a new topology, is handled by whoever
        builds the host (`live/server/replica_runtime.py`, `live/client/client.py`): `on_rpc` gets connections that
        begin with an RPC request; `on_topology` gets the old and the new topology and returns effects to execute with
        those of the step; `on_retired` gets the configuration that removed the process, and the time. `recent` keeps
        deliveries for subscribers. `coalesce_us` is for a node that owns its operating-system process."""
        super().__init__(store or MemoryStore())
        self.process = process
        self.me = process.me
        self.limits = limits or Limits()
        self.codec = Codec(spec.wire_bodies(), spec.records, self.limits)
        self.steps_taken = 0
        self.events_taken = 0
        self.lost_sends = 0
        """Bodies for processes that nobody knows (clients that left)."""
        self.leaving = False
        """It has said farewell."""
        self.ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        """Done when the host stopped; carries the reason if that was a failure."""
        self._failed = self._stopped = False
        self._farewell = spec.farewell
        self._recorder = recorder
        self._traces = recorder is not None and recorder.wants_packets
        self._steps = steps
        self._on_resolve = on_resolve
        self._on_installed = on_installed
        self._most_bytes = self.limits.message_bytes + BATCH_OVERHEAD_BYTES
        self._most_asked = self.limits.unordered_bytes
        self._patience_s = self.limits.follower_delay_us / 1e6
        rights = None if wiring.security is None else wiring.security.permissions
        self._admission = RequestFilter(process, spec, self._most_bytes, rights)
        self._before_forgetting = before_forgetting
        self._coalescer = WakeupCoalescer(coalesce_us)
        self.sink = DeliverySink(
            self.me, process.group, on_deliver, recorder, handed, recorded, recent, self._coalescer.record_delivery
        )
        self._chance = chance or random.Random()
        self._clock = clock
        self._skew = skew
        self._watched = self._traces or steps is not None or skew is not None
        self._now = 0
        self.topology = process.topology
        """The last topology that the process was seen with."""
        self.servers = set(process.topology.servers)
        """Every process that is, or was in this incarnation, a member of some group."""
        self.home = process.group
        """The group of a server; a process that was removed keeps it. None for clients."""
        self.retired_ns: int | None = None
        """When this process, removed from its group, was not needed any more."""
        self._on_topology = on_topology
        self._on_retired = on_retired
        self._running = self._scheduled = self._keeping = False
        self._asked = False
        """Somebody has asked for a message since the last tick."""
        self._inbox: list[Event] = []
        self._requests: list[Message] | None = None
        """What clients have asked for since the last step; it is in the inbox."""
        self._looped: list[tuple[About, str, int, int]] = []
        """Packets from myself to myself that the next step receives, for the trace."""
        self._timers = Timers(self._chance, self._wake)
        self._due = self._timers.due
        self._perform = {
            Send: self._send,
            SendEach: self._send_each,
            Deliver: self._deliver,
            Resolve: self._resolve,
            SetTimer: self._timers.set,
            CancelTimer: self._cancel_timer,
            Persist: self._persist,
            Note: self._note,
        }
        self._crowd: ClientInbox | None = None
        if process.group is not None:
            self._crowd = ClientInbox(self._admission, self._enqueue_requests, self._wake)
        self.network = Network(
            self.me,
            self._store.incarnation,
            cluster,
            spec.name,
            self.codec,
            on_bodies=self._on_bodies,
            on_frame=self._on_frame,
            on_link_reset=self._on_link_reset,
            on_peer_down=self._on_peer_down,
            on_rpc=on_rpc,
            on_lost=partial(record_lost, recorder, self.codec, self.me) if recorder and self._traces else None,
            topology_version=lambda: topology_version(self.process.topology),
            client_inbox=self._crowd,
            chance=self._chance,
            wiring=wiring,
            traces=self._traces,
        )

    # Incarnation

    async def listen(self, address: Address = ("127.0.0.1", 0)) -> Address:
        return await self.network.listen(address)

    def start(self, addresses: Mapping[ProcessId, Address], lazy: bool = False) -> None:
        """Begin this incarnation: the records first, then whatever arrives. `lazy`: dial whom something is sent to."""
        loop = asyncio.get_running_loop()
        self._store.start(
            lambda ticket: loop.call_soon_threadsafe(self._on_durable, ticket),
            lambda error: loop.call_soon_threadsafe(self.fail, error),
        )
        records = tuple(self.codec.decode_record(record) for record in self._store.records())
        self._running = True
        self._inbox.insert(0, Started(records, self._store.incarnation))
        self.network.start(addresses, lazy)
        self._wake()

    def say_farewell(self) -> bool:
        """Tell everybody who is connected that this process leaves (`live/server/leaving.py`); False if there is no way
        to."""
        if not self._running or self.leaving or self._farewell is None:
            return False
        self.leaving = True
        links = self.network.links
        peers = [peer for peer, link in links.items() if link.connection is not None and link.version >= 2]
        self.network.send(tuple(peers), self.codec.encode(self._farewell(self.incarnation)), None)
        self.network.flush(self._read_clock() if self._traces else None)
        return True

    async def stop(self) -> None:
        """Finish the tick, close everything; the process is not told."""
        if self._stopped:
            return
        self._stopped = True
        if self._running:
            self.tick()
            self._flush_deferred()
        self._running = False
        self._timers.stop()
        self.network.give_up()
        await self.network.stop()
        self._store.close()
        if self._steps is not None:
            self._steps.close()
        if self._recorder is not None and not self._failed:
            # Who failed may come back; whoever started it knows at the end.
            self._recorder.record_process(self.me, self.home, self.process.topology.region(self.me), self.retired_ns)
        if not self.ended.done():
            self.ended.set_result(None)

    def fail(self, error: BaseException) -> None:
        """Crash-stop: a process whose step or disk failed takes part in nothing any more."""
        log.error("process %d stops: %s", self.me, error, exc_info=error)
        self._failed = True
        self._running = False
        self.network.abandon()
        if not self.ended.done():
            self.ended.set_exception(error)

    def retire(self, now: int) -> bool:
        """Records that this process, which was removed from its group, is not needed any more; False if known."""
        if self.retired_ns is not None:
            return False
        self.retired_ns = now
        return True

    @property
    def incarnation(self) -> int:
        return self._store.incarnation

    def queues(self) -> dict[str, int]:
        """What waits here, for operators."""
        return {
            "inbox": len(self._inbox),
            "held": len(self._held),
            "appended": self._ticket,
            "durable": self._durable,
        }

    # What reaches the process

    def submit(self, message: Message, wake: bool = True) -> None:
        """The user of this process a-multicasts. `live/client/multicaster.py` is the comfortable way, and records
        it. Who is about to call `tick` need not `wake` it."""
        if len(message.payload) > self._most_bytes:
            raise UsageError(
                f"message {message.id}: payload of {len(message.payload)} bytes;"
                f" expected at most {self._most_bytes} (limits.message_bytes)"
            )
        self._inbox.append(Submit(message))
        self._asked = True
        if wake:
            self._wake()

    def enqueue(self, event: Event) -> None:
        """Give the process an event of another kind (an oracle's word, for example)."""
        self._inbox.append(event)
        self._wake()

    def _on_bodies(self, peer: ProcessId, bodies: list[Body]) -> None:
        if peer in self.servers:
            inbox = self._inbox
            for body in bodies:
                inbox.append(Receive(peer, body))
        else:
            self._admission.check(peer, bodies)
            self._enqueue_requests([body.message for body in bodies])  # type: ignore[attr-defined]
        if not self._scheduled:
            self._wake()

    def _enqueue_requests(self, messages: list[Message]) -> None:
        """Clients ask for these."""
        if self._requests is None:
            self._requests = messages
            self._inbox.append(Requests(messages))
            self._asked = True
        else:
            self._requests += messages

    def _on_frame(self, peer: ProcessId, frame: Frame) -> None:
        """The same from a peer that traces its packets."""
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
        if self._running and not self._scheduled:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self.tick)

    def tick(self) -> None:
        """Take everything that has arrived; whoever has just handed something in may call this to save a turn."""
        self._scheduled = False
        if not self._running:
            return
        try:
            if self._crowd is not None and self._crowd.arrived:
                self._crowd.take()
            for _ in _STEPS:
                if self._inbox or self._due:
                    self._step()
                elif not self._catch_up():
                    break
            while self._catch_up():
                pass
            self.network.flush(self._read_clock() if self._traces else None)
        except Exception as error:
            self.fail(error)
            return
        if self._asked or self.network.full:
            self._asked = False
            self._coalescer.record_request(self._now)
            self._update_backpressure(self.process.unanswered_bytes())
        if self._inbox or self._due:
            self._wake()
        if self.network.later and not self._keeping:
            self._keeping = True
            asyncio.get_running_loop().call_later(self._patience_s, self._flush_deferred)
        self._coalescer.end_tick(self._now, self.process.is_leader)

    def _flush_deferred(self) -> None:
        """Tell those who could wait."""
        self._keeping = False
        self.network.let_go(self._read_clock() if self._traces else None)

    def _update_backpressure(self, burden: int) -> None:
        """Much that clients asked for is not answered, or was not: they wait, or need not wait any more."""
        if burden > self._most_asked or burden <= self._most_asked // 2:
            self.network.fill(burden > self._most_asked)

    def _step(self) -> None:
        now = self._clock()
        if now > self._now:
            self._now = now
        else:
            now = self._now
        events = self._inbox
        self._inbox, self._requests = [], None
        if self._due and type(events[0] if events else None) is not Started:
            # One timer, and first: nothing else in this burst can have cancelled it.
            events.insert(0, Timer(self._due.popleft()))
        process = self.process
        if self._watched:
            effects = self._watched_step(events, now)
        else:
            effects = process.step(events, now)
        self.steps_taken += 1
        self.events_taken += len(events)
        if process.topology is not self.topology:
            effects = [*effects, *self._change_topology()]
        self._execute(effects)

    def _change_topology(self) -> list[Effect]:
        """Follows the process to a new topology, before anything of the step is sent to new members."""
        known, self.topology = self.topology, self.process.topology
        self.servers.update(self.topology.servers)
        return [] if self._on_topology is None else self._on_topology(known, self.topology)

    def _watched_step(self, events: list[Event], now: int) -> list[Effect]:
        """A step of which something is recorded, or whose clock is wrong on purpose."""
        if self._looped:
            self._record_looped(now)
        if self._skew is not None:
            now = self._skew.told(now)
        effects = self.process.step(events, now)
        if self._traces:
            effects = self.process.attribute_to_messages(effects)
        if self._steps is not None:
            self._steps.write(now, events, effects)
        return effects

    def _read_clock(self) -> int:
        """Local time that never goes back, whatever the machine's clock does."""
        now = self._clock()
        if now > self._now:
            self._now = now
        return self._now

    def _record_looped(self, now: int) -> None:
        assert self._recorder is not None
        for about, body, size, sent_ns in self._looped:
            self._recorder.record_packet(about, body, self.me, self.me, size, sent_ns, now)
        self._looped.clear()

    # Effects

    def _send(self, effect: Send) -> None:
        body, me, targets = effect.body, self.me, effect.targets
        if me in targets:
            self._inbox.append(Receive(me, body))
            if self._traces:
                size = len(self.codec.encode(body))
                self._looped.append((effect.about, type(body).__name__, size, self._now))
            if len(targets) == 1:
                return
        part = self.codec.encode(body)
        if effect.deferrable and self._patience_s:
            unknown = self.network.send_unhurried(targets, effect.deferrable, part, effect.about)
        else:
            unknown = self.network.send(targets, part, effect.about)
        for nobody in unknown:
            self.lost_sends += 1
            if self._traces and self._recorder is not None:
                self._recorder.record_packet(effect.about, type(body).__name__, me, nobody, len(part), self._now, None)

    def _send_each(self, effect: SendEach) -> None:
        for send in self.network.send_each(effect):
            self._send(send)

    def _deliver(self, effect: Deliver) -> None:
        self.sink.take(effect, self._now)

    def _resolve(self, effect: Resolve) -> None:
        if self._on_resolve is not None:
            self._on_resolve(effect.message, effect.absent)

    def _persist(self, effect: Persist) -> None:
        if (effect.replaces or effect.after_deliveries) and self._before_forgetting is not None:
            # What the log forgets, nobody can tell again: the trace must have it.
            self._before_forgetting()
        if not self._store.keeps:
            return
        ticket = self._store.append(self.codec.encode_record(effect.record), effect.replaces)
        if ticket:
            self._ticket = ticket

    def _cancel_timer(self, effect: CancelTimer) -> None:
        self._timers.cancel(effect.name)

    def _crowded(self, full: bool) -> None:
        self.network.pause_reading(full)

    def _note(self, effect: Note) -> None:
        if installs(effect):
            self._take_over(int(effect.value or 0))
        elif effect.name == "retired" and self._on_retired is not None:
            self._on_retired(int(effect.value or 0), self._now)
        if self._recorder is not None:
            self._recorder.record_note(self.me, self._now, effect.name, effect.message, effect.value)

    def _take_over(self, position: int) -> None:
        """A snapshot took the place of the deliveries before this position."""
        self.sink.jump(position)
        log.info("process %d installed a snapshot: caught up to position %d", self.me, position)
        if self._on_installed is not None:
            self._on_installed(position)

    def _on_durable(self, ticket: int) -> None:
        """The disk has everything up to this ticket."""
        if not self._running:
            return
        try:
            self._release(ticket)
        except Exception as error:
            self.fail(error)
            return
        self.tick()


_STEPS = range(STEPS_PER_TICK)
