"""`amcast advise`: from flags, from a plan, from a recorded run; its plan; and mistakes."""

import json
from pathlib import Path

import pytest

from amcast.cli.main import run

CSV = ",eu,us,ap\neu,1,70,210\nus,70,1,150\nap,210,150,1\n"
SMALL = ["--messages", "60", "-p", "whitebox"]


@pytest.fixture
def csv(tmp_path: Path) -> Path:
    (tmp_path / "mine.csv").write_text(CSV)
    return tmp_path / "mine.csv"


def test_table_names_waits_losses_and_reasons(csv: Path, capsys: pytest.CaptureFixture[str]) -> None:
    flags = ["--regions", "eu,us,ap", "--latencies", str(csv), "--mix", "80% home, 20% all", "--survive-region"]
    assert run(["advise", *flags, *SMALL]) == 0
    text = capsys.readouterr().out
    for words in ("4 candidates by mean", "replicas in different regions", "why:", "no region's death stops a group"):
        assert words in text


def test_plan_of_the_best_candidate_simulates(csv: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "best.toml"
    flags = ["--regions", "eu,us", "--groups", "a=eu,b=us", "--latencies", str(csv), "--mix", "60% home, 40% a+b"]
    assert run(["advise", *flags, *SMALL, "--seed", "3", "--out", str(plan), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"] == {"a": "eu", "b": "us"}
    best = found["ranked"][0]
    assert best["waits"]["mean_ms"] <= found["ranked"][-1]["waits"]["mean_ms"]
    assert set(best["by_region"]) == {"eu", "us"}
    folder = tmp_path / "run"
    assert run(["simulate", "--plan", str(plan), "--out", str(folder), "--json"]) == 0
    simulated = json.loads(capsys.readouterr().out)
    assert (simulated["verdict"], simulated["multicasts"], simulated["seed"]) == ("holds", 60, 3)

    assert run(["advise", "--trace", str(folder), "--latencies", str(csv), *SMALL, "--json"]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["groups"] == {"g0": "eu", "g1": "us"}
    assert set(again["by_region"]) == {"eu", "us"}
    assert "0+1" in again["by_region"]["eu"]
    assert "1," not in again["by_region"]["eu"].replace("0+1,", ""), "clients of eu multicast nothing to b alone"

    assert run(["advise", "--plan", str(plan), *SMALL, "--json"]) == 0
    planned = json.loads(capsys.readouterr().out)
    assert planned["groups"] == {"g0": "eu", "g1": "us"}


@pytest.mark.parametrize(
    ("flags", "expected"),
    [
        ([], "no traffic given; expected one of --mix, --plan, --trace"),
        (["--mix", "1 home"], "--regions is missing"),
        (["--mix", "1 home", "--regions", "eu-west-1", "--replicas", "0"], "--replicas 0; expected 1 to 9"),
        (["--mix", "1 home", "--regions", "eu-west-1", "--live", "."], "--live .: exists; expected a new folder"),
        (["--mix", "70% home", "--regions", "eu-west-1"], "the percentages add up to 70; expected 100"),
        (["--mix", "1 nearest", "--regions", "eu-west-1"], "'nearest' with 1 groups; expected more groups"),
        (["--mix", "1 home", "--regions", "eu,eu"], "--regions 'eu,eu'; expected different names"),
        (["--mix", "1 home", "--regions", "eu-west-1", "--rate", "0"], "--rate 0.0; expected more than 0"),
        (["--mix", "1 home", "--regions", "eu-west-1", "-p", "paxos"], "'paxos'"),
        (["--mix", "1 home", "--regions", "eu-west-1", "-p", "fastcast:stamps"], "'stamps'; expected OPTION=VALUE"),
        (["--mix", "1 home", "--regions", "eu-west-1", "-p", "fastcast:stamps=no"], "stamps"),
        (["--plan", "none.toml"], "plan none.toml: cannot be read"),
        (["--trace", "none"], "none"),
        (["--plan", "none.toml", "--groups", "2"], "--groups and --clients with --plan; expected them with --mix"),
        (["--mix", "1 home", "--regions", "eu-west-1", "--latencies", "none.csv"], "none.csv: cannot be read"),
    ],
)
def test_mistakes_get_one_sentence(flags: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["advise", *flags]) == 64
    error = capsys.readouterr().err
    assert expected in error, error
    assert error.count("\n") == 1


def test_plan_without_regions_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = tmp_path / "plan.toml"
    plan.write_text('protocol = "skeen"\n')
    assert run(["advise", "--plan", str(plan)]) == 64
    assert "topology.environment is missing; expected one with regions" in capsys.readouterr().err
