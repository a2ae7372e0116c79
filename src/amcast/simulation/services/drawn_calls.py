"""Calls that are drawn from the types of a service's arguments: the load of a search that was given none."""

import inspect
from collections.abc import Callable, Coroutine
from random import Random
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Union, get_args, get_origin, get_type_hints

from amcast.kernel.errors import UsageError
from amcast.services.declaration import Description, Operation
from amcast.services.errors import CommandError
from amcast.simulation.services.run import Main, SimulatedClient, SimulatedCluster

KEYS: Final = tuple(f"key-{number}" for number in range(6))
WORDS: Final = ("a", "b", "c", "some text")
CALL_KEYS: Final = tuple(f"call-{number}" for number in range(4))
KEY_RATE: Final = 0.15
"""How often a command has a key, which another call may have had: repeated, or used wrongly."""
CALLS: Final = 5
"""Calls of each client."""


def make_load(description: Description) -> Main:
    """A load in which every client calls random commands and queries with random arguments."""
    for operation in description.operations.values():
        draw_arguments(operation, Random(0))

    async def call_often(client: SimulatedClient) -> None:
        stub = client.service(description)
        for _ in range(CALLS):
            await call_at_random(stub, description, client.random)

    return make_client_load(call_often)


async def call_at_random(stub: Any, description: Description, random: Random) -> None:
    """Calls a random command or query with random arguments. An exception is a result like any other, unless a rule of
    services is broken."""
    operation = random.choice(list(description.operations.values()))
    key = None
    if operation.kind == "command" and random.random() < KEY_RATE:
        key = random.choice(CALL_KEYS)
    try:
        await getattr(stub, operation.name)(*draw_arguments(operation, random), call_key=key)
    except CommandError as error:
        if error.kind == UsageError.__name__:
            raise
    except UsageError:
        if key is None:
            raise


def make_client_load(function: Callable[[SimulatedClient], Coroutine[Any, Any, None]]) -> Main:
    """A load in which every client runs a coroutine function at the same time."""
    if not inspect.iscoroutinefunction(function):
        raise UsageError(f"load = {function!r}; expected an `async def` that takes a client")

    async def main(cluster: SimulatedCluster) -> None:
        await cluster.gather(*(function(client) for client in cluster.clients))

    return main


def draw_arguments(operation: Operation, random: Random) -> list[Any]:
    """Arguments of a call, by their types."""
    hints = get_type_hints(operation.arguments, include_extras=True)
    return [_draw(hints[name], random, f"{operation.name}: {name}") for name in operation.arguments.__struct_fields__]


def _draw(hint: Any, random: Random, where: str) -> Any:
    origin = get_origin(hint)
    if origin is Annotated:
        return random.choice(KEYS)
    if origin in (Union, UnionType):
        return _draw(random.choice(get_args(hint)), random, where)
    if origin is list:
        return [_draw(get_args(hint)[0], random, where) for _ in range(random.randint(0, 3))]
    if origin is tuple and Ellipsis not in get_args(hint):
        return tuple(_draw(inner, random, where) for inner in get_args(hint))
    if hint is str:
        return random.choice(WORDS)
    if hint is int:
        return random.randint(0, 10)
    if hint is float:
        return float(random.randint(0, 10))
    if hint is bool:
        return random.random() < 0.5
    if hint is bytes:
        return random.randbytes(4)
    if hint in (None, NoneType):
        return None
    raise UsageError(f"{where} has the type {hint}, and no values are known for it; expected --load MODULE:FUNCTION")
