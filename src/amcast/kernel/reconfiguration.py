"""A change of members, as a message carries it.

A change is an ordinary message to all groups whose payload is the next topology: the number after the current one, and
one group with one member more or one member fewer. Several replicas are changed one at a time.
"""

from typing import Any, Final

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Message
from amcast.kernel.topology import Endpoint, Topology

CHANGE_PREFIX: Final = b"\xc1amcast/topology\xc1"
"""How the payload of a change begins. No application may begin a payload like this. The first byte begins nothing in
MessagePack, so that the mark is found fast, wherever it is in a bundle."""
_PREFIX_BYTES: Final = len(CHANGE_PREFIX)


def change_topology(
    topology: Topology,
    group: GroupId,
    add: ProcessId | None = None,
    remove: ProcessId | None = None,
    endpoint: Endpoint = ("", ""),
    region: str = "",
) -> Topology:
    """The next topology, in which a group has one member more (the last one) or one fewer. `place` says its name and,
    if it comes, where it is; hosts need that, and simulations do not."""
    if (add is None) == (remove is None):
        raise UsageError(
            f"change of group {group}: add = {add}, remove = {remove}; expected one of them, one at a time"
        )
    if group not in topology.groups:
        raise UsageError(f"change: group {group} does not exist; expected one of {list(topology.groups)}")
    members = topology.members(group)
    if add is not None:
        _refuse_known(topology, group, add)
        return topology.with_change(group, (*members, add), endpoint=endpoint, region=region)
    if remove not in members:
        raise UsageError(f"change of group {group}: process {remove} is no member; expected one of {list(members)}")
    if len(members) == 1:
        raise UsageError(f"change of group {group}: process {remove} is its last member; expected 1 or more to remain")
    return topology.with_change(group, tuple(member for member in members if member != remove), endpoint=endpoint)


def _refuse_known(topology: Topology, group: GroupId, process: ProcessId) -> None:
    home = topology.group_of(process)
    if home is not None:
        raise UsageError(f"change of group {group}: process {process} is a member of group {home}; groups are disjoint")
    if process in topology.clients:
        raise UsageError(f"change of group {group}: process {process} is a client; expected a number that nobody has")
    if process < topology.next_process:
        raise UsageError(
            f"change of group {group}: the number {process} was used; expected {topology.next_process} or more"
        )


def check_change(old: Topology, new: Topology) -> None:
    """Refuse what is not one step from the old topology to the new one."""
    if new.configuration != old.configuration + 1:
        raise UsageError(f"change: configuration = {new.configuration}; expected {old.configuration + 1}")
    if new.groups != old.groups:
        raise UsageError(f"change: groups {list(new.groups)}; expected {list(old.groups)}, groups themselves stay")
    moved = [(group, who) for group in old.groups for who in _difference(old, new, group)]
    if len(moved) != 1:
        told = ", ".join(f"process {who} of group {group}" for group, who in moved) or "nobody"
        raise UsageError(
            f"change to configuration {new.configuration}: {told} differs; expected one member of one group"
        )
    group, who = moved[0]
    if who not in old.members(group):
        _refuse_known(old, group, who)
    if old.next_process and new.next_process < max(old.next_process, who + 1):
        raise UsageError(
            f"change to configuration {new.configuration}: next_process = {new.next_process};"
            f" expected {max(old.next_process, who + 1)} or more"
        )


def _difference(old: Topology, new: Topology, group: GroupId) -> list[ProcessId]:
    return sorted(set(old.members(group)) ^ set(new.members(group)))


def encode_topology(topology: Topology) -> bytes:
    """A topology as bytes; equal topologies, equal bytes."""
    return msgspec.msgpack.encode(topology.describe())


def decode_topology(data: bytes, where: str = "topology") -> Topology:
    """What `encoded` wrote."""
    try:
        described: Any = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, ValueError):
        raise UsageError(f"{where}: {len(data)} bytes that are no topology") from None
    if not isinstance(described, dict):
        raise UsageError(f"{where}: {type(described).__name__}; expected what `Topology.describe` writes")
    return Topology.from_dict(described, where)


def make_change_message(id: MessageId, sender: ProcessId, topology: Topology) -> Message:
    """The message that makes a topology the current one."""
    return Message(id, sender, topology.groups, encode_change(topology))


def encode_change(topology: Topology) -> bytes:
    """What it carries."""
    return CHANGE_PREFIX + encode_topology(topology)


def is_change(message: Message) -> bool:
    return message.payload[:_PREFIX_BYTES] == CHANGE_PREFIX


def parse_change(current: Topology, message: Message) -> Topology | None:
    """What a change asks for, if it may follow the current topology: the same answer at every process that has it."""
    if message.destinations != current.groups or not is_change(message):
        return None
    try:
        topology = decode_topology(message.payload[_PREFIX_BYTES:])
        check_change(current, topology)
    except UsageError:
        return None
    return topology
