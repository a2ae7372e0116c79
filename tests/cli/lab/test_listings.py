"""`amcast environments`, `amcast workloads`, and options of protocols on the command line."""

import json

import pytest

from amcast.cli.main import run


def test_environments_and_workloads_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    for command, name in (("environments", "wan-3"), ("workloads", "gtpcc")):
        assert run([command]) == 0
        assert name in capsys.readouterr().out
        assert run([command, "--json"]) == 0
        rows = {row["name"]: row for row in json.loads(capsys.readouterr().out)}
        assert name in rows
    assert rows["gtpcc"]["groups"] == 12
    assert rows["micro"]["options"]["payload"] == 64


def test_delays_take_options_of_the_protocol(capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ["delays", "fastcast", "--destinations", "2", "--replicas", "3", "--world", "claimed", "--json"]
    assert run([*arguments, "--option", "stamps=all"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert (row["packets"], row["claimed"]["packets"]) == (102, 102)


@pytest.mark.parametrize(
    ("option", "expected"),
    [("stamps", "expected NAME=VALUE"), ("stamps=some", "expected one of: all, leader"), ("stomp=1", "stomp")],
)
def test_wrong_options_are_refused(option: str, expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["delays", "fastcast", "--option", option]) == 64
    assert expected in capsys.readouterr().err
