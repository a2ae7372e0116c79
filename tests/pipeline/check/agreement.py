"""One trace, judged on every way: the plain checker, the kernels as for a small run, the kernels as for a large run,
and the brute force. They must agree on every verdict, or all refuse. What a watch says, and the measures, are compared
as far as that goes (`other_ways`).

    python -m tests.pipeline.check.agreement --traces 5000 --seed 0      thousands of traces; exit code 1 if two differ
    python -m tests.pipeline.check.agreement --traces 1 --seed 4711      one trace again, with every answer
    python -m tests.pipeline.check.agreement --seed 1000000000           traces of which time alone decides P9
    python -m tests.pipeline.check.agreement --traces 200 --spark        the same through Spark sessions and tasks
"""

import argparse
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from amcast.check import judge
from amcast.kernel.errors import UsageError
from amcast.pipeline.check.job import GAPPED_ROWS, CheckLimits, LargeRunJob, check, judge_folders
from amcast.pipeline.check.runner import run_sequentially
from amcast.pipeline.measure.small_run import MeasureSetting
from amcast.pipeline.rows.files import read_trace_folder
from amcast.pipeline.rows.footers import read_footers
from amcast.pipeline.spark.session import open_session
from amcast.trace.run import read_run
from tests.pipeline.check.brute_force import BruteForce, RefusedError
from tests.pipeline.check.other_ways import find_wrong_measure, find_wrong_watch
from tests.pipeline.check.trace_generator import WrittenTrace, make_trace, strip_omitted

SETTING = MeasureSetting(0.1, None, is_exact=True)
LARGE = CheckLimits(small_rows=0, gapped_rows=0)
SEGMENTED = CheckLimits(small_rows=0, gapped_rows=0, segment_entries=4, packet_rows=3)
"""The merge in as many segments as can be cut, and packets a few at a time, with the multicasts of their time."""
Verdicts = dict[str, str] | str
"""The verdict of each property, or REFUSED."""
REFUSED = "refused"
RIGHT, WRONG = "not wrong", "wrong"
"""Of ways that do not judge every property."""


def judge_by_force(trace: WrittenTrace) -> Verdicts:
    if trace.is_damaged():
        return REFUSED
    try:
        return BruteForce(strip_omitted(trace), trace.claims, trace.clock_bound_ns).verdicts()
    except RefusedError:
        return REFUSED


def judge_plainly(folder: Path) -> dict[str, Any]:
    return judge(read_run(folder)).as_dict()


def judge_as_small(folder: Path) -> dict[str, Any]:
    source = read_trace_folder(str(folder))
    return judge_folders([source], GAPPED_ROWS)[source.folder][0]


def judge_as_large(folder: Path, limits: CheckLimits | None = None) -> dict[str, Any]:
    source = read_trace_folder(str(folder))
    runs = [meta.run for meta in source.metas]
    footers = {table: tuple(read_footers(table, files, runs)) for table, files in source.tables.items()}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        return LargeRunJob(run_sequentially, scratch, limits or LARGE).judge(source, footers)[0]


def judge_in_segments(folder: Path) -> dict[str, Any]:
    return judge_as_large(folder, SEGMENTED)


def judge_with_spark(folder: Path) -> dict[str, Any]:
    return check(str(folder))["runs"][0]


def judge_large_with_spark(folder: Path) -> dict[str, Any]:
    return check(str(folder), limits=LARGE)["runs"][0]


WAYS: dict[str, Callable[[Path], dict[str, Any]]] = {
    "plain": judge_plainly,
    "small": judge_as_small,
    "large": judge_as_large,
    "segments": judge_in_segments,
}
SPARK_WAYS = {"spark, small": judge_with_spark, "spark, large": judge_large_with_spark}


def find_verdicts(way: Callable[[Path], dict[str, Any]], folder: Path) -> tuple[Verdicts, str]:
    """The verdicts, and the refusal in words."""
    try:
        report = way(folder)
    except UsageError as refusal:
        return REFUSED, str(refusal)
    return {name: finding["verdict"] for name, finding in report["properties"].items()}, ""


def compare_ways(
    seed: int, folder: Path, ways: dict[str, Callable[[Path], dict[str, Any]]] | None = None
) -> dict[str, tuple[Verdicts, str]]:
    """The answers of every way about the trace of a seed, the brute force first."""
    trace = make_trace(seed)
    trace.write(folder)
    answers: dict[str, tuple[Verdicts, str]] = {"brute force": (judge_by_force(trace), "")}
    for name, way in (ways or WAYS).items():
        answers[name] = find_verdicts(way, folder)
    for name, wrong in (
        ("watch", find_wrong_watch(trace, folder)),
        ("measure", find_wrong_measure(trace, folder, SETTING)),
    ):
        answers[name] = (RIGHT, "") if wrong is None else (WRONG, wrong)
    return answers


def describe_difference(seed: int, answers: dict[str, tuple[Verdicts, str]]) -> str | None:
    """Which ways differ, and how; None if all agree."""
    wanted = answers["brute force"][0]
    lines = [f"  {name}: {sentence}" for name, (found, sentence) in answers.items() if found == WRONG]
    for name, (found, sentence) in answers.items():
        if found in (wanted, WRONG, RIGHT):
            continue
        if isinstance(found, dict) and isinstance(wanted, dict):
            differ = {p: (wanted[p], found[p]) for p in wanted if wanted[p] != found[p]}
            lines.append(f"  {name}: {differ}")
        else:
            lines.append(f"  {name}: {found} {sentence}; brute force: {wanted}")
    if not lines:
        return None
    changes = ", ".join(make_trace(seed).changes) or "none"
    command = f"python -m tests.pipeline.check.agreement --traces 1 --seed {seed}"
    return "\n".join([f"seed {seed} (changes: {changes})", *lines, f"  again: {command}"])


def search(first: int, traces: int, ways: dict[str, Callable[[Path], dict[str, Any]]]) -> int:
    """Judges traces on every way and prints where two differ; returns how many do."""
    place, wrong, outcomes = Path(tempfile.mkdtemp(prefix="amcast-traces-")), 0, Counter[str]()
    for seed in range(first, first + traces):
        folder = place / str(seed)
        try:
            answers = compare_ways(seed, folder, ways)
        except Exception as error:
            print(f"seed {seed}: {type(error).__name__}: {error}", flush=True)
            if traces == 1:
                raise
            wrong += 1
            continue
        found = answers["brute force"][0]
        outcomes.update([found] if isinstance(found, str) else [f"{name} {v}" for name, v in found.items()])
        difference = describe_difference(seed, answers)
        if difference is not None:
            wrong += 1
            print(difference, flush=True)
        if traces == 1:
            print(make_trace(seed).changes, *answers.items(), sep="\n")
        shutil.rmtree(folder)
    shutil.rmtree(place, ignore_errors=True)
    print(f"{traces} traces from seed {first}, {wrong} judged differently; {dict(sorted(outcomes.items()))}")
    return wrong


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--traces", type=int, default=2000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--spark", action="store_true")
    given = parser.parse_args()
    if not given.spark:
        return 1 if search(given.seed, given.traces, WAYS) else 0
    with open_session("local[2,4]", brief=True):
        return 1 if search(given.seed, given.traces, {**WAYS, **SPARK_WAYS}) else 0


if __name__ == "__main__":
    sys.exit(main())
