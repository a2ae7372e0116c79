"""The bank in the simulator: `pytest test_bank.py`, or `amcast fuzz --service bank:Bank --load test_bank:transfers`."""

from bank import Bank, total_is_constant

from amcast import testing

NAMES = [f"account-{number}" for number in range(6)]


async def transfers(client: testing.SimulatedClient) -> None:
    """A load: each of three clients deposits 20, and makes transfers between random accounts."""
    bank = client.service(Bank)
    await bank.deposit(NAMES[client.number], 20)
    for _ in range(4):
        source, target = client.random.sample(NAMES, 2)
        await bank.transfer(source, target, client.random.randint(1, 12))


@testing.simulated(seeds=20, faults="all", invariants=[total_is_constant])
async def test_bank(cluster: testing.SimulatedCluster) -> None:
    """Money stays, and balances are never negative, under every fault."""
    await cluster.gather(*(transfers(client) for client in cluster.clients))
    bank = cluster.service(Bank)
    balances = [(await bank.balance(name)).value for name in NAMES]
    assert min(balances) >= 0
    assert sum(balances) == 60
