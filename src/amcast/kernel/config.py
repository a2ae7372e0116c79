"""The base of every configuration: frozen, validated when built, unknown fields refused by name."""

from typing import Any, TypeVar

import msgspec

from amcast.kernel.errors import WrongUse


class Config(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A protocol's options. Subclasses add fields with defaults and check them in `__post_init__`."""


C = TypeVar("C", bound=msgspec.Struct)


def configured(kind: type[C], values: dict[str, Any], where: str) -> C:
    """Build a configuration from plain data; a mistake names the place, the field and what was expected."""
    try:
        return msgspec.convert(values, kind, strict=True)
    except msgspec.ValidationError as error:
        raise WrongUse(f"{where}: {explained(error)}") from None


def explained(error: Exception) -> str:
    """msgspec's complaint with the path in front: "field.name: Expected `int`, got `str`"."""
    text = str(error)
    head, separator, path = text.rpartition(" - at `$")
    if not separator:
        return text
    return f"{path.rstrip('`').lstrip('.') or 'value'}: {head}"
