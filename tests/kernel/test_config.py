"""Errors in settings name the field, the value and what was expected."""

from typing import Literal

import pytest
from msgspec import field

from amcast.kernel.config import Config, parse_config
from amcast.kernel.errors import UsageError

Colour = Literal["red", "green"]


class Inner(Config, frozen=True):
    """A nested table."""

    colour: Colour = "red"
    level: Literal[1, 2] | None = None


class Outer(Config, frozen=True):
    """The table of a whole file."""

    name: str
    inner: Inner = Inner()
    tables: dict[str, Inner] = field(default_factory=dict)
    row: tuple[Inner, ...] = ()
    pair: tuple[int, Colour] | None = None
    either: str | Inner = ""


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"name": 3}, "name: Expected `str`, got `int`"),
        ({}, "Object missing required field `name`"),
        ({"inner": {"colour": "blue"}}, "inner.colour: Invalid enum value 'blue'; expected one of: green, red"),
        ({"inner": {"level": 3}}, "inner.level: Invalid enum value 3; expected one of: 1, 2"),
        ({"tables": {"a": {"colour": "x"}}}, "tables[...].colour: Invalid enum value 'x'; expected one of: green, red"),
        ({"row": [{}, {"colour": "x"}]}, "row[1].colour: Invalid enum value 'x'; expected one of: green, red"),
        ({"pair": [1, "x"]}, "pair[1]: Invalid enum value 'x'; expected one of: green, red"),
        ({"either": {"hue": 1}}, "either: Object contains unknown field `hue`; expected one of: colour, level"),
        ({"hue": 1}, "Object contains unknown field `hue`; expected one of: name, inner, tables, row, pair, either"),
    ],
)
def test_error_names_the_field_and_its_choices(values: dict[str, object], expected: str) -> None:
    complete = values if "name" in values or not values else {"name": "x", **values}
    with pytest.raises(UsageError) as caught:
        parse_config(Outer, complete, "file.toml")
    assert str(caught.value) == f"file.toml: {expected}"
