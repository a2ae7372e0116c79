"""The package `amcast`: its names resolve, load lazily, and have types that a type checker sees."""

import subprocess
import sys
from pathlib import Path

import pytest

import amcast
from amcast.kernel.errors import Error

TYPED = """\
import amcast
from typing import assert_type

assert_type(amcast.connect("cluster.toml"), amcast.Client)
assert_type(amcast.connect_blocking("cluster.toml"), amcast.BlockingClient)
assert_type(amcast.subscribe("cluster.toml", "orders"), amcast.Subscription)
assert_type(amcast.run_replica("cluster.toml", "orders/1"), amcast.Replica)
assert_type(amcast.read_cluster("cluster.toml"), amcast.Cluster)


async def use(client: amcast.Client) -> amcast.Receipt:
    async for delivery in client.deliveries("orders"):
        assert_type(delivery, amcast.Delivery)
    return await client.multicast({"orders"}, b"x")


amcast.nonsense()
"""
LAZY = """\
import sys, amcast
assert "amcast.live" not in sys.modules and "asyncio" not in sys.modules
assert "connect" in dir(amcast)
amcast.connect
assert "amcast.cluster" in sys.modules
unneeded = [name for name in sys.modules if name.startswith(("amcast.live.server", "amcast.protocols."))]
assert unneeded == ["amcast.protocols.catalogue"], unneeded
"""


def test_every_exported_name_resolves() -> None:
    assert sorted(set(amcast.__all__)) == sorted(amcast.__all__)
    for name in amcast.__all__:
        assert getattr(amcast, name) is not None
        assert name in dir(amcast)
    with pytest.raises(AttributeError, match="nonsense"):
        amcast.nonsense  # type: ignore[attr-defined]  # noqa: B018


def test_every_exported_error_is_below_error() -> None:
    errors = [value for name in amcast.__all__ if isinstance(value := getattr(amcast, name), type)]
    for error in errors:
        assert not issubclass(error, Exception) or issubclass(error, Error), error
    assert issubclass(amcast.DeliveryUnknownError, TimeoutError)
    assert issubclass(amcast.DeliveryUnknownError, amcast.CannotTellError)


def test_the_live_system_loads_on_first_use() -> None:
    subprocess.run([sys.executable, "-c", LAZY], check=True)


def test_mypy_knows_the_types_of_public_functions_and_rejects_an_unknown_name(tmp_path: Path) -> None:
    """One run of `mypy --strict` for both: it reads the whole package each time."""
    file = tmp_path / "program.py"
    file.write_text(TYPED)
    command = [sys.executable, "-m", "mypy", "--strict", "--cache-dir", str(tmp_path / "cache"), str(file)]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=tmp_path)
    errors = [line for line in done.stdout.splitlines() if ": error: " in line]
    assert len(errors) == 1, done.stdout
    assert 'has no attribute "nonsense"' in errors[0]
