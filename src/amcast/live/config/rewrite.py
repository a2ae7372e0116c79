"""Rewrites cluster.toml after a change of members: the old text with other replicas.

Operators keep comments in this file, so it is not generated anew: the arrays of replicas and `[members]` are replaced,
and everything else stays. The result is parsed and compared with the expected values; a file with a layout that this
module does not understand (inline tables, dotted keys) is written from its values, without comments.
"""

import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amcast.live.config.cluster import Cluster, format_key, format_toml, format_value
from amcast.live.storage.atomic_files import write_atomically


def rewrite_members(cluster: Cluster) -> str:
    """Returns the text of the cluster.toml for the current members, based on the file that was read."""
    text = cluster.file.read_text()
    values = _update_values(tomllib.loads(text), cluster)
    edited = text
    for name, table in values["groups"].items():
        edited = _replace_replicas(edited, name, table["replicas"])
    edited = _replace_members(edited, values["members"])
    try:
        if tomllib.loads(edited) == values:
            return edited
    except tomllib.TOMLDecodeError:
        pass
    return format_toml(values)


def _update_values(values: dict[str, Any], cluster: Cluster) -> dict[str, Any]:
    """Puts the current replicas and configuration into the values of the file."""
    topology = cluster.topology
    names = {process: name for name, process in cluster.names.items()}
    for group in topology.groups:
        table = values["groups"][topology.names[group]]
        old = _read_replica_tables(topology.names[group], table["replicas"])
        table["replicas"] = [
            {
                "name": names[member],
                "process": member,
                "address": _format_address(cluster.addresses[member]),
                **({"region": topology.region(member)} if topology.region(member) else {}),
                **old.get(names[member], {}),
            }
            for member in topology.members(group)
        ]
    values["members"] = {
        **values.get("members", {}),
        "configuration": topology.configuration,
        "next_process": topology.next_process,
    }
    return values


def _read_replica_tables(group: str, replicas: list[Any]) -> dict[str, dict[str, Any]]:
    """The other fields of each replica in the file, by name."""
    tables: dict[str, dict[str, Any]] = {}
    for rank, one in enumerate(replicas, 1):
        table = dict(one) if isinstance(one, Mapping) else {"address": one}
        table.pop("process", None)
        tables[table.pop("name", f"{group}/{rank}")] = table
    return tables


def _format_address(address: tuple[str, int]) -> str:
    host, port = address
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _replace_replicas(text: str, group: str, replicas: list[dict[str, Any]]) -> str:
    """Replaces the array of a group's replicas."""
    span = _find_table(text, f"groups.{format_key(group)}")
    if span is None:
        return text
    start = re.compile(r"^[ \t]*replicas[ \t]*=[ \t]*\[", re.MULTILINE).search(text, *span)
    if start is None:
        return text
    lines = "".join(f"    {format_value(replica)},\n" for replica in replicas)
    return f"{text[: start.start()]}replicas = [\n{lines}]{text[_find_array_end(text, start.end()) :]}"


def _replace_members(text: str, members: Mapping[str, Any]) -> str:
    """Replaces the table `[members]`, or appends it."""
    span = _find_table(text, "members")
    if span is None:
        lines = "".join(f"{format_key(name)} = {format_value(content)}\n" for name, content in members.items())
        return f"{text.rstrip()}\n\n[members]\n{lines}"
    first, last = span
    body = text[first:last]
    for name in ("configuration", "next_process"):
        line = f"{name} = {format_value(members[name])}"
        body, count = re.subn(rf"^[ \t]*{name}[ \t]*=[ \t]*\d+", line, body, count=1, flags=re.MULTILINE)
        if not count:
            body = f"\n{line}{body}"
    return text[:first] + body + text[last:]


def _find_table(text: str, table: str) -> tuple[int, int] | None:
    """Start (behind the header) and end of a table's lines."""
    header = re.compile(rf"^[ \t]*\[[ \t]*{re.escape(table)}[ \t]*\]", re.MULTILINE).search(text)
    if header is None:
        return None
    following = re.compile(r"^[ \t]*\[[^\[\]\n,]+\][ \t]*(#.*)?$", re.MULTILINE).search(text, header.end())
    return header.end(), len(text) if following is None else following.start()


def _find_array_end(text: str, start: int) -> int:
    """The index behind the bracket that closes an array, skipping brackets in strings and comments."""
    depth = 1
    for token in re.compile(r'"(?:\\.|[^"\\])*"|\'[^\']*\'|#[^\n]*|[\[\]]').finditer(text, start):
        depth += {"[": 1, "]": -1}.get(token.group(), 0)
        if depth == 0:
            return token.end()
    return len(text)


def replace_file(file: Path, text: str) -> Path | None:
    """Replaces a file atomically; returns the path of the old version, if there was one."""
    old = None
    if file.exists():
        old = file.with_name(f"{file.name}.old")
        write_atomically(old, file.read_bytes())
    write_atomically(file, text.encode())
    return old
