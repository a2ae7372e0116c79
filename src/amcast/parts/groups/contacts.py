"""The contacts of protocols in which one group takes a message from its sender and passes it on."""

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology


def contact_one_group(topology: Topology, message: Message) -> tuple[ProcessId, ...]:
    """The members of one destination: the sender's own group, or one in the sender's region, or the first."""
    destinations = message.destinations
    home = topology.group_of(message.sender)
    if home in destinations and home is not None:
        return topology.members(home)
    region = topology.region(message.sender)
    for group in destinations:
        if topology.region(topology.members(group)[0]) == region:
            return topology.members(group)
    return topology.members(destinations[0])
