"""The panels of the help: commands by purpose."""

from typing import Final

RUN: Final = "Run a cluster"
OPERATE: Final = "Operate a cluster"
TRACES: Final = "Check and measure traces"
SEARCH: Final = "Search for bugs"
LABORATORY: Final = "Laboratory"
