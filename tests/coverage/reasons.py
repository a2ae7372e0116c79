"""Why fuzzing never executes some lines: each reason names functions, and the test or command that executes them."""

import tomllib
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final, NamedTuple

FILE: Final = Path(__file__).parent / "reasons.toml"


class Reason(NamedTuple):
    """A reason for lines that match all three patterns."""

    module: str
    function: str
    text: str
    reason: str


def read_reasons() -> list[Reason]:
    tables = tomllib.loads(FILE.read_text())["reason"]
    return [
        Reason(module, function, table.get("line", "*"), table["because"])
        for table in tables
        for module in table["modules"]
        for function in table["functions"]
    ]


def find_reason(reasons: list[Reason], module: str, function: str, text: str) -> str | None:
    """The first reason for a line; None if there is none."""
    for reason in reasons:
        if (
            fnmatchcase(module, reason.module)
            and fnmatchcase(function, reason.function)
            and fnmatchcase(text, reason.text)
        ):
            return reason.reason
    return None
