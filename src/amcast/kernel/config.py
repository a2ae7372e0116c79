"""The base of every configuration: frozen, validated when built, unknown fields refused by name."""

from typing import Any, TypeVar

import msgspec
from msgspec import inspect

from amcast.kernel.errors import UsageError


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A protocol's options. Subclasses add fields with defaults and check them in `__post_init__`."""


C = TypeVar("C", bound=msgspec.Struct)


def parse_config(kind: type[C], values: dict[str, Any], where: str) -> C:
    """Build a configuration from plain data; a mistake names the place, the field and what was expected."""
    try:
        return msgspec.convert(values, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {describe_error(error, kind)}") from None


def describe_error(error: Exception, kind: Any = None) -> str:
    """msgspec's complaint with the path in front: "field.name: Expected `int`, got `str`"; if it is known what
    `kind` of thing was read, also what may stand there instead, where that is one of a few."""
    text = str(error)
    head, separator, path = text.rpartition(" - at `$")
    place = path.rstrip("`").lstrip(".")
    if not separator:
        head, place = text, ""
    choices: list[str] = []
    if kind is not None and head.startswith("Invalid enum value"):
        choices = [str(value) for one in _types_at(kind, place) for value in getattr(one, "values", ())]
    elif kind is not None and head.startswith("Object contains unknown field"):
        choices = [field.encode_name for one in _types_at(kind, place) for field in getattr(one, "fields", ())]
    expected = f"; expected one of: {', '.join(choices)}" if choices else ""
    if not separator:
        return f"{head}{expected}"
    return f"{place or 'value'}: {head}{expected}"


def _types_at(kind: Any, place: str) -> list[inspect.Type]:
    """What may stand at a place, as msgspec sees it. The path is made of `.field`, `[3]` in an array and `[...]` in a
    table."""
    found = _alternatives(inspect.type_info(kind))
    for step in filter(None, place.replace("...", "").replace("[", ".[").split(".")):
        found = [option for one in found for inner in _inside(one, step) for option in _alternatives(inner)]
    return found


def _alternatives(one: inspect.Type) -> list[inspect.Type]:
    return list(one.types) if isinstance(one, inspect.UnionType) else [one]


def _inside(one: inspect.Type, step: str) -> list[inspect.Type]:
    """The types behind one step of a path."""
    if not step.startswith("["):
        return [field.type for field in getattr(one, "fields", ()) if field.encode_name == step]
    if isinstance(one, inspect.TupleType):
        return list(one.item_types)
    return [getattr(one, name) for name in ("value_type", "item_type") if hasattr(one, name)]
