"""A simulated run of a service: coroutines of a user call it, and the fuzzer decides what happens when.

    async def main(cluster):
        bank = cluster.service(Bank)
        await bank.deposit("ann", 10)

Coroutines run without an event loop: whatever they await is a call, or another coroutine of the run. A call is
multicast by a client of the simulated cluster, with retries and receipts as in a live one; its results are read from
random replicas that are up, so that some come late and some from followers. Clocks of callers jump. The values that
groups exchange are multicast by one more client per group, for every replica that owes them.
"""

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Sequence
from random import Random
from typing import Any, Final

from amcast.kernel.config import MILLISECOND
from amcast.kernel.errors import Error, UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id
from amcast.kernel.message import Message
from amcast.services.calls import Call, CallSession, Outcome, Reading
from amcast.services.declaration import Description, Service, describe_service
from amcast.services.errors import CommandError, ServiceFailedError
from amcast.services.messages import Consistency, encode_payload
from amcast.simulation.inputs.load import ClientLoad
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.services.readings import SimulatedReading, SimulatedReadings
from amcast.simulation.services.replicas import ServiceBrokenError, SimulatedReplicas
from amcast.simulation.world.world import World

GIVE_RATE: Final = 0.2
READ_RATE: Final = 0.3
READING_RATE: Final = 0.8
"""How often a linearizable query of one group is read without ordering."""
SKEW_NS: Final = 10_000 * MILLISECOND
STORY_EVENTS: Final = 12
"""Events at the end of a failed run that its story tells."""

Main = Callable[["SimulatedCluster"], Coroutine[Any, Any, None]]


class SimulatedCall:
    """A call of a coroutine, until its outcome is known."""

    def __init__(self, number: int, call: Call, session: CallSession, client: ProcessId, label: str) -> None:
        self.number = number
        self.call = call
        self.session = session
        self.client = client
        self.label = label
        self.has_receipt = False

    @property
    def is_done(self) -> bool:
        return self.has_receipt and not self.call.missing

    def __await__(self) -> Generator["SimulatedCall", None, Outcome]:
        while not self.is_done:
            yield self
        return self.call.make_outcome()


class SimulatedTask:
    """A coroutine of the run."""

    def __init__(self, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._coroutine = coroutine
        self._awaited: SimulatedCall | SimulatedReading | SimulatedTask | None = None
        self.is_done = False
        self.error: Exception | None = None
        self.value: Any = None

    def advance(self) -> bool:
        """Runs the coroutine as far as it can; returns whether it moved."""
        if self.is_done or (self._awaited is not None and not self._awaited.is_done):
            return False
        try:
            awaited = self._coroutine.send(None)
        except StopIteration as stop:
            self.is_done, self.value = True, stop.value
        except Exception as error:
            self.is_done, self.error = True, error
        else:
            if not isinstance(awaited, SimulatedCall | SimulatedReading | SimulatedTask):
                raise UsageError(
                    f"a simulated coroutine awaits {awaited!r}; expected calls of the service and cluster.gather only"
                )
            self._awaited = awaited
        return True

    def __await__(self) -> Generator["SimulatedTask", None, Any]:
        while not self.is_done:
            yield self
        if self.error is not None:
            raise self.error
        return self.value

    def close(self) -> None:
        self._coroutine.close()


class SimulatedStub:
    """Calls a service in a simulated run; as the stub of a live client."""

    def __init__(self, run: "ServiceRun", session: CallSession, client: ProcessId) -> None:
        self._run = run
        self._session = session
        self._client = client

    def __getattr__(self, name: str) -> Callable[..., SimulatedCall | SimulatedReading]:
        if name.startswith("__"):
            raise AttributeError(name)
        self._session.description.find(name)

        def call(
            *arguments: Any,
            groups: Sequence[str] | None = None,
            consistency: Consistency = "linearizable",
            max_age_s: float | None = None,
            call_key: str | None = None,
            **named: Any,
        ) -> SimulatedCall | SimulatedReading:
            session = self._session
            reading = None
            if call_key is None:
                reading = session.make_reading(name, arguments, named, consistency, max_age_s, groups)
            if reading is not None and self._run.draws_reading(consistency):
                return self._run.read(reading, session, self._client, arguments, named)
            return self._run.call(session, self._client, name, arguments, named, groups, call_key)

        return call


class SimulatedClient:
    """One client of the simulated cluster."""

    def __init__(self, run: "ServiceRun", number: int, process: ProcessId, random: Random) -> None:
        self._run = run
        self._process = process
        self.number = number
        self.groups = run.groups
        """The names of all groups."""
        self.random = random
        """Draws of this client: the same in every run of a seed."""

    def service(self, service: type[Service] | Description) -> SimulatedStub:
        """Calls a service; each stub is a session of its own."""
        return self._run.open_session(service, self._process)


class SimulatedCluster:
    """What a simulated coroutine is given: clients, and the services as they are at the end."""

    def __init__(self, run: "ServiceRun", clients: Sequence[SimulatedClient], random: Random) -> None:
        self._run = run
        self.clients = tuple(clients)
        self.random = random
        """Draws of the coroutine: the same in every run of a seed."""

    def service(self, service: type[Service] | Description) -> SimulatedStub:
        """Calls a service, as the first client."""
        return self.clients[0].service(service)

    async def gather(self, *coroutines: Coroutine[Any, Any, Any]) -> list[Any]:
        """Runs coroutines at the same time; returns their results."""
        tasks = [self._run.start(one) for one in coroutines]
        return [await task for task in tasks]


class ServiceRun(ClientLoad):
    """The coroutines, calls and services of one seed; the load of a fuzzer."""

    def __init__(self, world: World, main: Main, seed: int, callers: int) -> None:
        """`callers` is the number of clients that coroutines use; one more per group multicasts exchanged values."""
        self._world = world
        topology = world.topology
        self._names: dict[GroupId, str] = {group: f"group-{group}" for group in topology.groups}
        super().__init__(topology, lambda _: ((), 0, 0), 0, 1)
        self._seed = seed
        self._random = make_stream(seed, "service")
        clients = [client for client in topology.clients if client != world.operator]
        self._givers = dict(zip(topology.groups, clients[callers:], strict=True))
        self._queues: dict[ProcessId, deque[tuple[tuple[str, ...], bytes, SimulatedCall | str]]] = {
            client: deque() for client in clients
        }
        """What clients multicast next: destinations, payload, and the call; or, of an exchanged value, the group that
        is told when the others have it ("": none)."""
        self._exchanged: dict[MessageId, tuple[ProcessId, str, bytes]] = {}
        self._sequences = dict.fromkeys(clients, 0)
        self._calls: dict[MessageId, SimulatedCall] = {}
        self._open: list[SimulatedCall] = []
        self._sessions = 0
        self._replicas: SimulatedReplicas | None = None
        self._description: Description | None = None
        self._readings = SimulatedReadings(world, self._random)
        self.history: list[dict[str, Any]] = []
        """Begins and ends of calls, as lines of a history; each call is a process of its own."""
        self.answered = 0
        """Calls with an outcome."""
        self.failure: str | None = None
        self._tasks: list[SimulatedTask] = []
        simulated = [
            SimulatedClient(self, number, process, make_stream(seed, "client", number))
            for number, process in enumerate(clients[:callers])
        ]
        self.start(main(SimulatedCluster(self, simulated, make_stream(seed, "main"))))

    # For coroutines

    @property
    def groups(self) -> tuple[str, ...]:
        """The names of all groups."""
        return tuple(self._names.values())

    def start(self, coroutine: Coroutine[Any, Any, Any]) -> SimulatedTask:
        """Starts a coroutine."""
        task = SimulatedTask(coroutine)
        self._tasks.append(task)
        return task

    def open_session(self, service: type[Service] | Description, client: ProcessId) -> SimulatedStub:
        """Makes a stub. All stubs of a run call the same service."""
        description = service if isinstance(service, Description) else describe_service(service)
        if self._description is None:
            self._description = description
            random = make_stream(self._seed, "replicas")
            self._replicas = SimulatedReplicas(self._world, description, self._names, random)
        elif description.digest != self._description.digest:
            raise UsageError(
                f"service = {description.name}; expected {self._description.name}, which the replicas of this run have"
            )
        self._sessions += 1
        return SimulatedStub(self, CallSession(description, tuple(self._names.values()), self._sessions), client)

    def call(
        self,
        session: CallSession,
        client: ProcessId,
        name: str,
        arguments: Sequence[Any],
        named: dict[str, Any],
        groups: Sequence[str] | None,
        key: str | None = None,
    ) -> SimulatedCall:
        """Begins a call: it is multicast when the fuzzer decides so."""
        now_ns = max(0, self._world.now + self._random.randint(-SKEW_NS, SKEW_NS))
        call = session.make(name, arguments, named, now_ns, groups, key)
        label = self._record_begin(name, arguments, named)
        pending = SimulatedCall(len(self.history) - 1, call, session, client, label)
        self._queues[client].append((call.destinations, call.payload, pending))
        self._open.append(pending)
        self._note(f"client {client} calls {label} to {' and '.join(call.destinations)}")
        return pending

    def draws_reading(self, consistency: Consistency) -> bool:
        """Whether a query is read from replicas; linearizable ones are ordered at times, as live ones are when a
        replica refuses them, and always where the protocol does not help."""
        if not any(process.is_readable for process in self._world.processes.values()):
            return consistency == "group"
        return consistency != "linearizable" or self._random.random() < READING_RATE

    def read(
        self,
        reading: Reading,
        session: CallSession,
        client: ProcessId,
        arguments: Sequence[Any],
        named: dict[str, Any],
    ) -> SimulatedReading:
        """Begins a query that is not ordered."""
        label = self._record_begin(reading.operation.name, arguments, named)
        pending = SimulatedReading(len(self.history) - 1, reading, session, client, label)
        self._readings.open.append(pending)
        self._note(f"client {client} reads {label} at {' and '.join(reading.destinations)}")
        return pending

    def _record_begin(self, name: str, arguments: Sequence[Any], named: dict[str, Any]) -> str:
        given = [*arguments, *named.values()]
        self.history.append({"type": "invoke", "process": len(self.history), "f": name, "value": given})
        return f"{name}({', '.join(map(repr, given))})"

    # For the fuzzer

    @property
    def remaining(self) -> int:
        """1 while something is to be done, 0 afterwards."""
        is_over = self.failure is not None or (
            all(task.is_done for task in self._tasks)
            and not self._open
            and not self._readings.open
            and not any(self._queues.values())
            and (self._replicas is None or self._replicas.are_idle())
        )
        return 0 if is_over else 1

    @remaining.setter
    def remaining(self, value: int) -> None:
        """Coroutines decide how much is called."""

    def list_ready(self, world: World) -> list[ProcessId]:
        processes, paused = world.processes, world.paused
        return [one for one, queue in self._queues.items() if queue and one in processes and one not in paused]

    def next_message(self, sender: ProcessId) -> tuple[Message, int]:
        destinations, payload, call = self._queues[sender].popleft()
        assert self._replicas is not None
        id = message_id(sender, self._sequences[sender])
        self._sequences[sender] += 1
        self._replicas.payloads[id] = destinations, payload
        if isinstance(call, SimulatedCall):
            self._calls[id] = call
        elif call:
            self._exchanged[id] = sender, call, payload
        groups = tuple(group for group, name in self._names.items() if name in destinations)
        return Message(id, sender, groups, b""), 0

    def collect_done(self, world: World) -> list[ProcessId]:
        for id in world.resolved:
            call = self._calls.pop(id, None)
            if call is not None:
                call.has_receipt = True
            elif id in self._exchanged:
                giver, group, payload = self._exchanged.pop(id)
                if self._replicas is not None and self._replicas.owe(group, payload):
                    self._queues[giver].append(((group,), payload, ""))
        world.resolved.clear()
        world.completed.clear()
        return []

    def follow(self) -> bool:
        """Lets services and coroutines go on after a step of the world; returns whether anything did."""
        try:
            moved = self._replicas is not None and self._follow_replicas(self._replicas)
            return self._run_tasks() or moved
        except (ServiceBrokenError, ServiceFailedError) as error:
            self._fail(str(error))
            return True

    def _follow_replicas(self, replicas: SimulatedReplicas) -> bool:
        moved = replicas.follow()
        for group, owed in replicas.take_owed(GIVE_RATE):
            self._queues[self._givers[group]].append((owed.destinations, encode_payload(owed.value), owed.value.group))
            moved = True
        for call in self._open:
            for name in call.call.missing:
                members = replicas.list_members(name)
                if members and self._random.random() < READ_RATE:
                    executor = self._random.choice(members).executor
                    result = executor.result(*call.call.command.id)
                    if result is not None:
                        call.call.results[name] = result
                        moved = True
        for call in [call for call in self._open if call.is_done]:
            self._open.remove(call)
            call.session.close(call.call)
            call.session.see(call.call)
            self._record_end(call, call.call)
            moved = True
        for reading in self._readings.follow(replicas):
            self._record_end(reading, reading.reading)
            moved = True
        return moved

    def _record_end(self, pending: SimulatedCall | SimulatedReading, call: Call | Reading) -> None:
        try:
            value: Any = dict(call.make_outcome().by_group)
        except (CommandError, UsageError) as error:
            value = str(error)
        self.history.append({"type": "ok", "process": pending.number, "f": call.operation.name, "value": value})
        self.answered += 1
        self._note(f"client {pending.client} has the outcome of {pending.label}")

    def _run_tasks(self) -> bool:
        moved = True
        ever = False
        while moved:
            moved = False
            for task in list(self._tasks):
                moved |= task.advance()
                if task.is_done and isinstance(task.error, Exception) and task is self._tasks[0]:
                    self._fail(_describe_error(task.error))
                    return True
            ever |= moved
        return ever

    # The end

    def list_services(self) -> dict[str, Any]:
        """One service of each group, in the state that all its replicas have reached."""
        if self._replicas is None:
            return {}
        furthest = {
            name: max(self._replicas.list_members(name), key=lambda one: one.position, default=None)
            for name in self._names.values()
        }
        return {name: one.executor.service for name, one in furthest.items() if one is not None}

    def digest(self) -> str:
        """A digest of all states that replicas have had."""
        return "" if self._replicas is None else self._replicas.digest()

    def tell(self, sentence: str) -> str:
        """A failure with what happened before it."""
        events = [] if self._replicas is None else self._replicas.events[-STORY_EVENTS:]
        return "\n  ".join([sentence, *(["before that:", *(f"- {event}" for event in events)] if events else [])])

    def describe_unfinished(self) -> str:
        """What did not happen although everything healed."""
        replicas = {} if self._replicas is None else self._replicas.replicas
        waiting = [one.executor.describe_waiting() for one in replicas.values()]
        labels = [call.label for call in self._open[:3]] + [reading.label for reading in self._readings.open[:3]]
        sentences = [f"{label} has no outcome" for label in labels]
        return "; ".join([*sentences, *sorted({one for one in waiting if one})]) or "a coroutine waits for ever"

    def close(self) -> None:
        """Ends coroutines that wait."""
        for task in self._tasks:
            task.close()
        if self._replicas is not None:
            self._replicas.close()

    def _fail(self, sentence: str) -> None:
        self.failure = self.tell(sentence)
        self._world.violations.append(self.failure)

    def _note(self, event: str) -> None:
        if self._replicas is not None:
            self._replicas.events.append(event)


def _describe_error(error: Exception) -> str:
    if isinstance(error, CommandError | Error):
        return f"the coroutine ended with {type(error).__name__}: {error}"
    return f"the coroutine raised {type(error).__name__}: {error}"
