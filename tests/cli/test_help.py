"""The help is complete and readable, and what is missing on a machine is named in one sentence."""

import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from amcast.cli.extras import EXTRAS
from amcast.cli.main import app, run
from tests import ROOT


def read_help(capsys: pytest.CaptureFixture[str], *command: str) -> str:
    assert run([*command, "--help"]) == 0
    return capsys.readouterr().out


def list_commands() -> dict[str, Any]:
    root: Any = get_command(app)
    return dict(root.commands)


def test_every_command_is_in_a_panel_by_purpose(capsys: pytest.CaptureFixture[str]) -> None:
    text = read_help(capsys)
    panels = re.findall(r"─ ([A-Z][a-z ]+) ─", text)
    assert panels[1:] == [
        "Commands", "Run a cluster", "Operate a cluster", "Check and measure traces", "Search for bugs", "Laboratory",
    ]  # fmt: skip
    assert {name for name, command in list_commands().items() if not command.rich_help_panel} == {"version"}


@pytest.mark.parametrize("name", sorted(list_commands()))
def test_help_has_an_example_and_loses_no_brackets(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = list_commands()[name]
    if not hasattr(command, "commands") and name != "version":
        assert re.search(rf"Example[^:]*: amcast {name}", command.help or ""), f"amcast {name} --help has no example"
    shown = re.sub(r"[^a-z\[\]]", "", read_help(capsys, name))
    texts = [command.help or "", *(getattr(option, "help", None) or "" for option in command.params)]
    for bracketed in re.findall(r"\[[a-z]+\]", " ".join(texts).replace("\\[", "[")):
        assert bracketed in shown, f"{bracketed} of `amcast {name} --help` is taken for markup"


def test_version_is_an_option_and_a_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["--version"]) == 0
    by_option = capsys.readouterr().out
    assert run(["version"]) == 0
    assert capsys.readouterr().out == by_option
    assert by_option.startswith("amcast 0.")


NEEDS_TRACE = (
    ["check", "run"], ["view", "run"], ["simulate", "-p", "skeen"], ["bench"], ["compare", "plan.toml"], ["torture"],
)  # fmt: skip
NEEDS_SPARK = (
    ["demo"], ["check", "run", "--engine", "spark"], ["watch", "run"], ["measure", "run"], ["report", "run"],
    ["sweep", "plan.toml", "--out", "new"], ["compact", "run", "--out", "new"], ["campaign", "--out", "new"],
)  # fmt: skip
SITE = """
import os, sys
from importlib.machinery import PathFinder

class Installed(PathFinder):
    "Finds every module but those of packages that are named as missing."

    @classmethod
    def find_spec(cls, name, path=None, target=None):
        return None if name.partition(".")[0] in MISSING else super().find_spec(name, path, target)

MISSING = set(os.environ["MISSING"].split(","))
sys.meta_path[:] = [Installed if finder is PathFinder else finder for finder in sys.meta_path]
"""
EVERYTHING = ",".join({package for packages in EXTRAS.values() for package in packages})


def run_without(packages: str, program: str, folder: Path) -> list[str]:
    """Runs a program where these packages, separated by commas, are not installed, in its children too; its output."""
    (folder / "site").mkdir()
    (folder / "site" / "sitecustomize.py").write_text(SITE)
    (folder / "work").mkdir()
    environment = {**os.environ, "PYTHONPATH": str(folder / "site"), "MISSING": packages}
    done = subprocess.run(
        [sys.executable, "-c", program],
        cwd=folder / "work", env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


@pytest.mark.parametrize(
    ("package", "extra", "commands"),
    [("pyarrow", "trace", NEEDS_TRACE), ("pyspark", "spark", NEEDS_SPARK), ("matplotlib", "spark", NEEDS_SPARK)],
)
def test_missing_extra_is_named_in_one_sentence(
    package: str, extra: str, commands: tuple[list[str], ...], tmp_path: Path
) -> None:
    program = f"""
import sys
from amcast.cli import output
from amcast.cli.main import run
output.err.file = sys.stdout
for arguments in {commands}:
    print(run(arguments))
"""
    sentence = (
        f"amcast: {package} is not installed; this command needs the extra {extra}: pip install 'amcast[{extra}]'"
    )
    assert run_without(package, program, tmp_path) == [sentence, "64"] * len(commands)
    assert list((tmp_path / "work").iterdir()) == []


def test_every_package_of_an_extra_is_in_the_project_file() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for extra, packages in EXTRAS.items():
        declared = " ".join([*extras[extra], *extras["trace"]]).replace("-", "_")
        assert [package for package in packages if package not in declared] == []
        assert extra in extras["all"][0]


def test_searches_need_no_extra(tmp_path: Path) -> None:
    program = """
import sys
from amcast.cli.main import run
codes = [run(["fuzz", "-p", "skeen", "--seeds", "0..3", "--json"]), run(["delays", "skeen", "--json"])]
sys.stdout.write(f"\\n{codes}\\n")
"""
    assert run_without(EVERYTHING, program, tmp_path)[-1] == "[0, 0]"


def test_node_that_should_record_names_the_extra(tmp_path: Path) -> None:
    program = """
import sys
from amcast.cli.main import run
from amcast.cluster import main
assert run(["init"]) == 0
with open("cluster.toml", "a") as file:
    file.write('\\n[trace]\\nmode = "full"\\n')
sys.stderr = sys.stdout
print(main(["cluster.toml", "orders/1"]))
"""
    sentence, code = run_without("pyarrow", program, tmp_path)[-2:]
    assert not list((tmp_path / "work").rglob("process-*")), "a folder that seems to have lost its client ids"
    assert code == "64"
    assert "trace.mode = 'full', but pyarrow is not installed; expected: pip install 'amcast[trace]'" in sentence


@pytest.mark.live
def test_client_and_cluster_import_nothing_of_an_extra(tmp_path: Path) -> None:
    """A cluster is started, used and stopped where no extra is installed."""
    program = """
import sys
from pathlib import Path
import amcast
from amcast.cli.main import run
from amcast.cluster import local_cluster
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import format_local_config
assert amcast.connect
Path("cluster.toml").write_text(format_local_config({"orders": 1, "stock": 1}))
with local_cluster(read_cluster("cluster.toml")):
    codes = [run(["status", "--wait", "60"]), run(["send", "orders,stock", "hello"])]
    codes.append(run(["tail", "stock", "--since", "0", "--count", "1"]))
sys.stdout.write(f"\\n{codes}\\n")
"""
    output = run_without(EVERYTHING, program, tmp_path)
    assert output[-1] == "[0, 0, 0]"
    assert any(line.endswith(": hello") for line in output)


def test_configuration_file_is_found_without_a_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["status"]) == 64
    assert "amcast: cluster.toml: No such file" in capsys.readouterr().err
    monkeypatch.setenv("AMCAST_CONFIG", str(tmp_path / "other.toml"))
    assert run(["status"]) == 64
    assert "other.toml: No such file" in capsys.readouterr().err
