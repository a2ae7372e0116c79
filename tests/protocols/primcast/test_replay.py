"""Records that lack log entries which were delivered and trimmed before they were durable can be replayed."""

from amcast.kernel.effects import Deliver
from amcast.kernel.events import Started
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.parts.groups.leader_group_messages import Entry
from amcast.protocols.catalogue import get_protocol
from amcast.protocols.primcast.messages import DeliveryRecord, Progress

ONE, TWO, THREE = (Message(9 * 10**9 + number, 9, (0,)) for number in range(3))


def test_log_entries_missing_from_records_were_delivered() -> None:
    memory_losses = (0, 0, 0)
    records = (
        Progress(0, 0, memory_losses, 0, (), ()),
        Progress(0, 1, memory_losses, 0, (Entry(ONE, 1),), ()),
        # TWO had index 1: proposed, delivered and trimmed within one step. THREE has index 2.
        Progress(
            0,
            3,
            memory_losses,
            2,
            (Entry(THREE, 3),),
            (DeliveryRecord(ONE.id, 1, 1), DeliveryRecord(TWO.id, 2, 2, TWO), DeliveryRecord(THREE.id, 3, 3)),
        ),
    )
    spec = get_protocol("primcast")
    process = spec.process(1, Topology.grid(1, 3), spec.configure())
    effects = process.step([Started(records, 1)], 0)
    assert [effect.message for effect in effects if isinstance(effect, Deliver)] == [ONE, TWO, THREE]
    twin = spec.process(1, Topology.grid(1, 3), spec.configure())
    twin.restore(process.snapshot())
    assert twin.snapshot() == process.snapshot()
    assert process.position == 3
