"""The Spark check against DuckDB and Polars: the same checks on the same files, one after the other on one machine.

    python benchmarks/pipeline/run.py --deliveries 1000000 10000000 50000000 --folder runs/bench --rounds 3
    python benchmarks/pipeline/run.py --deliveries 200000000 --engines spark --whole

Each engine runs in a process of its own, which does every check once; session start is measured separately. The engines
alternate, round by round, and the minimum of each number over the rounds is reported. Wall is the time of a check, cpu
the processor time of the whole process tree during it, peak the tree's memory (proportional set size). On a machine
that does other work too, compare cpu, not wall.
"""

import argparse
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

HERE = Path(__file__).parent
CHECKS = ("integrity", "replicas", "order", "packets")
ALL_CHECKS = (*CHECKS, "stated")
"""With what Spark's check does as a part of the others."""
ENGINES = ("spark", "duckdb", "polars")


# Measuring a process tree


def tree(root: int) -> list[int]:
    """A process and all its descendants."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                parent = int((entry / "stat").read_text().rpartition(")")[2].split()[1])
            except OSError:
                continue
            children.setdefault(parent, []).append(int(entry.name))
    found, front = [], [root]
    while front:
        found += front
        front = [child for process in front for child in children.get(process, [])]
    return found


def cpu_seconds(root: int) -> float:
    """Processor time of the tree so far, of children that have ended included."""
    ticks = 0
    for process in tree(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        ticks += sum(int(field) for field in fields[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mib(root: int) -> float:
    total = 0
    for process in tree(root):
        try:
            lines = Path(f"/proc/{process}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        total += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    return total / 1024


class Peak:
    """The most memory that this process and its children held during the block."""

    def __init__(self) -> None:
        self.mib = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def _watch(self) -> None:
        while not self._stop.wait(0.2):
            self.mib = max(self.mib, memory_mib(os.getpid()))

    def __enter__(self) -> "Peak":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()


# One engine


def spark_checks(folder: Path, parts: bool) -> Iterator[tuple[str, Callable[[], int]]]:
    """The parts of the Spark check one by one, then the whole check; or only that."""
    from amcast.pipeline.check import genuineness
    from amcast.pipeline.check.examination import Examination
    from amcast.pipeline.check.job import CheckLimits, check, load_kernels
    from amcast.pipeline.check.run_view import build_file_view
    from amcast.pipeline.check.survey import (
        fingerprint_chain,
        join_surveys,
        merge_chains,
        plan_comparison,
        plan_longest_chain,
        survey_multicasts,
    )
    from amcast.pipeline.rows.files import read_trace_folder
    from amcast.pipeline.rows.footers import prove_tables, read_footers
    from amcast.pipeline.rows.sequences import FileSequences, are_separated
    from amcast.pipeline.spark.session import open_session
    from amcast.pipeline.spark.tasks import make_spark_runner

    with open_session() as spark:
        run = make_spark_runner(spark)
        # Loading the kernels in the workers is part of starting the session.
        run([(load_kernels, (number,)) for number in range(4 * (os.cpu_count() or 1))])
        found = read_trace_folder(str(folder))
        names = [meta.run for meta in found.metas]
        read = {table: tuple(read_footers(table, files, names)) for table, files in found.tables.items()}
        footers = prove_tables(run, read, names).footers
        rows = list(footers["deliveries"])
        assert are_separated(rows)
        view = build_file_view(found, footers, found.metas[0], FileSequences(rows), is_sorted=False)
        judge = Examination(view, run)
        plans = [plan_longest_chain(group, members, judge.ends) for group, members in view.members.items()]

        def integrity() -> int:
            chains = [(fingerprint_chain, (view.sequences, plan, judge.buckets)) for plan in plans]
            parts = [
                (survey_multicasts, (part, view.crashed, judge.buckets)) for part in view.multicasts.split(1 << 22)
            ]
            answers = run([*chains, *parts])
            total, *sides = answers[: len(chains)]
            for side in sides:
                total += side
            return int(total.find_differences(join_surveys(answers[len(chains) :], judge.buckets).prints).sum())

        def replicas() -> int:
            plan = plan_comparison(run, view.members.values(), view.sequences, judge.ends)
            found = [one for answer in run(plan.build_calls(view.sequences)) for one in answer] + plan.find_empty()
            return sum(not one.is_clean for one in found)

        def order() -> int:
            merged, *_ = run([(merge_chains, (view.sequences, plans, judge.buckets))])[0]
            return len(merged.heads)

        def packets() -> int:
            return genuineness.audit_packets(run, view, judge.buckets).outsider_pairs

        def whole() -> int:
            report = check(str(folder), limits=CheckLimits(small_rows=0))["runs"][0]
            return sum(
                report["properties"][name]["verdict"] != "holds" for name in ("P1", "P2", "P3", "P4", "P5", "P6'")
            )

        if parts:
            yield from (("integrity", integrity), ("replicas", replicas), ("order", order), ("packets", packets))
        yield "all at once", whole


def checks_of(engine: str, folder: Path, parts: bool) -> Iterator[tuple[str, Callable[[], int]]]:
    if engine == "spark":
        yield from spark_checks(folder, parts)
        return
    import engines

    made = engines.duckdb_checks(folder, os.cpu_count() or 1) if engine == "duckdb" else engines.polars_checks(folder)
    yield from ((name, made[name]) for name in ALL_CHECKS)


def measure(engine: str, folder: Path, parts: bool) -> None:
    """Run one engine's checks in this process; a line of JSON for each."""
    begun = time.monotonic()
    checks = checks_of(engine, folder, parts)
    first = next(checks)
    print(json.dumps({"check": "start", "wall": time.monotonic() - begun}), flush=True)
    each = [first]
    while each:
        name, work = each.pop()
        wall, cpu = time.monotonic(), cpu_seconds(os.getpid())
        with Peak() as peak:
            wrong = work()
        line = {"check": name, "wall": time.monotonic() - wall, "cpu": cpu_seconds(os.getpid()) - cpu, "mib": peak.mib}
        print(json.dumps({**line, "wrong": wrong}), flush=True)
        assert wrong == 0, f"{engine} says that {name} of a sound trace has {wrong} wrong rows"
        each += [found] if (found := next(checks, None)) is not None else []


# All engines


Numbers = dict[str, dict[str, float]]
"""check -> what was measured."""


def least(rounds: list[Numbers]) -> Numbers:
    """The least of each number over the rounds, but the most memory."""
    found: Numbers = {}
    for line in (line for each in rounds for line in each.items()):
        kept = found.setdefault(line[0], dict(line[1]))
        for key, value in line[1].items():
            if isinstance(value, float):
                kept[key] = (max if key == "mib" else min)(kept[key], value)
    return found


def table(deliveries: int, found: dict[str, Numbers]) -> str:
    """A table in Markdown: wall s / cpu s."""
    lines = [f"| {deliveries:,} deliveries | " + " | ".join(found) + " |", "|---|" + "---:|" * len(found)]

    def cell(numbers: dict[str, float] | None) -> str:
        return f"{numbers['wall']:.1f} / {numbers['cpu']:.1f}" if numbers else "-"

    def add_sum(name: str, names: tuple[str, ...]) -> None:
        parts = [[numbers[name] for name in names if name in numbers] for numbers in found.values()]
        totals = [{key: sum(part[key] for part in own) for key in ("wall", "cpu")} for own in parts]
        lines.append(f"| **{name}** | " + " | ".join(map(cell, totals)) + " |")

    if any(name in numbers for numbers in found.values() for name in CHECKS):
        for name in ALL_CHECKS:
            lines.append(f"| {name} | " + " | ".join(cell(numbers.get(name)) for numbers in found.values()) + " |")
        add_sum("sum without stated", CHECKS)
        add_sum("sum", ALL_CHECKS)
    whole = [cell(numbers["all at once"]) if "all at once" in numbers else "" for numbers in found.values()]
    lines.append("| **as `amcast check` runs it** | " + " | ".join(whole) + " |")
    peaks = [max(part.get("mib", 0.0) for part in numbers.values()) / 1024 for numbers in found.values()]
    lines.append("| peak memory, GiB | " + " | ".join(f"{peak:.1f}" for peak in peaks) + " |")
    starts = [numbers["start"]["wall"] for numbers in found.values()]
    lines.append("| start, s | " + " | ".join(f"{start:.1f}" for start in starts) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deliveries", type=int, nargs="+", default=[1_000_000, 10_000_000, 50_000_000])
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--engines", choices=ENGINES, nargs="+", default=list(ENGINES))
    parser.add_argument("--whole", action="store_true", help="of Spark, only the check as users run it")
    parser.add_argument("--here", choices=ENGINES, help="measure this engine in this process")
    options = parser.parse_args()
    if options.here:
        measure(options.here, options.folder, not options.whole)
        return
    sys.path.insert(0, str(HERE))
    import generate

    for deliveries in options.deliveries:
        folder = options.folder / f"{deliveries}"
        if not (folder / "run.json").exists():
            generate.generate(folder, deliveries)
        found: dict[str, list[Numbers]] = {engine: [] for engine in options.engines}
        for number in range(options.rounds):
            print(f"round {number + 1} of {deliveries:,}, load {os.getloadavg()[0]:.1f}", file=sys.stderr, flush=True)
            for engine in options.engines:
                command = [sys.executable, str(Path(__file__)), "--here", engine, "--folder", str(folder)]
                command += ["--whole"] if options.whole else []
                done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
                found[engine].append({line["check"]: line for line in map(json.loads, done.stdout.splitlines())})
        print(table(deliveries, {engine: least(rounds) for engine, rounds in found.items()}), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
