"""The package `amcast`: its names resolve, load lazily, and have types that a type checker sees."""

import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

import amcast
from amcast.kernel.errors import Error
from tests import ROOT

LAZY = """\
import sys, amcast
assert "amcast.live" not in sys.modules and "asyncio" not in sys.modules
assert "connect" in dir(amcast)
amcast.connect
assert "amcast.cluster" in sys.modules
unneeded = [name for name in sys.modules if name.startswith(("amcast.live.server", "amcast.protocols."))]
assert unneeded == ["amcast.protocols.catalogue"], unneeded
import amcast.cli.main
slow = {"pyarrow", "numpy", "pandas", "pyspark", "matplotlib", "cryptography"} & sys.modules.keys()
assert not slow, f"every command loads {slow}"
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


def test_mypy_reads_a_program_against_the_public_names() -> None:
    """`make types` fails if a public function loses its type, or if any name passes for public."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["mypy"]
    assert settings["files"] == ["src", "tests/typed_program.py"]
    assert settings["strict"]
    assert (ROOT / "tests" / "typed_program.py").is_file()
    assert Path(amcast.__file__).with_name("py.typed").is_file()
