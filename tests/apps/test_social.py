"""The social network, in the simulator under faults and in a live cluster."""

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from amcast.apps.social import SocialNetwork, find_disagreement, publish, work
from amcast.cluster import connect, run_service
from amcast.lab.service_search import ServiceSearch
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.simulation.services.drawn_calls import make_client_load
from amcast.simulation.services.run import SimulatedClient
from amcast.workloads.tables import social_users
from tests.live.cluster import run

USERS = ("user-0", "user-2", "user-9999", "user-5000")


def test_the_network_holds_under_faults() -> None:
    search = ServiceSearch(make_client_load(work), [find_disagreement])
    assert [(outcome.seed, outcome.story) for outcome in search.run(range(4)) if outcome.status != "holds"] == []


def test_a_post_to_followers_that_are_not_all_is_not_made() -> None:
    async def forget(client: SimulatedClient) -> None:
        network = client.service(SocialNetwork)
        await network.follow("user-2", "user-0")
        assert (await network.post("user-0", [], "hello")).value is False
        assert (await network.post("user-0", ["user-2"], "hello")).value is True
        assert (await network.timeline("user-2")).value[-1][2] == "hello"

    assert ServiceSearch(make_client_load(forget), [find_disagreement], "none", callers=1).run(range(2))[-1].status == (
        "holds"
    )


def test_users_are_placed_by_the_graph() -> None:
    groups = tuple(f"group-{number}" for number in range(16))
    users = social_users()
    assert [SocialNetwork.partition(f"user-{n}", groups) for n in (0, 7, 9999)] == [
        groups[users[n][0]] for n in (0, 7, 9999)
    ]
    assert SocialNetwork.partition("ann", groups) in groups


@pytest.mark.live
def test_the_network_runs_live(tmp_path: Path) -> None:
    (tmp_path / "cluster.toml").write_text(format_local_config({"east": 1, "west": 1}, durability="memory"))
    cluster = read_cluster(tmp_path / "cluster.toml")

    async def main() -> None:
        async with AsyncExitStack() as stack:
            for name in cluster.nodes():
                await stack.enter_async_context(run_service(cluster, name, SocialNetwork))
            client = await stack.enter_async_context(connect(cluster))
            network = client.service(SocialNetwork)
            assert await publish(network, "user-0", "before")
            for reader in USERS[1:]:
                assert (await network.follow(reader, "user-0")).value is True
            assert await publish(network, "user-0", "after")
            for reader in USERS[1:]:
                assert [post[2] for post in (await network.timeline(reader)).value] == ["before", "after"]
            assert (await network.unfollow("user-2", "user-0")).value is True
            assert (await network.timeline("user-2")).value == []

    run(main(), 30)
