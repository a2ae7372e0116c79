"""Every command runs once as a user types it: without --json, and shows something that makes sense."""

import re
import shlex
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.main import get_command

from amcast.cli.main import app, run
from amcast.cluster import local_cluster
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.protocols.skeen import process

PLAN = 'protocol = "skeen"\n[topology]\ngroups = 2\nclients = 2\n[workload]\nmessages = 12\n[grid]\nseed = "0..1"\n'
COMPARED = 'protocol = "skeen"\n[topology]\ngroups = 2\nclients = 1\nenvironment = "wan1"\n[workload]\nmessages = 6\n'

AT_REST: tuple[tuple[str, int, str], ...] = (
    ("init --config made.toml", 0, "made.toml: 2 groups of 3"),
    ("simulate -p skeen --messages 12 --out run", 0, "holds"),
    ("check run", 0, "holds"),
    ("view run --limit 3", 0, "multicasts"),
    ("measure run", 0, "tables in run/measures"),
    ("report run", 0, "report.html"),
    ("compact run --out copy", 0, "the copy is copy"),
    ("diff run run", 0, "the second is not worse"),
    ("sweep plan.toml --out sweep", 0, "2 cells: 2 ok"),
    ("watch run --every 0.2", 0, "12 deliveries"),
    ("fuzz -p skeen --seeds 0..3", 0, "4 hold, 0 violated"),
    ("explore -p skeen", 0, "holds"),
    ("campaign --out campaign --seeds 0..1 --protocols skeen", 0, "skeen"),
    ("protocols", 0, "primcast"),
    ("environments", 0, "aws-12"),
    ("workloads", 0, "micro"),
    ("delays skeen", 0, "skeen"),
    ("worst basecast --schedules 5", 0, "basecast"),
    ("advise --regions eu-west-1,us-east-1 --mix '100% home' --messages 50 --top 1 -p skeen", 0, "why:"),
    (f"reproduce --list --folder {Path(__file__).parents[2] / 'experiments'}", 0, "003-wan"),
    ("version", 0, "amcast 0."),
)
"""What needs no cluster: the command, its exit code, and a part of what it shows."""

LIVE: tuple[tuple[str, int, str], ...] = (
    ("status --wait 60", 0, "orders/1"),
    ("call amcast.apps.bank:Bank.deposit ann 5", 0, "5"),
    ("call amcast.apps.bank:Bank.balance ann", 0, "5"),
    ("explain 1", 2, "does not know message 1"),
    ("bench --seconds 0.5 --connections 1 --outstanding 2 --groups 1 --replicas 1", 0, "throughput"),
    ("calibrate --protocol skeen --payloads 64,4096 --seconds 0.3", 0, "byte"),
    ("compare compare.toml --within 1000", 0, "median"),
    ("torture --minutes 0.05 --groups 1 --replicas 1 --faults kill --network proxy --out torture", 0, "holds"),
)
"""What starts processes, the first ones on a cluster that runs the bank."""

FAILING: tuple[tuple[str, int, str], ...] = (
    ("fuzz -p skeen --replicas 1 --seeds 0..9 --jobs 1 --script broken.script", 1, "violated"),
    ("replay broken.script", 1, "violated"),
    ("shrink broken.script --out short.script", 0, "short.script"),
)
"""On a protocol with a bug."""

ELSEWHERE = {
    "up": "live/test_commands.py",
    "serve": "live/test_commands.py",
    "send": "test_help.py",
    "tail": "test_help.py",
    "certs": "../live/operations/test_reconfiguration.py",
    "change": "../live/operations/test_reconfiguration.py",
    "roll": "../live/test_rolling_upgrade.py",
    "replace": "../live/operations/test_replacement.py",
    "demo": "../../Makefile",
}
"""Where a command that needs more is run without --json."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("commands")
    (folder / "plan.toml").write_text(PLAN)
    (folder / "compare.toml").write_text(COMPARED)
    return folder


def type_command(text: str, code: int, shown: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Runs a command as typed."""
    assert run(shlex.split(text)) == code, text
    output = capsys.readouterr()
    assert "internal error" not in output.err
    assert shown in output.out + output.err, f"`amcast {text}` shows {output.out!r}, {output.err!r}"
    assert not re.search(r"<[\w.]+ object at 0x|\[/?(green|red|bold)\]", output.out), "an object or markup is shown"


def test_every_command_is_run_somewhere() -> None:
    root: Any = get_command(app)
    ran = {text.split()[0] for text, _, _ in (*AT_REST, *LIVE, *FAILING)}
    assert sorted({*root.commands} - ran - {*ELSEWHERE, "log"}) == []
    for name, place in ELSEWHERE.items():
        assert re.search(rf"\b{name}\b", (Path(__file__).parent / place).read_text()), f"{name} is not in {place}"


@pytest.mark.slow
def test_commands_without_a_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    for text, code, shown in AT_REST:
        type_command(text, code, shown, capsys)


def test_commands_on_a_protocol_with_a_bug(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Failing(process.Skeen):
        def on_receive(self, sender: int, body: Any) -> None:
            assert self.me != 1 or sender != 0, "planted"
            super().on_receive(sender, body)

    monkeypatch.chdir(folder)
    monkeypatch.setattr(process, "SPEC", replace(process.SPEC, process=Failing))
    for text, code, shown in FAILING:
        type_command(text, code, shown, capsys)


@pytest.mark.live
def test_commands_on_a_cluster(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    Path("cluster.toml").write_text(format_local_config({"orders": 1, "stock": 1}, durability="os"))
    with local_cluster(read_cluster("cluster.toml"), service="amcast.apps.bank:Bank"):
        for text, code, shown in LIVE:
            type_command(text, code, shown, capsys)
    type_command("log verify data/process-00000", 0, "sound", capsys)
