"""Bodies and records of reconfigurable members pass the live codec unchanged."""

import pytest

from amcast.assembly import build_node_spec, scale_node
from amcast.kernel.effects import Effect, Send
from amcast.kernel.events import Event
from amcast.live.limits import Limits
from amcast.live.wire.frames import Codec
from amcast.parts.client.messages import ConfigurationStarted
from amcast.parts.membership.messages import ConfigurationInfo, ConfigurationRecord, InstanceRecord
from amcast.parts.membership.reconfigurable import build_reconfigurable_spec
from amcast.parts.node.node import Node
from amcast.protocols.catalogue import CATALOGUE
from tests.conformance.test_members import MS, hold, planned


@pytest.mark.parametrize("name", ["primcast", "multipaxos", "treecast"])
def test_bodies_and_records_survive_encoding(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    spec = build_node_spec(build_reconfigurable_spec(CATALOGUE[name]), scale_node(MS))
    coder = Codec(spec.wire_bodies(), spec.records, Limits())
    seen: set[str] = set()
    right = Node.step

    def step(self: Node, events: list[Event], now: int) -> list[Effect]:
        effects = right(self, events, now)
        for effect in effects:
            if type(effect) is Send and type(effect.body).__name__ not in seen:
                seen.add(type(effect.body).__name__)
                assert coder.decode(coder.encode(effect.body)) == effect.body
        return effects

    monkeypatch.setattr(Node, "step", step)
    simulation = hold(planned(name, 1, "several"))
    assert {"ConfigurationBody", ConfigurationStarted.__name__, ConfigurationInfo.__name__} <= seen
    records = [record for disk in simulation.world.disks.values() for record in disk.records]
    assert {ConfigurationRecord, InstanceRecord} <= {type(record).__base__ for record in records} | set(
        map(type, records)
    )
    for record in records:
        assert coder.decode_record(coder.encode_record(record)) == record
