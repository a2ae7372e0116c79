"""Flags that several commands share, and how they are laid over a plan file."""

import re
import tomllib
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from amcast.kernel.errors import UsageError
from amcast.kernel.spec import FAULTS
from amcast.simulation.inputs.plan import read_plan

ProtocolOption = Annotated[str | None, typer.Option("--protocol", "-p", help="A name of `amcast protocols`.")]
PlanOption = Annotated[Path | None, typer.Option("--plan", help="A TOML file; other options override it.")]
FaultsOption = Annotated[
    str | None,
    typer.Option("--faults", help=f"none, all that the protocol claims, or some of {', '.join(FAULTS)}, joined by +."),
]
GroupsOption = Annotated[int | None, typer.Option("--groups", help="How many groups.")]
ReplicasOption = Annotated[int | None, typer.Option("--replicas", help="Processes per group.")]
DestinationsOption = Annotated[str | None, typer.Option("--destinations", help="Groups per message: 2, or 1..3.")]
MessagesOption = Annotated[int | None, typer.Option("--messages", help="Messages in all.")]
ClientsOption = Annotated[int | None, typer.Option("--clients", help="Client processes.")]
OutstandingOption = Annotated[int | None, typer.Option("--outstanding", help="Messages in flight per client.")]
OrderOption = Annotated[
    Literal["acyclic", "real-time"] | None,
    typer.Option("--order", help="What answers promise: the protocol's order alone, or real-time order as well (P9)."),
]
ProtocolsOption = Annotated[
    list[str] | None, typer.Option("--protocol", "-p", help="A protocol, as in other commands. May be repeated.")
]
OptionOption = Annotated[
    list[str] | None, typer.Option("--option", help="An option of the protocol: stamps=all. May be repeated.")
]
EnvironmentOption = Annotated[str | None, typer.Option("--environment", help="A name of `amcast environments`.")]


def planned(
    plan: Path | None,
    protocol_name: str | None,
    groups: int | None,
    replicas: int | None,
    destinations: str | None,
    messages: int | None,
    clients: int | None,
    outstanding: int | None,
    environment: str | None,
) -> dict[str, Any]:
    """The plan as plain data, with command-line options on top."""
    values: dict[str, Any] = read_plan(plan) if plan else {}
    lay(values, "protocol", protocol_name)
    if "protocol" not in values:
        raise UsageError("no protocol: give --protocol NAME, or a --plan that names one; `amcast protocols` lists them")
    for path, value in (
        ("topology.groups", groups),
        ("topology.replicas", replicas),
        ("topology.clients", clients),
        ("topology.environment", environment),
        ("workload.messages", messages),
        ("workload.outstanding", outstanding),
        ("workload.destinations", None if destinations is None else _range(destinations)),
    ):
        lay(values, path, value)
    return values


def lay(values: dict[str, Any], path: str, value: object) -> None:
    """Sets a field by its dotted path, if an option gives a value."""
    if value is None:
        return
    *tables, last = path.split(".")
    for name in tables:
        inner = values.setdefault(name, {})
        if not isinstance(inner, dict):
            raise UsageError(f"plan: {name} = {inner!r}; expected a table")
        values = inner
    values[last] = value


def parse_options(texts: list[str] | None) -> dict[str, Any]:
    """Options of a protocol given as NAME=VALUE; a value that is no number, boolean or list is a text."""
    options: dict[str, Any] = {}
    for text in texts or ():
        name, separator, value = text.partition("=")
        if not separator or not name.isidentifier():
            raise UsageError(f"--option {text!r}; expected NAME=VALUE, such as stamps=all")
        try:
            options[name] = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            options[name] = value
    return options


def _range(text: str) -> int | list[int]:
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    if not found:
        raise UsageError(f"--destinations {text!r}; expected a number such as 2, or a range such as 1..3")
    return int(found[1]) if found[2] is None else [int(found[1]), int(found[2])]
