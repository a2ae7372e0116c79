"""Changes: messages that move the cluster to its next configuration.

A change is an ordinary message to all groups whose payload is the next topology: the configuration after the current
one, in which one group has one member more or one member fewer. Several members are changed one at a time.

A marker is a message that a process without memory multicasts to its own group: a message that nobody can have
delivered before the memory was lost (`parts/membership/memory_doubt.py`). Its payload is that of a change without a
topology. It takes a position, like a change, and is delivered to no application.
"""

from typing import Any, Final

import msgspec

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, MessageId, ProcessId, message_id
from amcast.kernel.message import Message
from amcast.kernel.topology import Endpoint, Topology

CHANGE_PREFIX: Final = b"\xc1amcast/topology\xc1"
"""The first bytes of a change's payload. Payloads of applications must not begin with them. No MessagePack value begins
with the first byte, so that the prefix is found fast anywhere in a bundle."""
_PREFIX_BYTES: Final = len(CHANGE_PREFIX)


def change_topology(
    topology: Topology,
    group: GroupId,
    add: ProcessId | None = None,
    remove: ProcessId | None = None,
    endpoint: Endpoint = ("", ""),
    region: str = "",
) -> Topology:
    """The next topology, in which a group has one member more (as its last) or one fewer. `endpoint` is the member's
    name and, if it is added, its address; live clusters need it, and simulations do not."""
    if (add is None) == (remove is None):
        raise UsageError(
            f"change of group {group}: add = {add}, remove = {remove}; expected one of them, one at a time"
        )
    if group not in topology.groups:
        raise UsageError(f"change: group {group} does not exist; expected one of {list(topology.groups)}")
    members = topology.members(group)
    if add is not None:
        _check_unused(topology, group, add)
        return topology.with_change(group, (*members, add), endpoint=endpoint, region=region)
    if remove not in members:
        raise UsageError(f"change of group {group}: process {remove} is no member; expected one of {list(members)}")
    if len(members) == 1:
        raise UsageError(f"change of group {group}: process {remove} is its last member; expected 1 or more to remain")
    return topology.with_change(group, tuple(member for member in members if member != remove), endpoint=endpoint)


def _check_unused(topology: Topology, group: GroupId, process: ProcessId) -> None:
    """Raises UsageError if a process cannot be added to a group because its id is, or was, in use."""
    home = topology.group_of(process)
    if home is not None:
        raise UsageError(f"change of group {group}: process {process} is a member of group {home}; groups are disjoint")
    if process in topology.clients:
        raise UsageError(f"change of group {group}: process {process} is a client; expected an unused process id")
    if process < topology.next_process:
        raise UsageError(
            f"change of group {group}: process id {process} was used before; expected {topology.next_process} or more"
        )


def check_change(old: Topology, new: Topology) -> None:
    """Raises UsageError unless the new topology is one change away from the old one."""
    if new.configuration != old.configuration + 1:
        raise UsageError(f"change: configuration = {new.configuration}; expected {old.configuration + 1}")
    if new.groups != old.groups:
        raise UsageError(
            f"change: groups {list(new.groups)}; expected {list(old.groups)}, because a change keeps all groups"
        )
    changed = [(group, process) for group in old.groups for process in _changed_members(old, new, group)]
    if len(changed) != 1:
        differs = ", ".join(f"process {process} of group {group}" for group, process in changed) or "no member"
        raise UsageError(
            f"change to configuration {new.configuration}: {differs} differs; expected one member of one group"
        )
    group, process = changed[0]
    if process not in old.members(group):
        _check_unused(old, group, process)
    if old.next_process and new.next_process < max(old.next_process, process + 1):
        raise UsageError(
            f"change to configuration {new.configuration}: next_process = {new.next_process};"
            f" expected {max(old.next_process, process + 1)} or more"
        )


def _changed_members(old: Topology, new: Topology, group: GroupId) -> list[ProcessId]:
    return sorted(set(old.members(group)) ^ set(new.members(group)))


def encode_topology(topology: Topology) -> bytes:
    """A topology as bytes; equal topologies have equal encodings."""
    return msgspec.msgpack.encode(topology.describe())


def decode_topology(data: bytes, where: str = "topology") -> Topology:
    """Reads the output of `encode_topology`. A UsageError begins with `where`."""
    try:
        described: Any = msgspec.msgpack.decode(data)
    except (msgspec.MsgspecError, ValueError):
        raise UsageError(f"{where}: {len(data)} bytes that are no topology") from None
    if not isinstance(described, dict):
        raise UsageError(f"{where}: {type(described).__name__}; expected the output of `Topology.describe`")
    return Topology.from_dict(described, where)


def make_change_message(id: MessageId, sender: ProcessId, topology: Topology) -> Message:
    """The message whose delivery makes a topology the current one."""
    return Message(id, sender, topology.groups, encode_change(topology))


def encode_change(topology: Topology) -> bytes:
    """The payload of a change."""
    return CHANGE_PREFIX + encode_topology(topology)


def is_change(message: Message) -> bool:
    """Whether a message concerns the membership, and not the application: a change, valid or not, or a marker."""
    return message.payload[:_PREFIX_BYTES] == CHANGE_PREFIX


def make_marker(process: ProcessId, group: GroupId, incarnation: int) -> Message:
    """The marker of a process that lost its memory before an incarnation. Each loss has its own."""
    return Message(message_id(process, incarnation), process, (group,), CHANGE_PREFIX)


def is_marker(message: Message) -> bool:
    return message.payload == CHANGE_PREFIX


def parse_change(current: Topology, message: Message) -> Topology | None:
    """The topology of a valid change of the current one; None for any other message. All processes with the same
    current topology agree on it."""
    if message.destinations != current.groups or not is_change(message):
        return None
    try:
        topology = decode_topology(message.payload[_PREFIX_BYTES:])
        check_change(current, topology)
    except UsageError:
        return None
    return topology
