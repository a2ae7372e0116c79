"""Protocols for single processes, replicated in groups of three, on real sockets."""

import asyncio
from random import Random

import pytest

from amcast.assembly import build_node_spec
from amcast.check.judge import judge
from amcast.kernel.topology import Topology
from amcast.parts.node.messages import NodeConfig
from amcast.protocols.catalogue import get_protocol
from amcast.trace.meta import Meta, RunClaims
from amcast.trace.run import Run
from tests.live.cluster import Cluster, run

MESSAGES = 60


@pytest.mark.parametrize("name", ["skeen", "flexcast", "treecast", "ring"])
def test_replicated_groups_deliver_in_one_order(name: str) -> None:
    run(served(name))


async def served(name: str) -> None:
    topology = Topology.grid(3, 3)
    spec = build_node_spec(get_protocol(name), NodeConfig())
    made = Cluster(topology, spec)
    random = Random(name)
    chosen = [tuple(sorted(random.sample(range(3), random.randint(1, 3)))) for _ in range(MESSAGES)]
    await made.up()
    try:
        async with made.client(batches=False) as client:
            await asyncio.gather(*(client.multicast(set(groups), b"payload") for groups in chosen))
        await made.settled(sum(3 * len(groups) for groups in chosen))
    finally:
        await made.down()
    claims = RunClaims(genuine=spec.claims.genuine, complete=True)
    report = judge(Run.from_recorder(made.recorder, Meta(run=name, claims=claims)))
    assert report.verdict == "holds", "\n".join(report.story())
