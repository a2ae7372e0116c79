"""The state of a service: its annotated attributes, as a snapshot in pieces.

A field that is a dictionary, a list or a set is cut into pieces of about PIECE_BYTES, so that nobody who writes, sends
or reads a snapshot needs memory for all of it.

Attributes are annotated in the class body, or where `__init__` assigns them (`self.accounts: dict[str, int] = {}`).
Dictionaries keep their order in a snapshot, because a command may see it. Sets have none: they are written sorted, so
that equal states have equal bytes.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from itertools import chain, islice
from typing import Any, ClassVar, Final, Literal, get_args, get_origin, get_type_hints

import msgspec

from amcast.kernel.errors import UsageError
from amcast.services.errors import ServiceFailedError

_encoder: Final = msgspec.msgpack.Encoder()
_part_decoder: Final = msgspec.msgpack.Decoder(tuple[str, msgspec.Raw])
OWN_METHODS: Final = ("snapshot", "restore")
PIECE_BYTES: Final = 256 * 1024
"""Of a piece, about."""
FIRST_ITEMS: Final = 16
"""Items in the first piece of a field; later ones have as many more, or fewer, as PIECE_BYTES suggests."""
MAX_GROWTH: Final = 4
Form = Literal["fields", "bytes", "pieces"]
"""What the pieces of a snapshot are: fields; one `bytes` that a service gave, cut; or pieces that it gave."""


def find_fields(service: type) -> dict[str, Any]:
    """The annotated attributes of a service and their types."""
    given = [name for name in OWN_METHODS if callable(getattr(service, name, None))]
    if len(given) == 1:
        raise UsageError(f"{service.__name__} has {given[0]} alone; expected both snapshot and restore, or neither")
    fields: dict[str, Any] = {}
    for base in reversed(service.__mro__[:-1]):
        own_names = inspect.get_annotations(base)
        hints = get_type_hints(base, include_extras=True) if own_names else {}
        _check_defaults(service, base, hints)
        fields |= {name: hint for name, hint in hints.items() if name in own_names and not _is_of_class(hint)}
        if "__init__" in base.__dict__:
            fields |= _find_assigned(base, base.__dict__["__init__"])
    return fields


def _check_defaults(service: type, base: type, hints: Mapping[str, Any]) -> None:
    """Refuses an attribute of the class body that all instances would share, and no snapshot would have."""
    for name, hint in hints.items():
        value = vars(base).get(name)
        if isinstance(value, dict | list | set | bytearray) and not _is_of_class(hint):
            raise UsageError(
                f"{service.__name__}.{name} = {value!r} in the class body is one object for all instances, and no"
                f" snapshot has it; expected self.{name}: {_show_type(hint)} = {value!r} in __init__"
            )


def _show_type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) and not get_args(hint) else str(hint)


def _is_of_class(hint: Any) -> bool:
    """Whether an annotation says that the attribute is one of the class, and no state."""
    return hint is ClassVar or get_origin(hint) is ClassVar


def _find_assigned(service: type, initialize: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of assignments to `self` in `__init__`, which Python does not keep at run time."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(initialize)))
    except (OSError, TypeError, SyntaxError):
        return {}
    found = {}
    for node in ast.walk(tree):
        target = getattr(node, "target", None)
        if isinstance(node, ast.AnnAssign) and isinstance(target, ast.Attribute):
            try:
                names = {**vars(inspect.getmodule(service)), **initialize.__globals__}
                found[target.attr] = eval(ast.unparse(node.annotation), names)
            except (NameError, AttributeError, SyntaxError, TypeError) as error:
                raise UsageError(
                    f"{service.__name__}.{target.attr}: the annotation {ast.unparse(node.annotation)!r} cannot be"
                    f" evaluated ({error}); expected a type that the module defines or imports"
                ) from None
    return found


class FieldCodec:
    """Encodes and replaces the state of instances of one service."""

    def __init__(self, service: type, fields: dict[str, Any]) -> None:
        self._service = service
        self._has_own = callable(getattr(service, "snapshot", None))
        self._cut = {name: _find_cut(hint) for name, hint in fields.items()}
        self._sorted = {name for name, hint in fields.items() if _mentions_set(hint)}
        try:
            self._decoders = {name: msgspec.msgpack.Decoder(hint) for name, hint in fields.items()}
        except TypeError as error:
            raise UsageError(
                f"{service.__name__}: {error}; expected fields of types that msgspec encodes, or own snapshot and"
                f" restore"
            ) from None

    def check(self, instance: object) -> None:
        """Refuses an instance with attributes that a snapshot would lose."""
        lost = [] if self._has_own else sorted(vars(instance).keys() - self._decoders.keys())
        if lost:
            raise UsageError(
                f"{self._service.__name__}.{lost[0]} has no annotation, and a snapshot would lose it; expected"
                f" `self.{lost[0]}: TYPE = ...` in __init__, or own snapshot and restore"
            )

    def encode(self, instance: Any) -> tuple[Form, Iterator[bytes]]:
        """The state of an instance in pieces; equal states have equal pieces. The first piece is made at once, the
        others when they are drawn."""
        self.check(instance)
        if not self._has_own:
            form: Form = "fields"
            pieces = self._encode_fields(vars(instance))
        else:
            state = instance.snapshot()
            form = "bytes" if isinstance(state, bytes | bytearray | memoryview) else "pieces"
            pieces = _cut(bytes(state)) if form == "bytes" else self._check_pieces(state)
        return form, chain(list(islice(pieces, 1)), pieces)

    def _check_pieces(self, state: Any) -> Iterator[bytes]:
        for piece in state:
            if not isinstance(piece, bytes | bytearray | memoryview):
                raise ServiceFailedError(
                    f"{self._service.__name__}.snapshot gave a piece of type {type(piece).__name__}; expected bytes"
                )
            yield bytes(piece)

    def _encode_fields(self, values: Mapping[str, Any]) -> Iterator[bytes]:
        for name in self._decoders:
            if name in values:
                yield from self._encode_field(name, values[name])

    def _encode_field(self, name: str, value: Any) -> Iterator[bytes]:
        kind = self._cut[name]
        if kind is None or not isinstance(value, kind):
            yield self._encode_part(name, value)
            return
        items: Iterator[Any] = iter(
            value.items() if isinstance(value, dict) else _sort_sets(value) if kind is set else value
        )
        count, is_first = FIRST_ITEMS, True
        while (part := list(islice(items, count))) or is_first:
            is_first = False
            piece = self._encode_part(name, dict(part) if kind is dict else part)
            yield piece
            count = max(1, min(MAX_GROWTH * count, count * PIECE_BYTES // len(piece)))

    def _encode_part(self, name: str, part: Any) -> bytes:
        try:
            return _encoder.encode((name, _sort_sets(part) if name in self._sorted else part))
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ServiceFailedError(f"{self._service.__name__}: its state cannot be encoded: {error}") from None

    def decode(self, instance: Any, form: Form, pieces: Iterator[bytes]) -> None:
        """Replaces the state of an instance, piece by piece."""
        if form == "fields":
            self._clear(instance)
            for piece in pieces:
                name, data = _part_decoder.decode(piece)
                self._add_part(vars(instance), name, data)
        elif not self._has_own:
            raise ServiceFailedError(f"{self._service.__name__} has no restore; expected the class that made the state")
        elif form == "bytes":
            instance.restore(b"".join(pieces))
        else:
            instance.restore(pieces)

    def decode_whole(self, instance: Any, state: bytes) -> None:
        """Replaces the state of an instance by one that an earlier version of amcast wrote in one piece."""
        if self._has_own:
            instance.restore(state)
            return
        self._clear(instance)
        for name, data in msgspec.msgpack.decode(state).items():
            self._add_part(vars(instance), name, data)

    def _clear(self, instance: Any) -> None:
        for name in self._decoders:
            vars(instance).pop(name, None)

    def _add_part(self, values: dict[str, Any], name: str, data: bytes | msgspec.Raw) -> None:
        try:
            part = self._decoders[name].decode(data)
        except msgspec.ValidationError as error:
            raise ServiceFailedError(
                f"{self._service.__name__}.{name}: the state is not of the annotated type: {error}"
            ) from None
        known = values.get(name)
        if known is None:
            values[name] = part
        elif isinstance(known, list):
            known.extend(part)
        else:
            known.update(part)


def _cut(state: bytes) -> Iterator[bytes]:
    for start in range(0, len(state), PIECE_BYTES):
        yield state[start : start + PIECE_BYTES]


def _find_cut(hint: Any) -> type[dict[Any, Any]] | type[list[Any]] | type[set[Any]] | None:
    """How a field of a type is cut; None if it is not."""
    kind = get_origin(hint) or hint
    return kind if kind in (dict, list, set) else None


def _mentions_set(hint: Any) -> bool:
    origin = get_origin(hint) or hint
    return origin in (set, frozenset) or any(_mentions_set(inner) for inner in get_args(hint))


def _sort_sets(value: Any) -> Any:
    """The value with a sorted list in the place of each set."""
    if isinstance(value, set | frozenset):
        return sorted((_sort_sets(item) for item in value), key=_encoder.encode)
    if isinstance(value, dict):
        return {key: _sort_sets(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_sort_sets(item) for item in value]
    return value
