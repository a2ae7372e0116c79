"""Every option of every command refuses a bad value in one sentence, before any work is done.

An option that is new must be classified here: its type gives the bad value (a number), BAD names one, or ANYTHING says
why there is none.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from amcast.cli.main import app, run

GIVEN: dict[str, list[str]] = {
    "init": ["--config", "new.toml"],
    "advise": ["--regions", "eu-west-1,us-east-1,ap-northeast-1", "--mix", "100% home"],
    "reproduce": ["003-wan"],
    "serve": ["--node", "orders/1"],
    "call": ["amcast.apps.bank:Bank.balance", "ann"],
    "send": ["orders", "hello"],
    "tail": ["orders"],
    "explain": ["1"],
    "roll": ["true"],
    "replace": ["--node", "orders/1"],
    "change": ["--remove", "orders/1"],
    "check": ["run"],
    "view": ["run"],
    "watch": ["run"],
    "sweep": ["plan.toml", "--out", "sweep"],
    "measure": ["run"],
    "report": ["run"],
    "compact": ["run", "--out", "copy"],
    "diff": ["run", "run"],
    "fuzz": ["-p", "skeen", "--seeds", "0..1"],
    "explore": ["-p", "skeen"],
    "replay": ["no.script"],
    "shrink": ["no.script"],
    "campaign": ["--out", "campaign", "--seeds", "0..1", "--protocols", "skeen"],
    "simulate": ["-p", "skeen", "--messages", "5"],
    "delays": ["skeen"],
    "worst": ["skeen", "--schedules", "2"],
    "compare": ["plan.toml"],
    "log verify": ["data"],
}
"""What a command needs besides the option."""

BAD: dict[str, str] = {
    "--config": "no.toml",
    "--protocol": "nope",
    "--protocols": "nope",
    "--order": "sideways",
    "--durability": "stone",
    "--engine": "steam",
    "--node": "nowhere/1",
    "--service": "no_module:Bank",
    "--consistency": "eventual",
    "--plan": "no.toml",
    "--seeds": "9..3",
    "--faults": "earthquake",
    "--destinations": "x",
    "--replicas": "x",
    "--environment": "mars",
    "--links": "wet",
    "--network": "wet",
    "--world": "flat",
    "--option": "colour=red",
    "--window": "soon",
    "--gate": "colour",
    "--trace": "some",
    "--schedule": "no.script",
    "--load": "no_module:load",
    "--invariant": "no_module:judge",
    "--add": "nowhere/1",
    "--regions": "eu-west-1,atlantis",
    "--mix": "seventy home",
    "--latencies": "no.csv",
    "--by": "mood",
    "--payloads": "a few",
    "--arrivals": "sometimes",
    "advise --groups": "many",
    "advise --clients": "atlantis",
    "advise --replicas": "many",
    "advise --trace": "no-such-run",
    "init --config": "no/such/folder/cluster.toml",
    "view --run": "no-such-run",
    "view --picture": "no/such/folder/a.svg",
    "reproduce --seed": "9..3",
    "measure --order": "1,x",
    "report --order": "1,x",
    "measure --out": "nope://bucket/x",
    "report --out": "nope://bucket/x",
    "compact --out": "nope://bucket/x",
    "sweep --out": "s3://bucket/x",
    "simulate --out": "run",
    "diff --out": "s3://bucket/x",
    "reproduce --folder": "no/such/folder",
    "reproduce --html": "no/such/folder/page.html",
    "advise --live": ".",
}
"""By option, or by command and option: a value that makes no sense."""

ANYTHING: dict[str, str] = {
    "--key": "any text names a message or call",
    "--name": "any text names a reader",
    "--as": "a name matters only where cluster.toml names clients",
    "--remove": "the running cluster knows its members",
    "--revoke": "a cluster without a list of revocations is refused first",
    "--region": "any text, where no distances are emulated",
    "--outbox": "a folder that is made",
    "--write": "written after the cluster has changed",
    "--master": "Spark reads it",
    "--scratch": "a folder that Spark makes",
    "--state": "a folder that is made",
    "--alert": "a command of the user's shell",
    "--append": "a file that is made",
    "--aggregate": "a file that is made",
    "--script": "a file that is written after a failure",
    "demo --out": "a number is added to a name that is taken",
    "shrink --out": "written after the script was read",
    "campaign --out": "a campaign that exists is continued",
    "torture --out": "a folder that is made",
    "compare --out": "a folder that is made",
    "worst --out": "a folder that is made",
    "calibrate --out": "a file that is written after the runs",
    "advise --out": "written after the advice",
}
"""Options that have no bad value that shows before the work, and why."""


def list_options() -> Iterator[tuple[str, str, Any]]:
    """Every option with a value, of every command: the command, the option, its parameter."""
    root: Any = get_command(app)
    for name, command in root.commands.items():
        for child, sub in getattr(command, "commands", {"": command}).items():
            words = f"{name} {child}".strip()
            for parameter in sub.params:
                if parameter.opts[0].startswith("--") and parameter.name != "help" and not parameter.is_flag:
                    yield words, parameter.opts[0], parameter


def find_bad_value(command: str, option: str, parameter: Any) -> str | None:
    """The value that an option must refuse; None if it takes any."""
    for key in (f"{command} {option}", option):
        if key in BAD:
            return BAD[key]
        if key in ANYTHING:
            return None
    kind = str(parameter.type_descriptor.annotation)
    return "many" if "int" in kind or "float" in kind else UNCLASSIFIED


UNCLASSIFIED = "an option that this file does not know: name a bad value in BAD, or in ANYTHING why there is none"
OPTIONS = list(list_options())
REFUSED = [(command, option, bad) for command, option, one in OPTIONS if (bad := find_bad_value(command, option, one))]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a recorded run, a plan and a cluster.toml whose nodes do not run."""
    folder = tmp_path_factory.mktemp("options")
    assert run(["simulate", "-p", "skeen", "--messages", "5", "--out", str(folder / "run"), "--json"]) == 0
    (folder / "plan.toml").write_text('protocol = "skeen"\n[workload]\nmessages = 5\n')
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        assert run(["init", "--port", "39001"]) == 0
    return folder


def refuse(folder: Path, arguments: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """Runs a command that must be refused, in a folder that must not change; its sentence."""
    before = sorted(folder.rglob("*"))
    assert run(arguments) == 64, arguments
    output = capsys.readouterr()
    assert len(output.err.strip().splitlines()) == 1, (arguments, output.err)
    assert "internal error" not in output.err
    assert sorted(folder.rglob("*")) == before, "something was written"
    return output.err


@pytest.mark.parametrize(("command", "option", "bad"), REFUSED, ids=[f"{c} {o}" for c, o, _ in REFUSED])
def test_bad_value_is_one_sentence(
    command: str,
    option: str,
    bad: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert bad != UNCLASSIFIED, f"amcast {command} {option} is {bad}"
    monkeypatch.chdir(folder)
    given = list(GIVEN.get(command, []))
    if option in given:
        place = given.index(option)
        del given[place : place + 2]
    sentence = refuse(folder, [*command.split(), *given, option, bad], capsys)
    words = (bad, option, option.lstrip("-").replace("-", "_"), option.lstrip("-"))
    assert any(word in sentence for word in words), f"neither the option nor its value is named: {sentence}"


@pytest.mark.parametrize(
    ("command", "option", "least"),
    [
        (command, option, parameter.min)
        for command, option, parameter in OPTIONS
        if getattr(parameter, "min", None) is not None
    ],
)
def test_number_below_the_least_is_refused(
    command: str,
    option: str,
    least: float,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    value = str(int(least) - 1)
    sentence = refuse(folder, [*command.split(), *GIVEN.get(command, []), option, value], capsys)
    assert option in sentence
    assert value in sentence


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["fuzz", "-p", "skeen", "--groups", "-1"], "groups = -1; expected 1 to"),
        (["fuzz", "-p", "skeen", "--groups", "99999999999999999999"], "expected 1 to"),
        (["fuzz", "-p", "skeen", "--clients", "99999999999999999999"], "clients = 99999999999999999999"),
        (["simulate", "-p", "skeen", "--clients", "99999999999999999999"], "clients = 99999999999999999999"),
        (["explore", "-p", "skeen", "--crashes", "99999999999999999999"], "--crashes"),
        (["diff", "run", "run", "--seeds", "0..9"], "--seeds 0..9 without --plan"),
        (["fuzz", "-p", "skeen", "--load", "bank:work"], "--load 'bank:work' without --service"),
        (["call", "amcast.apps.bank:Bank.balance", "ann", "--max-age", "2"], "above 0 with 'stale'"),
        (["call", "amcast.apps.bank:Bank.transfer", "a", "b", "1", "--consistency", "stale"], "expected a query"),
    ],
)
def test_values_that_make_no_sense_together_are_refused(
    arguments: list[str],
    expected: str,
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(folder)
    assert expected in refuse(folder, arguments, capsys)


def test_every_exception_is_an_option_that_exists() -> None:
    known = {option for _, option, _ in OPTIONS} | {f"{command} {option}" for command, option, _ in OPTIONS}
    assert sorted({*BAD, *ANYTHING} - known) == []
