"""A client: one process that multicasts for any number of coroutines, over one connection per server.

    async with connect("cluster.toml") as client:
        receipt = await client.multicast({"orders", "stock"}, b"...")
        async for delivery in client.deliveries("orders"):
            ...

Notebooks and web frameworks, which have no block to stand in, call `await client.open()` and `await client.close()`.

The process that sends requests and retries them is the object that the simulator runs, too; the caller passes its
constructor. Its process id comes from a server (`storage/client_ids.py`), unless it is given.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from weakref import WeakSet

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.live.client.multicaster import Multicaster, find_group
from amcast.live.client.outbox import OpenOutbox, Outbox
from amcast.live.client.position_finder import PositionFinder
from amcast.live.client.service_stub import ServiceStub
from amcast.live.client_batch import Delivery
from amcast.live.errors import RefusedError
from amcast.live.host.host import Host
from amcast.live.limits import Limits
from amcast.live.membership.state_survey import UnansweredDiagnosis
from amcast.live.membership.topology_follower import TopologyFollower, addresses_of, parse_topology
from amcast.live.rpc.client import REFUSED, NoAnswerError, RpcClient
from amcast.live.rpc.messages import AllocateClientId, ClientId, ReleaseClientId
from amcast.live.rpc.subscription import Subscription, check_closing
from amcast.live.storage.store import MemoryStore
from amcast.live.wire.network import Address
from amcast.live.wire.transport import PLAIN, TransportOptions
from amcast.services.declaration import Description, Service, describe_service
from amcast.services.partitioner import HASH, apply_partitioner
from amcast.storage.client_ids import STRIDE
from amcast.trace.recorder import Recorder

log = logging.getLogger("amcast.live")

RELEASE_S = 1.0
"""How long a client that stops tries to return its process id."""


class Client:
    """Multicasts to groups and reads their deliveries: inside `async with`, or between `open` and `close`."""

    def __init__(
        self,
        make_process: Callable[[ProcessId], Process],
        topology: Topology,
        spec: Spec,
        addresses: Mapping[ProcessId, Address],
        *,
        me: ProcessId | None = None,
        incarnation: int = 0,
        cluster: str = "amcast",
        limits: Limits | None = None,
        recorder: Recorder | None = None,
        batches: bool = True,
        connect_s: float = 10.0,
        transport: TransportOptions = PLAIN,
        lazy: bool = False,
        closes: bool = False,
        outbox: Outbox | None = None,
        partitioner: str = HASH,
    ) -> None:
        """`closes`: the cluster is in the real-time setting, so that readers can learn what is closed. `outbox` keeps
        messages with a key, and the process id of the client, over its restarts. `partitioner` places the keys of
        services."""
        self.limits = limits or Limits()
        self._topology = topology
        self._make_process = make_process
        self._spec = spec
        self._addresses = addresses
        self._me = me
        self._incarnation = incarnation
        self._cluster = cluster
        self._recorder = recorder
        self._connect_s = connect_s
        self._transport = transport
        self._lazy = lazy
        """Connect to one server at first, and to others when something must be sent to them."""
        self._closes = closes
        self._partitioner = partitioner
        self._outbox_settings = outbox
        self._outbox: OpenOutbox | None = None
        self._host: Host | None = None
        """While the client is open."""
        self._client_id: ClientId | None = None
        self._issuer: ProcessId = -1
        self._stubs: WeakSet[ServiceStub] = WeakSet()
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._rpc = RpcClient(cluster, addresses, self.limits, transport)
        self.multicaster = Multicaster(recorder, batches=batches)
        self.multicaster.diagnosis = UnansweredDiagnosis(
            self._rpc, lambda: self._topology, spec.claims.genuine == "strict"
        )
        self.multicaster.position_finder = PositionFinder(self._rpc, lambda: self._topology)
        self.multicast = self.multicaster.multicast
        """Orders one message: `await client.multicast({"orders", "stock"}, b"...")`."""
        self.multicast_many = self.multicaster.multicast_many
        """Orders a list of payloads with one receipt: `await client.multicast_many({"orders"}, [b"...", b"..."])`."""
        self.post = self.multicaster.post
        """Submits one message; returns a future of its receipt."""

    @property
    def topology(self) -> Topology:
        """The newest topology that this client knows."""
        return self._topology

    def _follow_topology(self, topology: Topology) -> None:
        self._topology = topology
        self._rpc.follow_topology(topology)

    @property
    def me(self) -> ProcessId:
        """The process id of this client; it has one once it is connected."""
        assert self._me is not None, "a client has its process id when it is connected"
        return self._me

    def deliveries(
        self,
        group: GroupId | str,
        *,
        since: int | None = None,
        after: Delivery | None = None,
        only_closed: bool = False,
        name: str | None = None,
    ) -> Subscription:
        """The deliveries of a group, in its order, each once.

        They start at the group's current position; with `since`, at a position that is still held; with `after`, behind
        a delivery that was read before. With `only_closed` each one comes when it is closed: nothing that is multicast
        from then on precedes it, in any group. That needs a cluster with `order = "real-time"`.

        With a `name` they start behind what the last reader of this name has acknowledged (`acknowledge`), whatever was
        restarted meanwhile; the first time, at the current position.
        """
        known = find_group(self.topology, group)
        check_closing(only_closed, self._closes)
        subscription = Subscription(
            self._rpc, known, self.topology, since=since, after=after, only_closed=only_closed, name=name
        )
        self._subscriptions.add(subscription)
        return subscription

    def service(self, service: type[Service] | Description) -> ServiceStub:
        """Calls a service: `await client.service(Bank).transfer("ann", "bob", 5)`. Each stub is a session."""
        description = service if isinstance(service, Description) else describe_service(service)
        names = self.topology.names_of(self.topology.groups)
        stub = ServiceStub(self, apply_partitioner(description, self._partitioner, names), self._rpc)
        self._stubs.add(stub)
        return stub

    def check_call(self, name: str) -> None:
        """Refuses a command or query that the servers would refuse, before anything is sent."""
        security = self._transport.security
        if security is not None and security.me.kind == "client":
            try:
                security.permissions.check_query(security.me, name)
            except RefusedError as refused:
                raise UsageError(str(refused)) from None

    async def __aenter__(self) -> "Client":
        await self.open()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()

    async def open(self) -> None:
        """Connects to the cluster."""
        if self._host is not None:
            raise UsageError("the client is open; expected to close it before it is opened again")
        loop = asyncio.get_running_loop()
        begin = loop.time()
        first = await self._take_identity()
        assert self._me is not None
        process = self._make_process(self._me)
        process.topology = self._topology
        host = Host(
            process,
            self._spec,
            cluster=self._cluster,
            limits=self.limits,
            store=MemoryStore(self._incarnation),
            recorder=self._recorder,
            on_resolve=self.multicaster.resolve,
            on_topology=lambda known, topology: follower.follow(known, topology),
            wiring=self._transport,
        )
        follower = TopologyFollower(host, on_changed=self._follow_topology)
        self.multicaster.attach(host, first, self._outbox)
        servers = self._topology.servers
        found = {**dict(addresses_of(self._topology, servers)), **self._addresses}
        host.start({server: found[server] for server in servers if server in found}, self._lazy)
        patience_s = max(0.0, self._connect_s - (loop.time() - begin))
        try:
            await self._reach_servers(host, patience_s)
        except BaseException:
            await host.stop()
            await self._release_id()
            raise
        self._host = host
        self.multicaster.resend()

    async def _take_identity(self) -> int:
        """Takes a process id, that of the outbox if there is one, and returns the first sequence number that was not
        used."""
        if self._me is not None:
            return 0
        if self._outbox_settings is not None:
            self._outbox = self._outbox_settings.open(self._cluster)
            if self._outbox.identity is not None:
                known = self._outbox.resume()
                self._me, self._incarnation = known.process, known.incarnation
                return known.reserved
        try:
            issued = await self._allocate_id()
        except BaseException:
            await self._release_id()
            raise
        self._me, self._incarnation = issued.process, issued.incarnation
        self._adopt_topology(issued.topology)
        if self._outbox is None:
            self._client_id = issued
        else:
            self._outbox.begin(issued.process, issued.incarnation, issued.sequence)
        return issued.sequence

    async def _reach_servers(self, host: Host, patience_s: float) -> None:
        """Waits for connections to enough servers to multicast."""
        try:
            if self._lazy:
                await host.network.dial_until_connected(self._preferred_servers(host.process), patience_s)
            else:
                await host.network.wait_quorums(self.topology, patience_s)
        except TimeoutError as error:
            if self._lazy or not self._tolerates_unreachable(host):
                raise CannotTellError(str(error)) from None

    async def close(self) -> None:
        """Disconnects. Messages without a receipt fail as unknown; a client that is not open stays so."""
        host, self._host = self._host, None
        if host is None:
            return
        for subscription in list(self._subscriptions):
            subscription.close()
        for stub in list(self._stubs):
            stub.close()
        await host.stop()
        await self._release_id()
        self.multicaster.close()

    @property
    def host(self) -> Host:
        """The host of the client's process."""
        if self._host is None:
            raise UsageError("not connected; expected `async with` or `open` before the use of a client")
        return self._host

    def _tolerates_unreachable(self, host: Host) -> bool:
        """Whether the protocol continues without all servers that this client cannot reach: it may tolerate the loss of
        a group (A_dt)."""
        missing = frozenset(server for server in self.topology.servers if not host.network.is_connected(server))
        return self._spec.claims.tolerates(self.topology, missing)

    def _preferred_servers(self, process: Process) -> list[ProcessId]:
        """All servers, beginning with those that this client would send requests to."""
        groups = self.topology.groups
        preferred = [
            process.contacts(Message(0, self.me, groups)),
            *(process.contacts(Message(0, self.me, (g,))) for g in groups),
        ]
        return list(dict.fromkeys(server for contacts in (*preferred, self.topology.servers) for server in contacts))

    # Process id

    async def _allocate_id(self) -> ClientId:
        """Requests a process id from one server after the other."""
        servers = [server for server in self._addresses if server < STRIDE]
        random.shuffle(servers)
        failures: dict[ProcessId, str] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(self._connect_s):
                while True:
                    for server in servers:
                        try:
                            reply = await self._rpc.request(server, AllocateClientId())
                        except NoAnswerError as error:
                            failures[server] = str(error)
                            continue
                        if isinstance(reply, ClientId):
                            self._issuer = server
                            return reply
                    await asyncio.sleep(self.limits.reconnect_min_s)
        raise CannotTellError(
            f"no server gave this client a process id within {self._connect_s:g} s:"
            f" {self._summarize_failures(failures)}"
        )

    def _summarize_failures(self, failures: dict[ProcessId, str]) -> str:
        """The failures of servers, with equal ones grouped."""
        addresses_by_failure: dict[str, list[str]] = {}
        for server, text in sorted(failures.items()):
            address = "{}:{}".format(*self._addresses[server])
            addresses_by_failure.setdefault(text.removeprefix(f"process {server} at {address} "), []).append(address)
        if not addresses_by_failure:
            return "no server answers"
        running = "; is the cluster running?" if all(text.endswith(REFUSED) for text in addresses_by_failure) else ""
        return "; ".join(f"{', '.join(addresses)} {text}" for text, addresses in addresses_by_failure.items()) + running

    def _adopt_topology(self, encoded: bytes) -> None:
        """Adopts the topology of a server if it is newer than that of cluster.toml."""
        topology = parse_topology(encoded) if encoded else None
        if topology is not None and topology.configuration > self._topology.configuration:
            self._follow_topology(topology)

    async def _release_id(self) -> None:
        """Returns the process id for another client, unless a message of this one is unanswered, or its outbox keeps
        the id."""
        if self._outbox is not None:
            self._outbox.close()
            self._outbox = self._me = None
        client_id, self._client_id = self._client_id, None
        if client_id is None:
            return
        self._me = None
        if self.multicaster.outstanding:
            return
        release = ReleaseClientId(
            client_id.process, client_id.secret, client_id.incarnation + 1, self.multicaster.sequence
        )
        with suppress(TimeoutError, NoAnswerError):
            async with asyncio.timeout(RELEASE_S):
                await self._rpc.notify(self._issuer, release)
