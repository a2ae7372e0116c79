"""The examples of the documentation, run unchanged against a real cluster."""

import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from amcast.cluster import local_cluster
from amcast.kernel.topology import Topology
from amcast.live.config.cluster import read_cluster
from amcast.live.operations.local_cluster import format_local_config
from amcast.protocols.catalogue import CATALOGUE
from tests import ROOT

DOCS = ROOT / "docs"
EXPECTED = {
    "client.md": [
        "000000",
        "1000 in",
        "1000 payloads in 1 message",
        "from any thread",
        "may or may not be delivered",
        "True",
        "and me",
        "1",
        "from the journal: 1",
    ],
    "real-time.md": ["closed before"],
    "quickstart.md": ["read from orders: b'hello'"],
    "../README.md": ["stock, position"],
}
RESERVATION = "reserve 3 of 17 for Ann"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", (DOCS / page).read_text(), re.DOTALL)


def commanded(*arguments: str) -> str:
    command = [sys.executable, "-c", "from amcast.cli import main; main()", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.mark.live
def test_every_example_runs(tmp_path: Path) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(format_local_config({"orders": 3, "stock": 1}, durability="os", order="real-time"))
    with local_cluster(read_cluster(file)) as running:
        running.stop("orders/3")
        for page, expected in EXPECTED.items():
            examples = blocks(page, "python")
            assert len(examples) == len(expected), page
            for example, text in zip(examples, expected, strict=True):
                done = subprocess.run(
                    [sys.executable, "-W", "error", "-c", example],
                    cwd=tmp_path, capture_output=True, text=True, timeout=60, env={**os.environ, "PYTHONUTF8": "1"},
                )  # fmt: skip
                assert done.returncode == 0, done.stderr
                assert text in done.stdout, (example, done.stdout)
        assert "was ordered in 2 groups" in commanded("send", "--config", str(file), "orders,stock", "hi\x1b[1m")
        output = commanded(
            "tail", "--config", str(file), "stock", "--since", "0", "--count", "8", "--only-closed", "--json"
        )
        rows = [json.loads(line) for line in output.splitlines()]
        assert [row["payload"] for row in rows] == [
            "one coffee",
            "maybe",
            "one coffee",
            "move 10",
            "read",
            "hello",
            RESERVATION,
            "hi\x1b[1m",
        ]
        last = rows[-1]["position"]
        line = commanded("tail", "--config", str(file), "stock", "--since", str(last), "--count", "1")
        assert line == f"{last}.0 from {rows[-1]['sender']}: hi\N{REPLACEMENT CHARACTER}[1m\n"


def test_quick_start_cluster_file_is_valid(tmp_path: Path) -> None:
    cluster, trace = blocks("quickstart.md", "toml")
    (tmp_path / "cluster.toml").write_text(cluster + trace)
    read = read_cluster(tmp_path / "cluster.toml")
    assert list(read.nodes()) == ["orders/1", "orders/2", "orders/3", "stock/1", "stock/2", "stock/3"]
    assert (read.durability, read.trace_mode) == ("os", "full")
    assert tomllib.loads(cluster)["name"] == "shop"


def test_guarantees_table_equals_the_protocols_claims() -> None:
    text = (DOCS / "guarantees.md").read_text()
    rows = {row[0]: row[1:] for row in re.findall(r"^\| `([a-z-]+)` \| (\w+) \| (\w+) \| (\w+) \|", text, re.MULTILINE)}
    assert set(rows) == set(CATALOGUE)
    groups = Topology.grid(3, 3)
    for name, documented in rows.items():
        claims = CATALOGUE[name].for_topology(groups).claims
        survived = tuple("yes" if fault in claims.faults else "no" for fault in ("crash", "recovery", "amnesia"))
        assert documented == survived, name
        if "crash" in claims.faults:
            minorities = frozenset(groups.members(group)[0] for group in groups.groups)
            assert claims.tolerates(groups, minorities), name
            assert claims.tolerates(groups, frozenset(groups.members(1))) == (name == "a-dt"), name
