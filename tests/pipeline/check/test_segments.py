"""The merge in segments: the answer of the merge in one piece, and one piece where segments are not closed."""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from amcast.pipeline.check import examination
from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.check.segments import (
    Segment,
    build_merge_calls,
    close_cut,
    find_cut,
    join_segments,
    merge_segment,
    plan_segments,
)
from amcast.pipeline.check.survey import ChainPlan, merge_chains
from amcast.pipeline.rows.footers import read_written_row_groups
from amcast.pipeline.rows.sequences import FileSequences
from amcast.pipeline.rows.sort import SCHEMA
from tests.pipeline.check.agreement import SEGMENTED, find_verdicts, judge_as_large, judge_in_segments
from tests.pipeline.check.trace_generator import make_trace

CHAINS = 4


def write_chains(folder: Path, messages: int, swapped: int = -1) -> tuple[FileSequences, list[ChainPlan]]:
    """A process per group; each message goes to two or three groups, one after the other, 100 ns apart; groups deliver
    it up to 900 ns later. At `swapped`, one group delivers two messages the other way round."""
    random = np.random.default_rng(5)
    rows: dict[int, list[tuple[int, int, list[int]]]] = {chain: [] for chain in range(CHAINS)}
    for message in range(messages):
        groups = sorted(random.choice(CHAINS, 2 + message % 2, replace=False).tolist())
        for group in groups:
            rows[group].append((message, 100 * message + int(random.integers(900)), groups))
    if swapped >= 0:
        own = rows[0]
        at = next(at for at, row in enumerate(own) if row[0] >= swapped and len({*row[2]} & {*own[at + 1][2]}) > 1)
        own[at], own[at + 1] = own[at + 1], own[at]
    return write_rows(folder, rows)


def write_rows(
    folder: Path, rows: dict[int, list[tuple[int, int, list[int]]]]
) -> tuple[FileSequences, list[ChainPlan]]:
    """Files of chains, each entry with its message, the time of its delivery and its destinations."""
    paths = []
    for chain, own in rows.items():
        table = {
            "process": [chain] * len(own),
            "position": list(range(len(own))),
            "message": [row[0] for row in own],
            "at_ns": [row[1] for row in own],
            "multicast_ns": [100 * row[0] + 50 * (row[0] % 7) for row in own],
            "destinations": [row[2] for row in own],
        }
        path = folder / f"{chain}.parquet"
        pq.write_table(pa.table(table, schema=SCHEMA), path, row_group_size=500)
        paths.append(str(path))
    return FileSequences(read_written_row_groups(paths)), [
        ChainPlan.of_process(chain, chain, len(own)) for chain, own in rows.items()
    ]


def list_late(table: Any) -> dict[int, int]:
    """message -> the latest multicast that precedes it, where that is later than its own."""
    found: dict[int, int] = {}
    for batch in table.batches(["message", "latest_ns"]):
        for message, latest in zip(batch.column(0).to_pylist(), batch.column(1).to_pylist(), strict=True):
            found[message] = max(latest, found.get(message, latest))
    return found


def test_segments_have_the_answer_of_one_piece(tmp_path: Path) -> None:
    sequences, plans = write_chains(tmp_path, 8000)
    segments = plan_segments(run_sequentially, sequences, plans, 2000)
    assert len(segments) > 5
    assert segments[0].continued == (True,) * CHAINS
    assert segments[-1].continued == (False,) * CHAINS
    paths: list[str | None] = [None] * len(segments)
    found = run_sequentially(build_merge_calls(sequences, segments, 16, paths))
    joined = join_segments(run_sequentially, sequences, segments, found, paths)
    assert joined is not None
    merged, prints, late = merge_chains(sequences, plans, 16)
    assert (joined[0].removed, joined[0].heads, joined[0].latest) == (8000, (), merged.latest)
    assert not joined[1].find_differences(prints).any()
    assert list_late(joined[2]) == list_late(late)
    assert len(list_late(late)) > 1000


def test_cycle_inside_a_segment_stops_its_merge(tmp_path: Path) -> None:
    sequences, plans = write_chains(tmp_path, 4000, swapped=3000)
    segments = plan_segments(run_sequentially, sequences, plans, 2000)
    paths: list[str | None] = [None] * len(segments)
    found = run_sequentially(build_merge_calls(sequences, segments, 16, paths))
    assert sum(bool(one.merged.heads) for one in found) == 1
    assert join_segments(run_sequentially, sequences, segments, found, paths) is None


def test_cut_through_a_message_is_counted(tmp_path: Path) -> None:
    """Both halves can be merged, and the order of the whole has a cycle: only the count shows it."""
    sequences, plans = write_rows(tmp_path, {0: [(1, 5, [0, 1]), (2, 6, [0, 1])], 1: [(2, 5, [0, 1]), (1, 6, [0, 1])]})
    assert merge_chains(sequences, plans, 16)[0].heads
    halves = [
        Segment([ChainPlan(0, 0, ((0, 0, 2),)), ChainPlan(1, 1, ((1, 0, 0),))], (False, True)),
        Segment([ChainPlan(0, 0, ((0, 2, 2),)), ChainPlan(1, 1, ((1, 0, 2),))], (False, False)),
    ]
    found = [merge_segment(sequences, half, 16, None) for half in halves]
    assert not any(one.merged.heads for one in found)
    assert not halves[0].is_closed(found[0].merged)
    assert join_segments(run_sequentially, sequences, halves, found, [None, None]) is None


def test_cut_is_moved_back_until_no_message_is_on_both_sides() -> None:
    """Chain 0 has 1 2 3 | 4, chain 1 has 2 | 1 4 3: 1 and 3 are on both sides; then 2 is."""
    messages = np.array([1, 2, 3, 4, 2, 1, 4, 3])
    positions = np.array([0, 1, 2, 3, 0, 1, 2, 3])
    chains = np.array([0, 0, 0, 0, 1, 1, 1, 1])
    cut = np.array([3, 1])
    assert close_cut(cut, messages, positions, chains)
    assert cut.tolist() == [0, 0]
    cut = np.array([3, 4])
    messages = np.array([1, 2, 3, 4, 1, 2, 3, 4])
    assert close_cut(cut, messages, positions, chains)
    assert cut.tolist() == [3, 3]


def test_cut_needs_times_and_entries_in_sight(tmp_path: Path) -> None:
    sequences, plans = write_chains(tmp_path, 300)
    assert find_cut(sequences, plans, 15_000) is not None
    assert find_cut(sequences, plans, -1) is None, "nothing is before it"
    assert len(plan_segments(run_sequentially, sequences, plans, 10**6)) == 1


@pytest.mark.parametrize("outcome", ["joined", "one piece"])
def test_generated_traces_take_both_ways(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, outcome: str) -> None:
    """Seeds whose segments are joined, and seeds for which they are not enough."""
    outcomes = []

    def join(*arguments: Any) -> Any:
        found = join_segments(*arguments)
        outcomes.append("one piece" if found is None else "joined")
        return found

    monkeypatch.setattr(examination, "join_segments", join)
    for seed in range(60):
        folder = tmp_path / str(seed)
        make_trace(seed).write(folder)
        answers = [find_verdicts(judge_in_segments, folder)[0]]
        if outcomes and outcomes[-1] == outcome:
            assert answers[0] == find_verdicts(judge_as_large, folder)[0]
            assert SEGMENTED.segment_entries < 10
            return
    raise AssertionError(f"no seed of 60: {outcomes}")
