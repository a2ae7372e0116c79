"""The command that makes certificates."""

from typing import Annotated

import typer

from amcast.cli.live.cluster import ConfigOption
from amcast.cli.output import JsonFlag, err, out, print_json


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command()(certs)


def certs(
    config: ConfigOption,
    days: Annotated[int, typer.Option(min=1, help="How long new certificates are good.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Make all anew, except the authority.")] = False,
    json: JsonFlag = False,
) -> None:
    """Make a development authority, and certificates for every node and client of a cluster.toml.

    What is there and good for another month is left alone, so repeat it after adding a node or a client.

    Example: amcast certs --config cluster.toml
    """
    from amcast.live.config import certificates as making
    from amcast.live.config.cluster import read_cluster

    cluster = read_cluster(config)
    made = making.make_certificates(cluster, days, renew=renew)
    if json:
        rows = [
            {"file": str(m.file), "name": m.name, "fresh": m.is_new, "until": m.valid_until.isoformat()} for m in made
        ]
        print_json({"certificates": rows})
        return
    for one in made:
        out.print(f"{'made' if one.is_new else 'kept'} {one.file}: {one.name}, good until {one.valid_until:%Y-%m-%d}")
    if cluster.security.mode == "plain":
        err.print(f'{config} says security.mode = "plain"; nobody uses these certificates until that says "tls"')
    err.print("keep ca.key away from the machines of the cluster; each needs ca.pem and its own two files only")
