"""`amcast.testing.simulated` and `amcast fuzz --service`: user code in the simulator."""

import asyncio
import json
from pathlib import Path

import pytest

from amcast import testing
from amcast.cli.main import run as run_command
from amcast.kernel.errors import UsageError
from amcast.services.declaration import At, Key, Service, command, query

EXAMPLES = Path(__file__).parents[2] / "examples"


class Register(Service):
    """Values by key."""

    def __init__(self, group: str) -> None:
        self.values: dict[str, int] = {}

    @command
    def write(self, at: At, key: Key, value: int) -> None:
        self.values[key] = value

    @query
    def read(self, key: Key) -> int:
        return self.values.get(key, 0)


@testing.simulated(seeds=8, faults="all")
async def test_reads_see_writes_that_are_answered(cluster: testing.SimulatedCluster) -> None:
    registers = [client.service(Register) for client in cluster.clients]
    for value in range(4):
        await cluster.random.choice(registers).write("x", value)
        assert (await cluster.random.choice(registers).read("x")).value == value


def test_a_failure_names_its_seed_and_how_to_repeat_it(monkeypatch: pytest.MonkeyPatch) -> None:
    ran = []

    @testing.simulated(seeds=3, faults="none")
    async def wrong(cluster: testing.SimulatedCluster) -> None:
        """Fails in the second seed."""
        register = cluster.service(Register)
        await register.write("x", 1)
        ran.append(1)
        assert len(ran) < 2, "the second seed"

    with pytest.raises(
        testing.SimulationFailedError, match="seed 1 fails: the coroutine raised AssertionError"
    ) as failure:
        wrong()
    assert "AMCAST_SEED=1 pytest" in str(failure.value)
    assert "calls write('x', 1)" in str(failure.value)
    monkeypatch.setenv("AMCAST_SEED", "1")
    ran.clear()
    wrong()
    assert len(ran) == 1
    monkeypatch.setenv("AMCAST_SEED", "one")
    with pytest.raises(UsageError, match="AMCAST_SEED = 'one'; expected a seed"):
        wrong()


def test_coroutines_await_calls_only() -> None:
    @testing.simulated(seeds=1, faults="none")
    async def sleeps(cluster: testing.SimulatedCluster) -> None:
        await cluster.service(Register).write("x", 1)
        await asyncio.sleep(0)

    with pytest.raises(UsageError, match="a simulated coroutine awaits None; expected calls of the service"):
        sleeps()


def test_fuzz_runs_a_service_and_says_how_to_repeat_a_failure(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.syspath_prepend(str(EXAMPLES))
    flags = ["fuzz", "--service", "bank:Bank", "--json"]
    load = ["--load", "test_bank:transfers", "--invariant", "bank:total_is_constant"]
    assert run_command([*flags, *load, "--seeds", "0..4"]) == 0
    assert json.loads(capsys.readouterr().out)["verdict"] == "holds"
    (tmp_path / "judges.py").write_text("def never(services):\n    return 'it never does'\n")
    monkeypatch.chdir(tmp_path)
    assert run_command([*flags, "--invariant", "judges:never", "--seeds", "7..9"]) == 1
    failure = json.loads(capsys.readouterr().out)["failures"][0]
    assert failure["seed"] == 7
    assert "never does not hold at the end: it never does" in failure["story"]
    assert failure["replay"] == "amcast fuzz --service bank:Bank --invariant judges:never --seeds 7"
    assert run_command([*flags, "--load", "bank:Bank"]) == 64
