"""Traces of every kind, judged on every way: one verdict, or one refusal."""

import os
import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import pytest
from pyspark.sql import SparkSession

from amcast.kernel.errors import UsageError
from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.check.survey import ChainPlan, ChainRouting, plan_comparison
from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.footers import prove_row_groups, read_footers
from amcast.pipeline.rows.sequences import FileSequences
from tests.pipeline.check import trace_generator as generator
from tests.pipeline.check.agreement import (
    REFUSED,
    SPARK_WAYS,
    WAYS,
    compare_ways,
    describe_difference,
    find_verdicts,
    judge_by_force,
)
from tests.pipeline.check.trace_generator import TIMED, WrittenTrace, make_trace

TRACES = int(os.environ.get("AMCAST_TRACES", "40"))
SPARK_SEEDS = (3, 17, 26, 31, 10**9 + 2)


FOUND = (1070, 1097, 1106, 1927, 10165, 200104, 302419, 203, 207, 223)
"""Traces that were judged differently once: gaps outside of groups, snapshots beside invalid rows; a message delivered
again behind the place where a merge stops, or at an earlier time; in a watch, snapshots of processes without rows and
processes that the table does not list."""


@pytest.mark.parametrize("seed", [*range(TRACES), *FOUND, *range(TIMED, TIMED + 20)])
def test_every_way_gives_the_same_verdicts(seed: int, tmp_path: Path) -> None:
    answers = compare_ways(seed, tmp_path / "run")
    assert describe_difference(seed, answers) is None, describe_difference(seed, answers)


@pytest.mark.parametrize("seed", SPARK_SEEDS)
def test_spark_gives_the_same_verdicts(spark: SparkSession, seed: int, tmp_path: Path) -> None:
    answers = compare_ways(seed, tmp_path / "run", SPARK_WAYS)
    assert describe_difference(seed, answers) is None, describe_difference(seed, answers)


MUTANTS = [
    ("amcast.check.evidence._refuse_contradictions", 27),
    ("amcast.check.genuineness._refuse_contradictions", 193),
    ("amcast.pipeline.check.run_view.refuse_contradictions", 27),
    ("amcast.pipeline.check.run_view.refuse_other_groups", 59),
    ("amcast.pipeline.check.examination.refuse_stated", 37),
    ("amcast.pipeline.check.genuineness._refuse_contradictions", 193),
    ("amcast.pipeline.check.job.refuse_other_groups", 59),
    ("amcast.pipeline.rows.sort.refuse_contradictions", 27),
    ("amcast.pipeline.check.order._is_shifted", 1927),
    ("amcast.pipeline.watch.incremental_order.IncrementalOrder.finish", 207),
    ("amcast.pipeline.watch.incremental_order.IncrementalOrder.add_snapshot", 203),
]
"""Refusals and cases that a checker may forget, each with a trace that shows it."""


@pytest.mark.parametrize(("forgotten", "seed"), MUTANTS)
def test_forgotten_cases_are_noticed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, forgotten: str, seed: int
) -> None:
    monkeypatch.setattr(forgotten, lambda *arguments: None)
    assert describe_difference(seed, compare_ways(seed, tmp_path / "run")) is not None


def test_packets_are_compared_with_multicasts_of_other_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A task that stopped at the multicasts of its packets' time would not judge this trace's wrong packet."""
    assert describe_difference(35, compare_ways(35, tmp_path / "right")) is None
    monkeypatch.setattr("amcast.pipeline.check.genuineness.REACHES", (1,))
    wrong = describe_difference(35, compare_ways(35, tmp_path / "wrong"))
    assert wrong is not None
    assert "segments: {\"P6'\": ('violated', 'holds')}" in wrong


def find_trace(accepts: Callable[[WrittenTrace], bool]) -> WrittenTrace:
    """The first well-formed trace, without gaps, that has what a test needs."""
    for seed in range(5000, 6000):
        trace = make_trace(seed)
        if not trace.changes and not trace.tables["notes"] and accepts(trace):
            return trace
    raise AssertionError("no such trace among 1000")


def judge_everywhere(trace: WrittenTrace, folder: Path) -> dict[str, object]:
    trace.write(folder)
    found = {name: find_verdicts(way, folder)[0] for name, way in WAYS.items()}
    found["brute force"] = judge_by_force(trace)
    return found


def violates_order(trace: WrittenTrace) -> bool:
    verdicts = judge_by_force(trace)
    return isinstance(verdicts, dict) and verdicts["P5"] == "violated" and verdicts["P1"] == "holds"


def test_writer_that_states_only_its_own_group_is_refused(tmp_path: Path) -> None:
    """A merge that trusted this would see no order between groups, and say that it holds."""
    trace = find_trace(violates_order)
    generator.deliveries_state_own_group_only(Random(0), trace)
    trace.omitted.clear()
    sent = {row["message"]: row["at_ns"] for row in trace.tables["multicasts"]}
    for row in trace.tables["deliveries"]:
        row["multicast_ns"] = sent.get(row["message"], 0)
    assert set(judge_everywhere(trace, tmp_path / "run").values()) == {REFUSED}
    for way in WAYS.values():
        with pytest.raises(UsageError, match=r"deliveries: destinations of message .*, but .* in multicasts"):
            way(tmp_path / "run")


def test_lie_of_any_replica_is_refused(tmp_path: Path) -> None:
    """Files that are read as they are, a process each: what a replica states is compared with the others, too."""

    def has_equal_replicas(trace: WrittenTrace) -> bool:
        verdicts = judge_by_force(trace)
        holds = isinstance(verdicts, dict) and {verdicts[f"P{number}"] for number in range(1, 6)} == {"holds"}
        return holds and len(trace.tables["deliveries"]) > 2 * len(trace.tables["multicasts"])

    trace = find_trace(has_equal_replicas)
    trace.omitted.clear()
    sent = {row["message"]: row for row in trace.tables["multicasts"]}
    for row in trace.tables["deliveries"]:
        known = sent.get(row["message"], {"at_ns": 0, "destinations": []})
        row["multicast_ns"], row["destinations"] = known["at_ns"], known["destinations"]
    lie = [row["group"] for row in trace.tables["processes"] if row["group"] is not None]
    for process in sorted({row["process"] for row in trace.tables["deliveries"]}):
        folder = trace.write(tmp_path / str(process))
        data = pq.read_table(folder / "deliveries")
        shutil.rmtree(folder / "deliveries")
        (folder / "deliveries").mkdir()
        for other in sorted(set(data.column("process").to_pylist())):
            own = data.filter(pc.equal(data.column("process"), other)).sort_by("position")
            if other == process:
                groups = own.column("destinations").to_pylist()
                known = next(at for at, message in enumerate(own.column("message").to_pylist()) if message in sent)
                groups[known] = [*lie, 4711] if 4711 not in lie else lie
                at = own.schema.get_field_index("destinations")
                own = own.set_column(at, "destinations", pa.array(groups, pa.list_(pa.int32())))
            pq.write_table(own, folder / "deliveries" / f"p{other}.parquet")
        assert find_verdicts(WAYS["large"], folder)[0] == REFUSED, process


@pytest.mark.parametrize("number", [-(2**63), 2**63 - 1])
def test_lowest_session_is_a_session(tmp_path: Path, number: int) -> None:
    def violates_fifo(trace: WrittenTrace) -> bool:
        verdicts = judge_by_force(trace)
        return isinstance(verdicts, dict) and verdicts["P7"] == "violated"

    trace = find_trace(violates_fifo)
    for row in trace.tables["multicasts"]:
        row["session"] = number if row["session"] == 90 else row["session"]
    for verdicts in judge_everywhere(trace, tmp_path / "run").values():
        assert isinstance(verdicts, dict)
        assert verdicts["P7"] == "violated"


def test_delivery_before_the_multicast_is_seen_below_time_zero(tmp_path: Path) -> None:
    trace = find_trace(lambda trace: judge_by_force(trace) != REFUSED and bool(trace.tables["deliveries"]))
    row = trace.tables["deliveries"][0]
    row["at_ns"] = -5
    for verdicts in judge_everywhere(trace, tmp_path / "run").values():
        assert isinstance(verdicts, dict)
        assert verdicts["P1"] == "violated"


def test_work_grows_with_rows_and_not_with_positions(tmp_path: Path) -> None:
    trace = find_trace(lambda trace: len(trace.tables["deliveries"]) > 10)
    trace.omitted.clear()
    trace.tables["deliveries"][-1]["position"] = 2**61
    source = read_trace_folder(str(trace.write(tmp_path / "run")))
    row_groups = read_footers("deliveries", source.tables["deliveries"], [trace.run])
    proven = prove_row_groups("deliveries", row_groups, [trace.run]).row_groups
    process = trace.tables["deliveries"][-1]["process"]
    own = [one for one in proven if one.process == (process, process)] or proven[-1:]
    sequences = FileSequences([one for one in own if one.process[0] == one.process[1]])
    ends = {p: extent.end for p, extent in sequences.extents().items()}
    plan = plan_comparison(run_sequentially, [(p,) for p in ends], sequences, ends)
    assert len(plan.build_calls(sequences)) <= 2 * len(ends)
    holes = sum(high - low for empty in plan.find_empty() for low, high in empty.holes)
    assert holes > 2**60


@pytest.mark.parametrize("groups", [(0, 1, 2), (-5, 3, 2_000_000_000), (-(2**31), 2**31 - 1)])
def test_groups_are_routed_whatever_their_numbers(groups: tuple[int, ...]) -> None:
    import numpy as np

    from amcast.pipeline.rows.sequences import Entries

    routing = ChainRouting([ChainPlan.of_process(group, place, 1) for place, group in enumerate(groups)])
    values = np.array([*groups, 77], np.int32)
    none = np.zeros(1, np.int64)
    rows = Entries(none, none, np.array([0, values.size], np.int32), values, none)
    assert routing.to_chain_numbers(rows)[1].tolist() == [*range(len(groups)), -1]
    assert routing.first.nbytes < 1000


def test_cut_off_statistics_of_long_names_prove_nothing(tmp_path: Path) -> None:
    """Some writers keep only the first bytes of the lowest and the highest value: the rows are then read."""
    from types import SimpleNamespace

    from amcast.pipeline.rows.footers import _is_proven
    from amcast.trace.columns import DELIVERIES

    name = "n" * 100
    cut = SimpleNamespace(has_min_max=True, min="n" * 64, max="n" * 63 + "o", has_null_count=True, null_count=0)
    exact = SimpleNamespace(has_min_max=True, min=name, max=name, has_null_count=True, null_count=0)
    assert not _is_proven(DELIVERIES[0], pa.string(), cut, [name])
    assert _is_proven(DELIVERIES[0], pa.string(), exact, [name])
    assert not _is_proven(DELIVERIES[0], pa.string(), exact, ["another"])
