"""A campaign in Spark tasks: one row per seed, nothing run twice, failures included; and the command."""

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from pyspark.sql import SparkSession

from amcast.cli.main import run
from amcast.pipeline.campaign import job
from amcast.pipeline.campaign.job import CampaignSettings, SeedBlock
from amcast.pipeline.sweep.worker import ChildWorker

# Workers cannot import test modules: pickle functions by value.
cloudpickle.register_pickle_by_value(sys.modules[__name__])

ROW = {"status": "holds", "story": "", "steps": 5, "messages": 1, "real_log": True, "cpu_s": 0.5}


def run_plainly(item: tuple[str, str, int]) -> dict[str, Any]:
    return {**ROW, "fired": {"crash": item[2]}, "reached": {"led": 1}}


def fail_sometimes(item: tuple[str, str, int]) -> dict[str, Any]:
    if item[2] == 1:
        os._exit(9)
    if item[2] == 2:
        raise RuntimeError("as planned")
    return {**ROW, "status": "stuck" if item[2] == 3 else "holds", "fired": {}, "reached": {}}


def prepare(tmp_path: Path, source: str = "aa", until: float | None = None) -> CampaignSettings:
    settings = CampaignSettings(tmp_path / "campaign", source, "c0ffee", until=until)
    job.prepare_folder(settings.out)
    return settings


def run_here(settings: CampaignSettings, blocks: list[SeedBlock], run_seed: job.RunSeed) -> int:
    child = ChildWorker()
    try:
        return sum(job.run_block(block, run_seed, settings, child) for block in blocks)
    finally:
        child.stop()


def test_every_seed_becomes_a_row_and_is_not_run_again(spark: SparkSession, tmp_path: Path) -> None:
    settings = prepare(tmp_path)
    classes = [("skeen", "drawn"), ("ring", "crash")]
    job.run_blocks(spark, job.find_pending(settings, classes, range(30)), run_plainly, settings)
    rows = sorted(job.iterate_runs(settings.out, "aa"), key=lambda row: (row["protocol"], row["seed"]))
    assert [(row["protocol"], row["faults"], row["seed"]) for row in rows] == [
        *(("ring", "crash", seed) for seed in range(30)),
        *(("skeen", "drawn", seed) for seed in range(30)),
    ]
    assert rows[7] == {**ROW, "protocol": "ring", "faults": "crash", "seed": 7, "commit": "c0ffee"} | {
        "fired": [("crash", 7)],
        "reached": [("led", 1)],
    }
    assert not list((settings.out / "journal").iterdir())
    assert job.find_pending(settings, classes, range(30)) == []
    assert job.find_pending(settings, classes, range(29, 31)) == [
        SeedBlock("skeen", "drawn", (30,)),
        SeedBlock("ring", "crash", (30,)),
    ]
    # Other sources, other results.
    assert len(job.find_pending(prepare(tmp_path, source="bb"), classes, range(30))) == 4


def test_crashed_worker_costs_one_seed_and_is_tried_again(tmp_path: Path) -> None:
    settings = prepare(tmp_path)
    classes = [("skeen", "drawn")]
    assert run_here(settings, job.find_pending(settings, classes, range(5)), fail_sometimes) == 5
    statuses = [row["status"] for row in job.iterate_runs(settings.out, "aa")]
    assert statuses == ["holds", "crash", "error", "stuck", "holds"]
    assert job.find_pending(settings, classes, range(5)) == [SeedBlock("skeen", "drawn", (1,))]
    job.merge_journal(settings.out)
    run_here(settings, job.find_pending(settings, classes, range(5)), run_plainly)
    job.merge_journal(settings.out)
    assert job.find_pending(settings, classes, range(5)) == []


def test_interrupted_campaign_keeps_its_journal_but_no_half_line(tmp_path: Path) -> None:
    settings = prepare(tmp_path)
    blocks = job.find_pending(settings, [("skeen", "drawn")], range(3))
    run_here(settings, blocks, run_plainly)
    (file,) = (settings.out / "journal").iterdir()
    file.write_bytes(file.read_bytes()[:-10])
    assert job.find_pending(settings, [("skeen", "drawn")], range(3)) == [SeedBlock("skeen", "drawn", (2,))]
    run_here(settings, blocks, run_plainly)
    job.merge_journal(settings.out)
    assert sorted(row["seed"] for row in job.iterate_runs(settings.out, "aa")) == [0, 1, 2]


def test_campaign_runs_nothing_after_its_time(tmp_path: Path) -> None:
    settings = prepare(tmp_path, until=time.time() - 1)
    assert run_here(settings, [SeedBlock("skeen", "drawn", (0, 1))], run_plainly) == 0
    assert job.find_pending(settings, [("skeen", "drawn")], range(2)) == [SeedBlock("skeen", "drawn", (0, 1))]


def test_command_counts_resumes_and_writes_its_aggregate(
    spark: SparkSession, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["campaign", "--protocols", "skeen", "--faults", "none,suspects", "--out", str(tmp_path / "c")]
    assert run([*command, "--seeds", "0..1", "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["verdict"], data["run_now"], data["left"]) == ("holds", 2, 0)
    assert data["not_claimed"] == ["skeen: suspects"]
    (one,) = data["classes"]
    assert (one["faults"], one["seeds"], one["statuses"]) == ("none", "0..1", {"holds": 2})
    assert run([*command, "--seeds", "0..2", "--aggregate", str(tmp_path / "a.json"), "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["run_now"] == 1
    assert json.loads((tmp_path / "a.json").read_text())["classes"] == data["classes"]


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        (["--protocols", "nobody"], "nobody"),
        (["--faults", "fire"], "--faults 'fire': no kind 'fire'"),
        (["--protocols", "skeen", "--faults", "suspects"], "none of these protocols claims"),
        (["--seeds", "9..1"], "upside down"),
        (["--out", "hdfs://host/c"], "every worker see as a path"),
    ],
)
def test_command_rejects_bad_input(
    options: list[str], sentence: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["campaign", "--out", str(tmp_path / "c"), *options]) == 64
    assert sentence in capsys.readouterr().err.replace("\n", " ")


def test_campaign_refuses_a_folder_with_other_files(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("")
    assert run(["campaign", "--out", str(tmp_path)]) == 64


def test_task_brings_no_child_of_its_own(tmp_path: Path) -> None:
    """A child in the pickled task would be forked anew by every task, and none of them would end."""
    task = job.make_task([], run_plainly, prepare(tmp_path))
    assert b"ChildWorker" not in cloudpickle.dumps(task)
