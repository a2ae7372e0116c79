"""Tests of services: user code in the simulator, under kills, partitions, slow disks and clocks that jump.

    from amcast import testing

    @testing.simulated(seeds=50, faults="all")
    async def test_bank(cluster: testing.SimulatedCluster) -> None:
        bank = cluster.service(Bank)
        await bank.deposit("ann", 10)
        assert (await bank.balance("ann")).value == 10

pytest runs it as an ordinary test: once per seed, with nodes, protocol and executors as in a live cluster. A failure
names its seed and the command that repeats it.
"""

import os
from collections.abc import Callable, Sequence
from typing import Final

from amcast.kernel.errors import Error, UsageError
from amcast.lab.service_search import CALLERS, PROTOCOL, ServiceSearch
from amcast.simulation.services.fuzzer import Invariant
from amcast.simulation.services.run import Main, SimulatedClient, SimulatedCluster

__all__ = ["Invariant", "SimulatedClient", "SimulatedCluster", "SimulationFailedError", "simulated"]

SEED_VARIABLE: Final = "AMCAST_SEED"
"""The environment variable that names the only seed to run."""


class SimulationFailedError(Error, AssertionError):
    """A seed of a simulated test failed."""


def simulated(
    seeds: int = 50,
    faults: str = "all",
    *,
    invariants: Sequence[Invariant] = (),
    groups: int | None = None,
    clients: int = CALLERS,
    protocol: str = PROTOCOL,
) -> Callable[[Main], Callable[[], None]]:
    """Makes a test of a coroutine function that is given a `SimulatedCluster`.

    `faults` is "all" that the protocol survives, "none", or kinds joined by +, as for `amcast fuzz --faults`.
    `invariants` judge the services at the end of each seed: they are called with one service of each group by name, and
    return a sentence, or False, if something is wrong. `groups` fixes the number of groups, which seeds draw otherwise.
    """
    if seeds < 1:
        raise UsageError(f"seeds = {seeds}; expected 1 or more")

    def decorate(main: Main) -> Callable[[], None]:
        search = ServiceSearch(main, invariants, faults, protocol, groups, clients)

        def test() -> None:
            _run(search, _list_seeds(seeds), f"{main.__module__.replace('.', '/')}.py::{main.__name__}")

        test.__name__, test.__doc__, test.__module__ = main.__name__, main.__doc__, main.__module__
        return test

    return decorate


def _list_seeds(seeds: int) -> range:
    given = os.environ.get(SEED_VARIABLE)
    if given is None:
        return range(seeds)
    if not given.isdigit():
        raise UsageError(f"{SEED_VARIABLE} = {given!r}; expected a seed, such as 17")
    return range(int(given), int(given) + 1)


def _run(search: ServiceSearch, seeds: range, test: str) -> None:
    outcome = search.run(seeds)[-1]
    if outcome.status != "holds":
        what = "is stuck" if outcome.status == "stuck" else "fails"
        raise SimulationFailedError(
            f"seed {outcome.seed} {what}: {outcome.story}\nto repeat it: {SEED_VARIABLE}={outcome.seed} pytest {test}"
        )
