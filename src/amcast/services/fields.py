"""The state of a service: its annotated attributes, as a snapshot.

Attributes are annotated in the class body, or where `__init__` assigns them (`self.accounts: dict[str, int] = {}`).
Dictionaries keep their order in a snapshot, because a command may see it. Sets have none: they are written sorted, so
that equal states have equal bytes.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable
from typing import Any, Final, get_args, get_origin, get_type_hints

import msgspec

from amcast.kernel.errors import UsageError
from amcast.services.errors import ServiceFailedError

_encoder: Final = msgspec.msgpack.Encoder()
OWN_METHODS: Final = ("snapshot", "restore")


def find_fields(service: type) -> dict[str, Any]:
    """The annotated attributes of a service and their types."""
    given = [name for name in OWN_METHODS if callable(getattr(service, name, None))]
    if len(given) == 1:
        raise UsageError(f"{service.__name__} has {given[0]} alone; expected both snapshot and restore, or neither")
    fields: dict[str, Any] = {}
    for base in reversed(service.__mro__[:-1]):
        own_names = inspect.get_annotations(base)
        hints = get_type_hints(base, include_extras=True) if own_names else {}
        fields |= {name: hint for name, hint in hints.items() if name in own_names}
        if "__init__" in base.__dict__:
            fields |= _find_assigned(base, base.__dict__["__init__"])
    return fields


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

    def encode(self, instance: Any) -> bytes:
        """The state of an instance; equal states have equal bytes."""
        self.check(instance)
        if self._has_own:
            state: bytes = instance.snapshot()
            return state
        values = vars(instance)
        fields = {
            name: _sort_sets(values[name]) if name in self._sorted else values[name]
            for name in self._decoders
            if name in values
        }
        try:
            return _encoder.encode({name: _encoder.encode(value) for name, value in fields.items()})
        except (TypeError, ValueError, OverflowError, RecursionError) as error:
            raise ServiceFailedError(f"{self._service.__name__}: its state cannot be encoded: {error}") from None

    def decode(self, instance: Any, state: bytes) -> None:
        """Replaces the state of an instance."""
        if self._has_own:
            instance.restore(state)
            return
        values = vars(instance)
        for name in self._decoders:
            values.pop(name, None)
        for name, data in msgspec.msgpack.decode(state).items():
            try:
                values[name] = self._decoders[name].decode(data)
            except msgspec.ValidationError as error:
                raise ServiceFailedError(
                    f"{self._service.__name__}.{name}: the state is not of the annotated type: {error}"
                ) from None


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
