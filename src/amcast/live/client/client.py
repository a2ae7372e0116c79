"""A client: one process that multicasts for any number of coroutines, over one connection per server.

    async with connect("cluster.toml") as client:
        receipt = await client.multicast({"orders", "stock"}, b"...")
        async for delivery in client.deliveries("orders"):
            ...

The process that asks, waits and asks again is handed in: it is the object that the simulator runs. Its number comes
from a server (`live/storage/client_ids.py`), unless it was given one.
"""

import asyncio
import logging
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import TracebackType
from weakref import WeakSet

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.process import Process
from amcast.kernel.spec import Spec
from amcast.kernel.topology import Topology
from amcast.live.client.multicaster import Multicaster, find_group
from amcast.live.client_batch import Delivery
from amcast.live.host.host import Host
from amcast.live.limits import Limits
from amcast.live.membership.state_survey import UnansweredDiagnosis
from amcast.live.membership.topology_follower import TopologyFollower, addresses_of, parse_topology
from amcast.live.rpc.client import REFUSED, NoAnswerError, RpcClient
from amcast.live.rpc.server import AllocateClientId, ClientId, ReleaseClientId
from amcast.live.rpc.subscription import Subscription
from amcast.live.storage.client_ids import STRIDE
from amcast.live.storage.store import MemoryStore
from amcast.live.wire.network import Address
from amcast.live.wire.transport import PLAIN, TransportOptions
from amcast.trace.recorder import Recorder

log = logging.getLogger("amcast.live")

RELEASE_S = 1.0
"""How long a client that ends tries to give its number back."""


class Client:
    """Connects when entered, hangs up when left."""

    def __init__(
        self,
        make: Callable[[ProcessId], Process],
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
        wiring: TransportOptions = PLAIN,
        lazy: bool = False,
    ) -> None:
        self.limits = limits or Limits()
        self._topology = topology
        self._make = make
        self._spec = spec
        self._addresses = addresses
        self._me = me
        self._incarnation = incarnation
        self._cluster = cluster
        self._recorder = recorder
        self._connect_s = connect_s
        self._wiring = wiring
        self._lazy = lazy
        """Talk to few servers: connect to one, and to others when something must be sent to them."""
        self._client_id: ClientId | None = None
        self._issuer: ProcessId = -1
        self._subscriptions: WeakSet[Subscription] = WeakSet()
        self._rpc = RpcClient(cluster, addresses, self.limits, wiring)
        self.multicaster = Multicaster(recorder, batches=batches)
        self.multicaster.diagnosis = UnansweredDiagnosis(
            self._rpc, lambda: self._topology, spec.claims.genuine == "strict"
        )
        self.multicast = self.multicaster.multicast
        """Order one message: `await client.multicast({"orders", "stock"}, b"...")`."""
        self.post = self.multicaster.post
        """Hand one over and get its receipt later."""

    @property
    def topology(self) -> Topology:
        """Who is there, as far as this client knows."""
        return self._topology

    def _follow_topology(self, topology: Topology) -> None:
        self._topology = topology
        self._rpc.follow_topology(topology)

    @property
    def me(self) -> ProcessId:
        """The number of this client, when it has connected."""
        assert self._me is not None, "a client has its number when it has connected"
        return self._me

    def deliveries(
        self, group: GroupId | str, *, since: int | None = None, after: Delivery | None = None
    ) -> Subscription:
        """What a group delivers, in its order, each message once.

        From now on; or from a position on that is still kept; or behind a delivery that was read before.
        """
        known = find_group(self.topology, group)
        subscription = Subscription(self._rpc, known, self.topology.members(known), since=since, after=after)
        self._subscriptions.add(subscription)
        return subscription

    async def __aenter__(self) -> "Client":
        loop = asyncio.get_running_loop()
        begin = loop.time()
        first = 0
        if self._me is None:
            issued = self._client_id = await self._allocate_id()
            self._me, self._incarnation, first = issued.process, issued.incarnation, issued.sequence
            self._adopt_topology(issued.topology)
        process = self._make(self._me)
        process.topology = self._topology
        host = self.host = Host(
            process,
            self._spec,
            cluster=self._cluster,
            limits=self.limits,
            store=MemoryStore(self._incarnation),
            recorder=self._recorder,
            on_resolve=self.multicaster.resolve,
            on_topology=lambda known, topology: follower.follow(known, topology),
            wiring=self._wiring,
        )
        follower = TopologyFollower(host, on_changed=self._follow_topology)
        self.multicaster.attach(host, first)
        servers = self._topology.servers
        found = {**dict(addresses_of(self._topology, servers)), **self._addresses}
        host.start({server: found[server] for server in servers if server in found}, self._lazy)
        patience_s = max(0.0, self._connect_s - (loop.time() - begin))
        try:
            if self._lazy:
                await host.network.dial_until_connected(self._preferred_servers(host.process), patience_s)
            else:
                await host.network.wait_quorums(self.topology, patience_s)
        except TimeoutError as error:
            if self._lazy or not self._tolerates_unreachable(host):
                await host.stop()
                await self._release_id()
                raise CannotTellError(str(error)) from None
        return self

    def _tolerates_unreachable(self, host: Host) -> bool:
        """Whether the protocol goes on without all whom this client cannot reach: a whole group may be lost (A_dt)."""
        missing = frozenset(server for server in self.topology.servers if not host.network.is_connected(server))
        return self._spec.claims.tolerates(self.topology, missing)

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for subscription in list(self._subscriptions):
            subscription.close()
        await self.host.stop()
        await self._release_id()
        self.multicaster.close()

    def _preferred_servers(self, process: Process) -> list[ProcessId]:
        """Servers, those first that this client would ask."""
        groups = self.topology.groups
        asked = [
            process.contacts(Message(0, self.me, groups)),
            *(process.contacts(Message(0, self.me, (g,))) for g in groups),
        ]
        return list(dict.fromkeys(server for contacts in (*asked, self.topology.servers) for server in contacts))

    # The number

    async def _allocate_id(self) -> ClientId:
        """Ask one server after the other for a number."""
        servers = [server for server in self._addresses if server < STRIDE]
        random.shuffle(servers)
        said: dict[ProcessId, str] = {}
        with suppress(TimeoutError):
            async with asyncio.timeout(self._connect_s):
                while True:
                    for server in servers:
                        try:
                            answer = await self._rpc.request(server, AllocateClientId())
                        except NoAnswerError as error:
                            said[server] = str(error)
                            continue
                        if isinstance(answer, ClientId):
                            self._issuer = server
                            return answer
                    await asyncio.sleep(self.limits.reconnect_min_s)
        raise CannotTellError(
            f"no server gave this client a number within {self._connect_s:g} s: {self._summarize_failures(said)}"
        )

    def _summarize_failures(self, said: dict[ProcessId, str]) -> str:
        """What servers said, those together who said the same."""
        where: dict[str, list[str]] = {}
        for server, text in sorted(said.items()):
            address = "{}:{}".format(*self._addresses[server])
            where.setdefault(text.removeprefix(f"process {server} at {address} "), []).append(address)
        if not where:
            return "none answers"
        running = "; is the cluster running?" if all(text.endswith(REFUSED) for text in where) else ""
        return "; ".join(f"{', '.join(addresses)} {text}" for text, addresses in where.items()) + running

    def _adopt_topology(self, told: bytes) -> None:
        """Members may have changed since this client's configuration was written."""
        topology = parse_topology(told) if told else None
        if topology is not None and topology.configuration > self._topology.configuration:
            self._follow_topology(topology)

    async def _release_id(self) -> None:
        """Somebody else may go on with my number, unless something of mine is unanswered."""
        issued, self._client_id = self._client_id, None
        if issued is None:
            return
        self._me = None
        if self.multicaster.outstanding:
            return
        done = ReleaseClientId(issued.process, issued.secret, issued.incarnation + 1, self.multicaster.sequence)
        with suppress(TimeoutError, NoAnswerError):
            async with asyncio.timeout(RELEASE_S):
                await self._rpc.notify(self._issuer, done)
