"""`amcast environments`, `amcast workloads`, and options of protocols on the command line."""

import json

import pytest

from amcast.cli.lab import simulate
from amcast.cli.main import run
from amcast.protocols.catalogue import CATALOGUE


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


def test_protocols_are_listed_with_each_unit_of_delays_in_its_own_column(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tables: list[tuple[tuple[str, ...], list[tuple[object, ...]]]] = []
    monkeypatch.setattr(simulate, "print_table", lambda names, rows: tables.append((names, rows)))
    assert run(["protocols"]) == 0
    ((names, rows),) = tables
    message, between = names.index("message delays"), names.index("inter-group delays")
    delays = {row[0]: (row[message], row[between]) for row in rows}
    for spec in CATALOGUE.values():
        in_messages, between_groups = delays[spec.name]
        assert (in_messages is None) == (spec.claims.world != "unit")
        assert (between_groups is None) == (spec.claims.world == "unit")
    assert {spec.claims.world for spec in CATALOGUE.values()} > {"unit"}
