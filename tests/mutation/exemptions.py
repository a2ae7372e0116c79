"""Mutants that no search needs to find, each with its argument (`exemptions.toml`)."""

import tomllib
from pathlib import Path
from typing import Final

FILE: Final = Path(__file__).with_name("exemptions.toml")
KINDS: Final = ("equivalent", "speed", "diagnostic")
"""equivalent: no run can differ; speed: only the number of packets, steps or retained bytes differs; diagnostic: only
what operators read differs."""


def read_exemptions() -> dict[str, tuple[str, str]]:
    """By id of the mutant: kind and argument."""
    rows = tomllib.loads(FILE.read_text())["exempt"]
    return {row["mutant"]: (row["kind"], row["argument"]) for row in rows}
