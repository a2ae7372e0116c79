"""Settings and options as structs: frozen, validated when they are built, with errors that name the field."""

from collections.abc import Mapping
from typing import Any, ClassVar, Final, TypeVar

import msgspec
from msgspec import inspect

from amcast.kernel.errors import UsageError

MILLISECOND: Final = 1_000_000
"""Nanoseconds in one millisecond. Every duration and time whose name ends in `_ns` counts nanoseconds."""

SearchValues = Mapping[str, tuple[Any, ...]]
"""By option, values to draw from."""


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Base of options and settings. Subclasses add fields with defaults and validate them in `__post_init__`; unknown
    fields are rejected."""

    search_values: ClassVar[SearchValues] = {}
    """By option: values that a search draws in place of the default. They are small limits, with which a short run
    truncates, checkpoints and transfers as a long one does, and the other choices where an option is one of several."""


C = TypeVar("C", bound=msgspec.Struct)


def parse_config(kind: type[C], values: dict[str, Any], where: str) -> C:
    """Builds a struct from plain data. A UsageError names the place, the field and what was expected."""
    try:
        return msgspec.convert(values, kind, strict=True)
    except msgspec.ValidationError as error:
        raise UsageError(f"{where}: {describe_error(error, kind)}") from None


def describe_error(error: Exception, kind: Any = None) -> str:
    """The text of a msgspec error with the path in front: "field.name: Expected `int`, got `str`". Given the `kind`
    of the struct, it also lists the choices where the value must be one of a few."""
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
    """The types that msgspec accepts at a path. It consists of `.field`, `[3]` for an array and `[...]` for a table."""
    types = _expand_union(inspect.type_info(kind))
    for step in filter(None, place.replace("...", "").replace("[", ".[").split(".")):
        types = [option for one in types for inner in _types_inside(one, step) for option in _expand_union(inner)]
    return types


def _expand_union(one: inspect.Type) -> list[inspect.Type]:
    return list(one.types) if isinstance(one, inspect.UnionType) else [one]


def _types_inside(one: inspect.Type, step: str) -> list[inspect.Type]:
    """The types that one step of a path leads to."""
    if not step.startswith("["):
        return [field.type for field in getattr(one, "fields", ()) if field.encode_name == step]
    if isinstance(one, inspect.TupleType):
        return list(one.item_types)
    return [getattr(one, name) for name in ("value_type", "item_type") if hasattr(one, name)]
