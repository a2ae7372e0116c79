"""A program against the public interface. `mypy` reads it with the sources, and a type that is lost is an error.

It is never run: the ignored error of the last line is one that mypy must find, else it reports an unused comment.
"""

from typing import Literal, assert_type

import amcast

assert_type(amcast.connect("cluster.toml"), amcast.Client)
assert_type(amcast.connect_blocking("cluster.toml"), amcast.BlockingClient)
assert_type(amcast.subscribe("cluster.toml", "orders"), amcast.Subscription)
assert_type(amcast.run_replica("cluster.toml", "orders/1"), amcast.Replica)
assert_type(amcast.read_cluster("cluster.toml"), amcast.Cluster)
assert_type(amcast.simulate("plan.toml", seed=1), amcast.SimulatedRun)
assert_type(amcast.simulate({"protocol": "skeen"}).verdict, Literal["holds", "violated", "unknown"])
assert_type(amcast.sweep("plan.toml").rows, int)
assert_type(amcast.advise(["eu", "us"], mix="1 home").reasons, list[str])


async def use(client: amcast.Client) -> amcast.Receipt:
    async for delivery in client.deliveries("orders"):
        assert_type(delivery, amcast.Delivery)
    return await client.multicast({"orders"}, b"x")


amcast.nonsense()  # type: ignore[attr-defined]
