"""The command `init`: writes a cluster.toml for a cluster on this machine."""

import re
from pathlib import Path
from typing import Annotated, Literal

import typer

from amcast.cli.live.cluster import ConfigOption
from amcast.cli.output import JsonFlag, out, print_json
from amcast.cli.panels import RUN
from amcast.kernel.errors import UsageError

LAST_PORT = 65_535
TEMPLATE = """\
# A cluster on one machine. docs/operate.md describes every setting, and certificates for clusters on several.
name = "local"
protocol = "{protocol}"
{order}      # what receipts promise over several groups: docs/guarantees.md
durability = "{durability}"     # "os" survives kill -9, "fsync" survives the machine, "memory" is fastest

[security]
mode = "plain"          # no certificates: on loopback only
"""


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel=RUN)(init)


def init(
    config: ConfigOption,
    groups: Annotated[list[str] | None, typer.Argument(help="Names of groups.", show_default="orders stock")] = None,
    replicas: Annotated[int, typer.Option("--replicas", min=1, max=31, help="Replicas of each group.")] = 3,
    port: Annotated[int, typer.Option("--port", min=1, max=LAST_PORT, help="The first port; others follow.")] = 7001,
    protocol: Annotated[str, typer.Option("--protocol", "-p", help="Protocol of the cluster.")] = "primcast",
    durability: Annotated[str, typer.Option("--durability", help="fsync, os or memory.")] = "os",
    order: Annotated[
        Literal["acyclic", "real-time"] | None,
        typer.Option("--order", help="What receipts promise (docs/guarantees.md).", show_default="acyclic"),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Write a cluster.toml for a cluster on this machine; a file that exists is not changed.

    Example: amcast init orders stock --replicas 3
    """
    names = groups or ["orders", "stock"]
    for name in names:
        if not re.fullmatch(r"[A-Za-z0-9_-]+", name):
            raise UsageError(f"group {name!r}; expected a name of letters, digits, - and _")
        if names.count(name) > 1:
            raise UsageError(f"group {name!r} is given {names.count(name)} times; expected once")
    count = len(names) * replicas
    last = port + count - 1
    if last > LAST_PORT:
        raise UsageError(f"--port {port}: {count} replicas need ports up to {last}; expected at most {LAST_PORT}")
    _write_config(config, _format_config(names, replicas, port, protocol, durability, order))
    if json:
        print_json({"config": str(config), "groups": names, "replicas": replicas, "ports": [port, last]})
        return
    out.print(f"{config}: {len(names)} groups of {replicas} on ports {port} to {last}", markup=False)
    named = "" if config == Path("cluster.toml") else f" --config {config}"
    out.print(
        f"next: amcast up{named}   and in another terminal: amcast send{named} {','.join(names)} hello", markup=False
    )


def _format_config(
    names: list[str], replicas: int, port: int, protocol: str, durability: str, order: str | None
) -> str:
    line = '# order = "real-time"' if order is None else f'order = "{order}"'
    text = TEMPLATE.format(protocol=protocol, durability=durability, order=line)
    for number, name in enumerate(names):
        first = port + number * replicas
        addresses = ", ".join(f'"127.0.0.1:{first + replica}"' for replica in range(replicas))
        text += f"\n[groups.{name}]\nreplicas = [{addresses}]\n"
    return text


def _write_config(file: Path, text: str) -> None:
    """Writes the file, unless it exists or its content would be refused."""
    from amcast.cluster import cluster_spec
    from amcast.live.config.cluster import read_cluster

    try:
        with file.open("x") as target:
            target.write(text)
    except FileExistsError:
        raise UsageError(f"{file} exists and is not changed; expected a new file, see --config") from None
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; expected a file that can be written") from None
    try:
        cluster_spec(read_cluster(file))
    except UsageError:
        file.unlink()
        raise
