"""The command that makes certificates."""

from typing import Annotated

import typer

from amcast.cli.live.cluster import ConfigOption
from amcast.cli.output import JsonFlag, err, out, print_json
from amcast.cli.panels import OPERATE


def register(app: typer.Typer) -> None:
    """Add this command."""
    app.command(rich_help_panel=OPERATE)(certs)


def certs(
    config: ConfigOption,
    days: Annotated[int, typer.Option(min=1, help="Days that new certificates are valid.")] = 365,
    renew: Annotated[bool, typer.Option("--renew", help="Renew all, except the authority.")] = False,
    revoke: Annotated[
        list[str] | None,
        typer.Option("--revoke", help="Revoke the certificate of a node (orders/1) or a client; may be repeated."),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Make a development authority, and certificates for every node and client of a cluster.toml.

    Certificates that are valid for another month are left alone, so repeat it after adding a node or a client.

    --revoke makes nothing: it adds certificates to the list that `security.revocations` names. Copy the list to all
    nodes and send them SIGHUP.

    Example: amcast certs --config cluster.toml

    Example, lock a client out: amcast certs --config cluster.toml --revoke till
    """
    from amcast.live.config.certificates import make_certificates, revoke_certificates
    from amcast.live.config.cluster import read_cluster

    cluster = read_cluster(config)
    if revoke:
        file, count = revoke_certificates(cluster, revoke)
        if json:
            print_json({"revocations": str(file), "revoked": count})
        else:
            out.print(f"{file}: {count} revoked", markup=False)
            err.print("copy it to all nodes, then reload them (SIGHUP)")
        return
    made = make_certificates(cluster, days, renew=renew)
    if json:
        rows = [
            {"file": str(m.file), "name": m.name, "new": m.is_new, "valid_until": m.valid_until.isoformat()}
            for m in made
        ]
        print_json({"certificates": rows})
        return
    for one in made:
        out.print(f"{'made' if one.is_new else 'kept'} {one.file}: {one.name}, valid until {one.valid_until:%Y-%m-%d}")
    if cluster.security.mode == "plain":
        err.print(f'{config} sets security.mode = "plain"; these certificates are used only with "tls"')
    err.print("keep ca.key away from the machines of the cluster; each needs ca.pem and its own two files only")
