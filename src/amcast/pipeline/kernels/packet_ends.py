"""The ends of packets about messages: whose work it is, and which payloads reach groups that are no destination."""

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from amcast.pipeline.kernels.fingerprints import Int32Array, Int64Array, compile_kernel

NOTHING_CARRIED: Final = np.iinfo(np.int64).min
"""The size of a packet that carries no payload of one message to its target."""


@compile_kernel
def _audit(
    owners: Any,
    ends: Any,
    carried: Any,
    process_ids: Any,
    group_of: Any,
    group_ids: Any,
    senders: Any,
    payloads: Any,
    offsets: Any,
    values: Any,
    value_codes: Any,
    worked: Any,
    matrix: Any,
    strange: Any,
    reached: Any,
    strange_payload: Any,
) -> None:
    for row in range(owners.size):
        owner = owners[row]
        if owner < 0:
            continue
        low, high = offsets[owner], offsets[owner + 1]
        for end in range(2):
            process = ends[end, row]
            if process < 0:
                continue
            group, place = group_of[process], -1
            if group >= 0:
                for candidate in range(low, high):
                    if values[candidate] == group_ids[group]:
                        place = candidate
                        break
            is_strange = place < 0 and process_ids[process] != senders[owner]
            worked[process] += 1
            strange[end, row] = is_strange
            if group < 0:
                continue
            for candidate in range(low, high):
                matrix[0, group, value_codes[candidate]] += 1
                matrix[1, group, value_codes[candidate]] += is_strange
            if end == 1 and carried[row] != NOTHING_CARRIED and carried[row] >= payloads[owner]:
                if place >= 0:
                    reached[place] = True
                else:
                    strange_payload[row] = True


@dataclass(frozen=True)
class PacketEnds:
    """What the ends of some packets show."""

    worked: Int64Array
    """Of each process: the ends that it was."""
    matrix: Int64Array
    """[all or strange ones, group of the process, destination of the message]."""
    strange: NDArray[np.bool_]
    """[source or target, packet]: whether the message does not concern that process."""
    reached: NDArray[np.bool_]
    """Of each place of a destination: whether a packet carried the payload there."""
    strange_payload: NDArray[np.bool_]
    """Of each packet: whether it carried the payload to a group that is no destination."""


def audit_ends(
    owners: Int32Array,
    ends: Int32Array,
    carried: Int64Array,
    processes: tuple[Int64Array, Int32Array, Int64Array],
    messages: tuple[Int64Array, Int64Array, Int32Array, Int32Array, Int32Array],
    codes: int,
) -> PacketEnds:
    """`owners`: the message of each packet, or -1; `ends`: dense numbers of source and target, or -1; `processes`: ids,
    codes of groups (-1: none), ids of groups; `messages`: senders, payloads, offsets, destinations and their codes."""
    found = PacketEnds(
        np.zeros(processes[0].size, np.int64),
        np.zeros((2, processes[2].size, codes), np.int64),
        np.zeros((2, owners.size), np.bool_),
        np.zeros(messages[3].size, np.bool_),
        np.zeros(owners.size, np.bool_),
    )
    _audit(
        owners,
        ends,
        carried,
        *processes,
        *messages,
        found.worked,
        found.matrix,
        found.strange,
        found.reached,
        found.strange_payload,
    )
    return found
