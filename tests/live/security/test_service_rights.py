"""Rights on services under TLS: which commands and queries a client may call, and who may give values for a group."""

import asyncio
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import msgspec
import pytest

from amcast.cluster import connect, local_cluster, run_service
from amcast.kernel.errors import DeliveryUnknownError, UsageError
from amcast.live.config.cluster import Cluster
from amcast.live.rpc.client import NoAnswerError, RpcClient
from amcast.live.rpc.messages import FollowResults, KeyedResult, WatchCall
from amcast.services.declaration import Service, describe_service
from amcast.services.loader import load_service
from amcast.services.messages import Command, Result, Success, Value, encode_payload, find_key_session
from tests.live.cluster import run
from tests.live.secure_cluster import listening, secured

pytestmark = pytest.mark.live

GROUPS = {"north": 1, "south": 1}
CLIENTS: dict[str, Any] = {
    "nodes": {"groups": "all", "exchange": True},
    "teller": {"groups": "all", "calls": ["deposit", "balance"]},
    "clerk": {"groups": "all"},
}


@pytest.fixture
def bank(monkeypatch: pytest.MonkeyPatch) -> type[Service]:
    monkeypatch.syspath_prepend(str(Path(__file__).parents[3] / "examples"))
    return load_service("bank:Bank").service


async def serve(stack: AsyncExitStack, cluster: Cluster, bank: type[Service]) -> None:
    replicas = [run_service(cluster, name, bank, client="nodes") for name in cluster.nodes()]
    for replica in replicas:
        await stack.enter_async_context(replica)
    for replica in replicas:
        assert await replica.runtime.wait_admitted(10)


def test_a_client_calls_what_it_may_and_is_refused_with_a_sentence_otherwise(
    tmp_path: Path, bank: type[Service]
) -> None:
    cluster = secured(tmp_path, GROUPS, CLIENTS)

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await serve(stack, cluster, bank)
            teller = (await stack.enter_async_context(connect(cluster, client="teller"))).service(bank)
            clerk = (await stack.enter_async_context(connect(cluster, client="clerk"))).service(bank)
            names = {bank.partition(f"account-{n}", tuple(GROUPS)): f"account-{n}" for n in range(20)}
            for name in names.values():
                assert (await teller.deposit(name, 10)).value == 10
            assert (await clerk.transfer(names["north"], names["south"], 3)).value is True
            assert (await teller.balance(names["south"])).value == 13
            for call in (teller.transfer(names["north"], names["south"], 1), teller.total()):
                with pytest.raises(
                    UsageError, match=r"client teller may not call .*; expected one of \['balance', 'dep"
                ):
                    await call

    run(main(), 60)


def test_servers_refuse_calls_and_values_of_a_program_that_does_not_ask_itself(
    tmp_path: Path, bank: type[Service]
) -> None:
    cluster = secured(tmp_path, GROUPS, CLIENTS)
    forged = encode_payload(Value(7, 1, 0, "north", b"\xc3"))
    call = encode_payload(Command(7, 1, 1, False, 0, "", "transfer", b""))

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await serve(stack, cluster, bank)
            for name, payload, sentence in (
                ("clerk", forged, "client clerk may not give values of a service; expected clients.clerk.exchange = t"),
                ("teller", call, "client teller may not call transfer; expected one of"),
            ):
                async with connect(cluster, client=name) as client:
                    with listening() as lines, pytest.raises(DeliveryUnknownError):
                        await client.multicast("south", payload, timeout_s=1.0)
                    assert lines.having(f"refuses this process: {sentence}")

    run(main(), 60)


def test_who_guesses_a_key_does_not_learn_its_result(tmp_path: Path, bank: type[Service]) -> None:
    cluster = secured(tmp_path, GROUPS, CLIENTS)
    description, session = describe_service(bank), find_key_session("order-17")
    arguments = msgspec.msgpack.encode(("ann", 10))
    owner = cluster.group_id(bank.partition("ann", tuple(GROUPS)))

    async def ask(name: str, given: bytes) -> object:
        transport = cluster.client_transport("teller")
        rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits, transport)
        call = await rpc.call(cluster.topology.members(owner)[0], FollowResults(99, description.digest))
        try:
            await call.reply()
            call.send(WatchCall(session, name, given))
            while not isinstance(reply := await call.reply(), KeyedResult):
                pass
            return reply.result
        finally:
            call.close()

    async def main() -> None:
        async with AsyncExitStack() as stack:
            await serve(stack, cluster, bank)
            clerk = (await stack.enter_async_context(connect(cluster, client="clerk"))).service(bank)
            assert (await clerk.deposit("ann", 10, call_key="order-17")).value == 10
            assert await ask("deposit", msgspec.msgpack.encode(("ann", 11))) is None
            assert await ask("balance", arguments) is None
            found = await ask("deposit", arguments)
            assert isinstance(found, Result)
            assert found.outcome == Success(msgspec.msgpack.encode(10))
            with pytest.raises(NoAnswerError):
                await ask("transfer", arguments)
            same, other = await asyncio.gather(
                clerk.deposit("ann", 10, call_key="order-17"),
                clerk.deposit("ann", 11, call_key="order-17"),
                return_exceptions=True,
            )
            assert same.value == 10
            assert isinstance(other, UsageError)

    run(main(), 60)


def test_nodes_whose_client_may_not_give_values_do_not_start(tmp_path: Path, bank: type[Service]) -> None:
    cluster = secured(tmp_path, GROUPS, CLIENTS)
    with pytest.raises(
        UsageError, match=r"Bank.transfer exchanges values between groups, and client clerk may not giv"
    ):
        run_service(cluster, "north/1", bank, client="clerk")


def test_all_nodes_start_with_the_client_that_is_named(
    tmp_path: Path, bank: type[Service], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parents[3] / "examples"))
    cluster = secured(tmp_path, GROUPS, CLIENTS)

    async def main() -> None:
        async with connect(cluster, client="clerk") as client:
            names = {bank.partition(f"account-{n}", tuple(GROUPS)): f"account-{n}" for n in range(20)}
            assert (await client.service(bank).transfer(names["north"], names["south"], 3)).value is False

    with local_cluster(cluster, service="bank:Bank", client="nodes"):
        run(main(), 60)


def test_rights_are_read_from_the_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"clients.teller.calls = 'some'; expected \"all\" or a list"):
        secured(tmp_path, GROUPS, {"teller": {"groups": "all", "calls": "some"}})
