"""Callers of a service in a tortured cluster: each runs the load of the user again and again, and every call and its
outcome go into a history of Jepsen's shape.

The values that groups exchange are multicast by nodes, which are killed before they can tell the trace. Observers read
them, and `exchanged` has them: they are multicasts, of an unknown time.
"""

import random
import time
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import MessageId
from amcast.live.client.client import Client
from amcast.live.client.service_stub import ServiceStub
from amcast.live.client_batch import Delivery
from amcast.live.torture.session import Acknowledgement, TortureSession
from amcast.services.calls import Outcome
from amcast.services.declaration import Description, Service
from amcast.services.errors import CommandError
from amcast.services.messages import Value, decode_payload


class RecordedStub:
    """A stub of a service whose calls are recorded."""

    def __init__(self, session: "ServiceSession", stub: ServiceStub) -> None:
        self._session = session
        self._stub = stub

    def __getattr__(self, name: str) -> Callable[..., Coroutine[Any, Any, Outcome]]:
        if name.startswith("__"):
            raise AttributeError(name)
        method = getattr(self._stub, name)

        async def call(*arguments: Any, **named: Any) -> Outcome:
            return await self._session.record(name, [*arguments, *named.values()], method(*arguments, **named))

        return call


class ServiceCaller:
    """What a load is given: the same as in the simulator."""

    def __init__(self, session: "ServiceSession", client: Client, number: int, rng: random.Random) -> None:
        self._session = session
        self._client = client
        self._stubs: dict[Any, RecordedStub] = {}
        self.number = number
        self.random = rng
        topology = client.topology
        self.groups = topology.names_of(topology.groups)
        """The names of all groups."""

    def service(self, service: type[Service] | Description) -> RecordedStub:
        """Calls a service, over one session of this caller."""
        key = service.service if isinstance(service, Description) else service
        if key not in self._stubs:
            self._stubs[key] = RecordedStub(self._session, self._client.service(service))
        return self._stubs[key]


ServiceLoad = Callable[[ServiceCaller], Coroutine[Any, Any, None]]


@dataclass
class ServiceSession(TortureSession):
    """What callers of a service were told during one run."""

    load: ServiceLoad | None = None
    history: list[dict[str, Any]] = field(default_factory=list)
    violations: list[str] = field(default_factory=list)
    """What loads did not expect."""
    exchanged: dict[MessageId, Delivery] = field(default_factory=dict)
    """The messages with values that groups exchange."""

    async def _use(self, client: Client, number: int) -> None:
        assert self.load is not None
        caller = ServiceCaller(self, client, number, random.Random(f"{self.seed} client {number}"))
        while not self._stopping:
            try:
                await self.load(caller)
            except CannotTellError:
                self.unanswered += 1
            except Exception as error:
                self.violations.append(f"the load of client {number} ended with {type(error).__name__}: {error}")
                return

    def _see(self, delivery: Delivery) -> None:
        if isinstance(decode_payload(delivery.payload), Value):
            self.exchanged[delivery.message] = delivery

    async def record(self, name: str, arguments: list[Any], call: Coroutine[Any, Any, Outcome]) -> Outcome:
        """Awaits a call, and records when it began and what became of it."""
        process = len(self.history)
        self._add("invoke", process, name, arguments)
        try:
            outcome = await call
        except CommandError as error:
            self._add("fail", process, name, str(error))
            raise
        except CannotTellError as error:
            self._add("info", process, name, str(error))
            raise
        self._add("ok", process, name, dict(outcome.by_group))
        now = time.perf_counter_ns()
        self.longest_gap_ns = max(self.longest_gap_ns, now - self._last_ns)
        self._last_ns = now
        self.acknowledged.append(Acknowledgement(name, -1, ()))
        return outcome

    def _add(self, kind: str, process: int, name: str, value: Any) -> None:
        self.history.append(
            {"type": kind, "process": process, "f": name, "value": value, "time": time.perf_counter_ns()}
        )
