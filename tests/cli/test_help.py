"""The help is complete and readable, and what is missing on a machine is named in one sentence."""

import builtins
import re
from typing import Any

import pytest
from typer.main import get_command

from amcast.cli.main import EXTRAS, app, run


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


@pytest.mark.parametrize(
    ("package", "arguments"),
    [("pyspark", ["check", "run", "--engine", "spark"]), ("pyspark", ["demo"]), ("matplotlib", ["report", "run"])],
)
def test_missing_extra_is_named_in_one_sentence(
    package: str, arguments: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    load = builtins.__import__

    def load_without(name: str, *rest: Any) -> Any:
        if name.partition(".")[0] in (package, "amcast") and _needs(name, package):
            raise ModuleNotFoundError(f"No module named {package!r}", name=package)
        return load(name, *rest)

    monkeypatch.setattr(builtins, "__import__", load_without)
    assert run(arguments) == 64
    expected = f"amcast: {package} is not installed; this command needs it: pip install 'amcast[{EXTRAS[package]}]'"
    assert capsys.readouterr().err.strip() == expected


def _needs(name: str, package: str) -> bool:
    """Whether an import reaches a package that may be loaded already."""
    packages = {
        "pyspark": ("pyspark", "amcast.pipeline.check.job"),
        "matplotlib": ("matplotlib", "amcast.figures.report"),
    }
    return name.startswith(packages[package])


def test_configuration_file_is_found_without_a_flag(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    assert run(["status"]) == 64
    assert "amcast: cluster.toml: No such file" in capsys.readouterr().err
    monkeypatch.setenv("AMCAST_CONFIG", str(tmp_path / "other.toml"))
    assert run(["status"]) == 64
    assert "other.toml: No such file" in capsys.readouterr().err
