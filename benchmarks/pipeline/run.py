"""The Spark check against DuckDB and Polars: the same checks, the same files, one after the other on the same machine.

    python benchmarks/pipeline/run.py --deliveries 1000000 10000000 50000000 --folder runs/bench

Each engine runs in a process of its own, which does every check once; session start is measured apart. Wall is the time
of a check, cpu the processor time of the whole process tree meanwhile, peak the tree's memory (proportional set size).
On a machine that does other work too, compare cpu, not wall.
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
    """The most memory that this process and its children held meanwhile."""

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


def spark_checks(folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    """The parts of the Spark check one by one, then the whole as users run it."""
    from amcast.pipeline import genuine
    from amcast.pipeline.examine import Examination
    from amcast.pipeline.files import source, spans
    from amcast.pipeline.jobs.check import Limits, check
    from amcast.pipeline.runner import spark_runner, warm
    from amcast.pipeline.sequences import FiledSequences, separate
    from amcast.pipeline.session import session
    from amcast.pipeline.survey import fingerprint, merge_chains, survey_multicasts
    from amcast.pipeline.view import filed_view

    with session() as spark:
        run = spark_runner(spark)
        # Workers that have loaded the kernels are part of a session that has started.
        run([(warm, (number,)) for number in range(4 * (os.cpu_count() or 1))])
        found = source(str(folder))
        rows = spans(found.tables["deliveries"])
        assert separate(rows)
        view = filed_view(found, found.metas[0], FiledSequences(rows), in_order=False)
        judge = Examination(view, run)
        plans = [judge._longest(group) for group in view.members]

        def integrity() -> int:
            chains = [(fingerprint, (view.sequences, plan, judge.buckets)) for plan in plans]
            parts = [
                (survey_multicasts, (part, view.crashed, judge.buckets)) for part in view.multicasts.split(1 << 22)
            ]
            answers = run([*chains, *parts])
            total, *sides = answers[: len(chains)]
            for side in sides:
                total += side
            return int(total.differing(judge._followed(answers[len(chains) :]).prints).sum())

        def replicas() -> int:
            answers = run(judge._comparing(view.sequences, judge.ends))
            return sum(not replica.alike for answer in answers for replica in answer)

        def order() -> int:
            merged, _ = run([(merge_chains, (view.sequences, plans, judge.buckets))])[0]
            return len(merged.heads)

        def packets() -> int:
            return sum(audit.strangers for audit in run(genuine.calls(judge)))

        def whole() -> int:
            report = check(str(folder), limits=Limits(small_rows=0))["runs"][0]
            return sum(
                report["properties"][name]["verdict"] != "holds" for name in ("P1", "P2", "P3", "P4", "P5", "P6'")
            )

        yield from (("integrity", integrity), ("replicas", replicas), ("order", order), ("packets", packets))
        yield "all at once", whole


def checks_of(engine: str, folder: Path) -> Iterator[tuple[str, Callable[[], int]]]:
    if engine == "spark":
        yield from spark_checks(folder)
        return
    import engines

    made = engines.duckdb_checks(folder, os.cpu_count() or 1) if engine == "duckdb" else engines.polars_checks(folder)
    yield from ((name, made[name]) for name in CHECKS)


def measure(engine: str, folder: Path) -> None:
    """Run one engine's checks in this process; a line of JSON for each."""
    begun = time.monotonic()
    checks = checks_of(engine, folder)
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


def table(deliveries: int, found: dict[str, dict[str, dict[str, float]]]) -> str:
    """A table in Markdown: wall s / cpu s."""
    lines = [f"| {deliveries:,} deliveries | " + " | ".join(ENGINES) + " |", "|---|" + "---:|" * len(ENGINES)]

    def cell(numbers: dict[str, float] | None) -> str:
        return f"{numbers['wall']:.1f} / {numbers['cpu']:.1f}" if numbers else "-"

    for name in CHECKS:
        lines.append(f"| {name} | " + " | ".join(cell(found[engine].get(name)) for engine in ENGINES) + " |")
    totals = {}
    for engine in ENGINES:
        parts = [found[engine][name] for name in CHECKS if name in found[engine]]
        totals[engine] = {key: sum(part[key] for part in parts) for key in ("wall", "cpu")}
    lines.append("| **sum** | " + " | ".join(cell(totals[engine]) for engine in ENGINES) + " |")
    lines.append("| **as `amcast check` runs it** | " + cell(found["spark"].get("all at once")) + " | | |")
    peaks = [max((part.get("mib", 0.0) for part in found[engine].values()), default=0.0) / 1024 for engine in ENGINES]
    lines.append("| peak memory, GiB | " + " | ".join(f"{peak:.1f}" for peak in peaks) + " |")
    lines.append("| start, s | " + " | ".join(f"{found[engine]['start']['wall']:.1f}" for engine in ENGINES) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--deliveries", type=int, nargs="+", default=[1_000_000, 10_000_000, 50_000_000])
    parser.add_argument("--folder", type=Path, default=Path("runs/bench"))
    parser.add_argument("--engine", choices=ENGINES, help="run only this engine, in this process")
    options = parser.parse_args()
    if options.engine:
        measure(options.engine, options.folder)
        return
    sys.path.insert(0, str(HERE))
    import generate

    for deliveries in options.deliveries:
        folder = options.folder / f"{deliveries}"
        if not (folder / "run.json").exists():
            generate.generate(folder, deliveries)
        found: dict[str, dict[str, dict[str, float]]] = {}
        for engine in ENGINES:
            command = [sys.executable, str(Path(__file__)), "--engine", engine, "--folder", str(folder)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            found[engine] = {line["check"]: line for line in map(json.loads, done.stdout.splitlines())}
        print(table(deliveries, found), end="\n\n", flush=True)


if __name__ == "__main__":
    main()
