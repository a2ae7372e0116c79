"""A total order in memory, and executors of several groups and replicas that follow it at their own pace."""

from random import Random
from typing import Any

from amcast.services.calls import Call, CallSession, Outcome
from amcast.services.declaration import Description, Service, describe_service
from amcast.services.executor import Executor
from amcast.services.messages import encode_payload

GROUPS = ("north", "south", "west")
REPLICAS = 3


class OrderedGroups:
    """Replicas of a service; messages are ordered when they are multicast."""

    def __init__(self, service: type[Service], seed: int, replicas: int = REPLICAS, checks: bool = True) -> None:
        self.random = Random(seed)
        self.description: Description = describe_service(service)
        self.order: dict[str, list[tuple[tuple[str, ...], bytes]]] = {group: [] for group in GROUPS}
        self.checks = checks
        self.executors = {(group, number): self._make(group) for group in GROUPS for number in range(replicas)}
        self.next = dict.fromkeys(self.executors, 0)
        self.saved = {key: (0, executor.snapshot()) for key, executor in self.executors.items()}
        self.session = CallSession(self.description, GROUPS, 1)
        self.calls: list[Call] = []

    def _make(self, group: str) -> Executor:
        return Executor(self.description, group, GROUPS, checks=self.checks)

    def call(self, name: str, *arguments: Any, **named: Any) -> Call:
        call = self.session.make(name, arguments, named, now_ns=len(self.calls))
        self.multicast(call.destinations, call.payload)
        self.calls.append(call)
        return call

    def multicast(self, destinations: tuple[str, ...], payload: bytes) -> None:
        for group in destinations:
            self.order[group].append((destinations, payload))

    def advance(self, key: tuple[str, int]) -> bool:
        """Delivers the next payload at a replica; or multicasts a value that it owes. False if there is neither."""
        executor, position = self.executors[key], self.next[key]
        if position < len(self.order[key[0]]):
            destinations, payload = self.order[key[0]][position]
            self.next[key] = position + 1
            executor.deliver(position, destinations, payload)
            return True
        for owed in list(executor.owed.values())[:1]:
            self.multicast((*owed.destinations, key[0]), encode_payload(owed.value))
            return True
        return False

    def restart(self, key: tuple[str, int]) -> None:
        """Replaces a replica by one that begins with its last saved state."""
        self.next[key], snapshot = self.saved[key]
        self.executors[key] = self._make(key[0])
        self.executors[key].restore(snapshot, 0)

    def step(self, faults: bool) -> bool:
        """Lets a random replica do something; False if nothing was to be done."""
        key = self.random.choice(list(self.executors))
        chance = self.random.random()
        if faults and chance < 0.05:
            self.restart(key)
        elif faults and chance < 0.15:
            self.saved[key] = (self.next[key], self.executors[key].snapshot())
        return self.advance(key)

    def settle(self) -> None:
        """Lets everything happen that can."""
        advanced = True
        while advanced:
            advanced = False
            for key in self.executors:
                advanced |= self.advance(key)

    def outcome(self, call: Call) -> Outcome:
        for group in call.missing:
            result = self.executors[group, 0].result(1, call.request)
            assert result is not None, f"group {group} has no result of {call}"
            call.results[group] = result
        return call.make_outcome()

    def digests(self, group: str) -> set[str]:
        return {executor.digest() for (name, _), executor in self.executors.items() if name == group}
