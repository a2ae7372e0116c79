"""What a user writes: a class below `Service` with commands and queries; and its description, read from annotations.

    class Bank(amcast.Service):
        def __init__(self, group: str) -> None:
            self.accounts: dict[str, int] = {}

        @amcast.command
        def deposit(self, at: amcast.At, account: amcast.Key, amount: int) -> int:
            self.accounts[account] = self.accounts.get(account, 0) + amount
            return self.accounts[account]

`describe_service` refuses what cannot work before anything runs: arguments without a type, coroutines, attributes
without an annotation (a snapshot would lose them), and the most common sources of replicas that differ: clocks, random
numbers, and loops over sets (`services/determinism.py`).
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from random import Random
from types import UnionType
from typing import (
    Annotated,
    Any,
    ClassVar,
    Final,
    Literal,
    NamedTuple,
    TypeVar,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

import msgspec

from amcast.kernel.config import describe_error
from amcast.kernel.errors import UsageError
from amcast.services.determinism import find_nondeterminism
from amcast.services.fields import find_fields

KEY_MARK: Final = "amcast.Key"
Key = Annotated[str, KEY_MARK]
"""An argument that says where a command goes: to the group that owns the key."""
F = TypeVar("F", bound=Callable[..., Any])
KIND: Final = "__amcast_kind__"
CALL_OPTIONS: Final = ("call_key", "consistency", "groups", "max_age_s", "timeout_s")
"""What a caller may say beside the arguments."""
DISK_METHODS: Final = ("open", "save", "snapshot", "restore")
"""What a service with files of its own must have."""
SECOND_NS: Final = 1_000_000_000
SAMPLE_KEYS: Final = tuple(f"{name}{number}" for name in ("", "key-", "user-", "account ") for number in range(8))
"""Keys whose places are part of a service's digest."""


class At:
    """Where and when a command is executed: the same at every replica of a group."""

    __slots__ = ("_arguments", "_call", "_operation", "_partition", "_random", "group", "groups", "now_ns", "position")

    def __init__(
        self,
        group: str,
        groups: tuple[str, ...],
        position: int,
        now_ns: int,
        call: tuple[int, int],
        operation: "Operation",
        arguments: msgspec.Struct,
        partition: Callable[[str], str],
    ) -> None:
        self.group = group
        """The group that executes."""
        self.groups = groups
        """The destination groups of the command."""
        self.position = position
        """The command's place in the order of the group."""
        self.now_ns = now_ns
        """The clock of the server that ordered the call, raised so that it never falls within a group. (Protocols
        without gateways carry the caller's clock.)"""
        self._call = call
        self._random: Random | None = None
        self._operation = operation
        self._arguments = arguments
        self._partition = partition

    @property
    def now(self) -> float:
        """`now_ns` in seconds."""
        return self.now_ns / SECOND_NS

    @property
    def random(self) -> Random:
        """Random numbers, seeded by the call."""
        if self._random is None:
            self._random = Random("{}:{}".format(*self._call))
        return self._random

    def owns(self, key: str) -> bool:
        """Whether this group owns a key, which must be an argument that is annotated `Key`."""
        keys = self._operation.keys_of(self._arguments)
        if key not in keys:
            raise UsageError(
                f"owns({key!r}): the call has no argument of type amcast.Key with this value; expected one of"
                f" {sorted(keys)}, or the annotation amcast.Key, without which the command does not go there"
            )
        return self._partition(key) == self.group


def command(function: F) -> F:
    """Marks a method as a command: ordered, executed once by every replica of its groups, with a result."""
    setattr(function, KIND, "command")
    return function


def query(function: F) -> F:
    """Marks a method as a query: it reads state and changes nothing."""
    setattr(function, KIND, "query")
    return function


class Service:
    """Base of services. A replica has one instance, made with the name of its group; its methods are deterministic."""

    remembered_keys = 100_000
    """Calls with a key that a group remembers, the latest ones; a class may say another number."""
    remembered_s = 86_400.0
    """For so many seconds of the group's time (`at.now`); a class may say another time."""

    def __init__(self, group: str) -> None:
        """Makes the first state of a group."""

    @classmethod
    def partition(cls, key: str, groups: Sequence[str]) -> str:
        """The group that owns a key: by default a hash, the same everywhere and for ever."""
        return groups[int.from_bytes(blake2b(key.encode(), digest_size=8).digest(), "big") % len(groups)]


class Applied(NamedTuple):
    """How far a service that keeps its state in files has come, and what its replica must know to go on from there."""

    position: int
    """Every delivery of the group before this position is in the state, and none behind it."""
    record: bytes
    """Sessions, results and waiting commands: the service keeps it as it is, and gives it back."""


class DiskService(Service):
    """Base of services that keep their state in files of their own: a database, or their own format.

    Such a service promises four things, on which exactly-once execution rests:

    - `save` makes everything that commands have changed since the last `save` durable, together with what it is given:
      both or neither, whenever the process or the machine dies.
    - `open` finds the state as of the last `save` that succeeded; what commands have changed since is gone.
    - `snapshot` gives the state of its call, whenever its pieces are drawn, and equal pieces for equal states. It is
      called right after `save`.
    - Exceptions that come from the disk, and not from the state, are of the classes in `failures`: they stop the
      replica. Any other exception is a result, the same at every replica.

    Commands and queries are called by the event loop's thread; `restore` and the pieces of `snapshot` by another one.
    """

    failures: ClassVar[tuple[type[Exception], ...]] = (OSError,)
    """Exceptions of the disk."""
    save_deliveries: ClassVar[int | None] = None
    """So many deliveries are between two calls of `save`, at most; None: what is executed again after a crash is
    bounded by bytes alone."""

    def open(self, folder: Path) -> Applied | None:
        """Opens the state in a folder; returns what the last `save` was given, None if there was none."""
        raise NotImplementedError

    def save(self, applied: Applied) -> None:
        """Makes the state and `applied` durable."""
        raise NotImplementedError

    def snapshot(self) -> Iterator[bytes]:
        """The pieces of the state, for another replica."""
        raise NotImplementedError

    def restore(self, pieces: Iterator[bytes]) -> None:
        """Fills the state, which is open and empty, with the pieces of a snapshot."""
        raise NotImplementedError

    def close(self) -> None:
        """Closes the files."""


@dataclass(frozen=True)
class Operation:
    """A command or query."""

    name: str
    kind: Literal["command", "query"]
    takes_at: bool
    signature: inspect.Signature
    """Without `self` and `at`."""
    arguments: type[msgspec.Struct]
    keys: tuple[str, ...]
    """Arguments that are, or contain, keys."""
    result: Any
    """The type of the result."""
    decode: Callable[[bytes], Any]
    """Decodes arguments."""
    yields: bool = False
    """Whether groups exchange values for it."""

    def bind(self, arguments: Sequence[Any], named: Mapping[str, Any]) -> msgspec.Struct:
        """Checks a caller's arguments; a UsageError names the argument, the value and what was expected."""
        try:
            bound = self.signature.bind(*arguments, **named)
        except TypeError as error:
            raise UsageError(f"{self.name}: {error}; expected {self.name}{self.show_signature()}") from None
        bound.apply_defaults()
        values = list(bound.arguments.values())
        try:
            return msgspec.convert(values, self.arguments, strict=True)
        except (msgspec.ValidationError, TypeError) as error:
            place, _, text = describe_error(error).partition(": ")
            number, _, inside = place.removeprefix("[").partition("]")
            where = f"{self.name}{self.show_signature()}"
            if not number.isdigit():
                raise UsageError(f"{self.name}: {error}; expected {where}") from None
            name = list(bound.arguments)[int(number)]
            raise UsageError(
                f"{self.name}: {name}{inside} = {values[int(number)]!r}: {text}; expected {where}"
            ) from None

    def parse(self, texts: Sequence[str]) -> list[Any]:
        """Arguments from a command line: a text where the type is one, else JSON."""
        names = list(self.arguments.__struct_fields__)
        if len(texts) > len(names):
            raise UsageError(f"{self.name}: {len(texts)} arguments; expected {self.name}{self.show_signature()}")
        hints = get_type_hints(self.arguments, include_extras=False)
        values: list[Any] = []
        for name, text in zip(names, texts, strict=False):
            try:
                values.append(text if hints[name] is str else msgspec.json.decode(text, type=hints[name]))
            except msgspec.MsgspecError as error:
                shown = f"{self.name}{self.show_signature()}"
                is_typed = isinstance(error, msgspec.ValidationError)
                why = describe_error(error) if is_typed else "not JSON, which types other than str are written in"
                raise UsageError(f"{self.name}: {name} = {text!r}: {why}; expected {shown}") from None
        return values

    def show_signature(self) -> str:
        """The signature as users write it."""
        return str(self.signature).replace(f"typing.Annotated[str, {KEY_MARK!r}]", KEY_MARK)

    def keys_of(self, arguments: msgspec.Struct) -> list[str]:
        """The keys among the arguments, in order."""
        found: list[str] = []
        for name in self.keys:
            value = getattr(arguments, name)
            found += [value] if isinstance(value, str) else [] if value is None else list(value)
        return found


@dataclass(frozen=True)
class Description:
    """A service class as read from its annotations."""

    service: type[Service]
    operations: dict[str, Operation]
    fields: dict[str, Any]
    """The annotated attributes: the state."""
    digest: str
    """Of names and types: callers and replicas with different digests do not understand each other."""
    partition: Callable[[str, Sequence[str]], str]
    """The group that owns a key."""
    partitioner: str = "hash"
    """What cluster.toml names instead of the class (`services/partitioner.py`)."""

    @property
    def name(self) -> str:
        return self.service.__name__

    def find(self, name: str) -> Operation:
        """The command or query of this name."""
        if name not in self.operations:
            raise UsageError(f"{self.name}.{name} does not exist; expected one of: {', '.join(self.operations)}")
        return self.operations[name]


def describe_service(service: type[Service]) -> Description:
    """Reads the commands, queries and fields of a service; refuses what cannot work."""
    if not (isinstance(service, type) and issubclass(service, Service)):
        raise UsageError(f"service = {service!r}; expected a class below amcast.Service")
    operations = {name: _describe_operation(service, name, method) for name, method in _list_methods(service)}
    if not operations:
        raise UsageError(f"{service.__name__} has no command; expected a method with @amcast.command")
    fields = find_fields(service)
    has_files = issubclass(service, DiskService)
    for name in (*operations, *(() if has_files else ("__init__",))):
        sentence = find_nondeterminism(service, name, fields, has_files)
        if sentence:
            raise UsageError(f"{service.__name__}.{name} {sentence}")
    if issubclass(service, DiskService):
        _check_disk_service(service, operations)
    keys, seconds = service.remembered_keys, service.remembered_s
    if type(keys) is not int or keys < 1:
        raise UsageError(f"{service.__name__}.remembered_keys = {keys!r}; expected a number from 1 on")
    if type(seconds) not in (int, float) or not seconds > 0:
        raise UsageError(f"{service.__name__}.remembered_s = {seconds!r}; expected seconds above 0")
    text = [f"{service.__name__} {keys} {seconds}", *(f"{name}: {kind}" for name, kind in sorted(fields.items()))]
    text += [f"{one.kind} {name}{one.show_signature()}" for name, one in sorted(operations.items())]
    text.append(_describe_partition(service))
    digest = blake2b("\n".join(text).encode(), digest_size=8).hexdigest()
    return Description(service, operations, fields, digest, service.partition)


def _check_disk_service(service: type[DiskService], operations: Mapping[str, Operation]) -> None:
    for name in DISK_METHODS:
        if name in operations:
            raise UsageError(f"{service.__name__}.{name} is a {operations[name].kind}; expected another name for it")
        if getattr(service, name) is getattr(DiskService, name):
            raise UsageError(f"{service.__name__} has no {name}; expected {', '.join(DISK_METHODS)}")
    count = service.save_deliveries
    if count is not None and (type(count) is not int or count < 1):
        raise UsageError(f"{service.__name__}.save_deliveries = {count!r}; expected a number from 1 on, or None")


def _describe_partition(service: type[Service]) -> str:
    """Where the service places some keys: two that place keys differently do not understand each other."""
    placed = []
    for count in (2, 3, 7):
        groups = tuple(f"group-{number}" for number in range(count))
        for key in SAMPLE_KEYS:
            try:
                placed.append(service.partition(key, groups))
            except Exception as error:  # a class may refuse keys that are none of its own
                placed.append(type(error).__name__)
    return " ".join(map(str, placed))


def _list_methods(service: type[Service]) -> Iterator[tuple[str, Callable[..., Any]]]:
    for name, method in inspect.getmembers(service, callable):
        if getattr(method, KIND, None) is not None:
            yield name, method


def _describe_operation(service: type[Service], name: str, method: Callable[..., Any]) -> Operation:
    where = f"{service.__name__}.{name}"
    kind = getattr(method, KIND)
    if inspect.iscoroutinefunction(method) or inspect.isasyncgenfunction(method):
        raise UsageError(f"{where} is an `async def`; expected a plain method: execution waits for nothing but `yield`")
    if kind == "query" and inspect.isgeneratorfunction(method):
        raise UsageError(f"{where} yields; expected a query that returns: only commands exchange values between groups")
    hints = get_type_hints(method, include_extras=True)
    parameters = list(inspect.signature(method).parameters.values())[1:]
    takes_at = bool(parameters) and hints.get(parameters[0].name) is At
    if kind == "command" and not takes_at:
        raise UsageError(f"{where}: the first argument is not `at`; expected (self, at: amcast.At, ...)")
    parameters = parameters[1:] if takes_at else parameters
    for parameter in parameters:
        if parameter.name in CALL_OPTIONS:
            raise UsageError(f"{where}: argument {parameter.name}; expected another name: calls have this option")
        if parameter.name not in hints:
            raise UsageError(f"{where}: argument {parameter.name} has no type; expected an annotation, such as int")
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            raise UsageError(f"{where}: argument *{parameter.name}; expected arguments with a type each")
    arguments = msgspec.defstruct(
        f"{service.__name__}_{name}", [(one.name, hints[one.name]) for one in parameters], array_like=True, frozen=True
    )
    keys = tuple(one.name for one in parameters if _holds_keys(hints[one.name], f"{where}: argument {one.name}"))
    decoder = msgspec.msgpack.Decoder(arguments)
    signature = inspect.Signature(parameters)
    result = _result_type(method, hints)
    yields = inspect.isgeneratorfunction(method)
    return Operation(name, kind, takes_at, signature, arguments, keys, result, decoder.decode, yields)


def _holds_keys(hint: Any, where: str) -> bool:
    """Whether an annotation is `Key`, `Key | None`, or a list of keys; keys in other places are refused."""
    origin, inner = get_origin(hint), get_args(hint)
    if origin is Annotated:
        return KEY_MARK in inner[1:]
    holds = [one for one in inner if one is not Ellipsis and _holds_keys(one, where)]
    if holds and origin not in (list, Union, UnionType):
        raise UsageError(f"{where} has keys inside of {hint}; expected amcast.Key, or list[amcast.Key]")
    return bool(holds)


def _result_type(method: Callable[..., Any], hints: dict[str, Any]) -> Any:
    """The type of the result; Any if it is not annotated. That of a command that yields is in its Generator."""
    hint = hints.get("return", Any)
    if inspect.isgeneratorfunction(method):
        inner = get_args(hint)
        return inner[2] if len(inner) == 3 else Any
    return hint
