"""docs/errata.md: the papers' pseudo-code where it does not work as printed, each with a run that shows it.

    python -m tests.docs.errata            writes the page and its pictures
    python -m tests.docs.errata NAME       tells the run of one erratum, step by step

Each printed rule is planted as a mutant; the fuzzer finds a run that it spoils, the shrinker makes it minimal, and the
correct protocol survives the same seed. Same code, same page.
"""

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from inspect import getdoc
from pathlib import Path
from typing import Any, Final

from amcast.kernel.spec import Spec
from amcast.lab.failure_scripts import make_script
from amcast.lab.runs import PreparedRun, fuzz_seed, make_judge, prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.replay import narrate, replay
from amcast.simulation.schedulers.script import Script
from amcast.simulation.schedulers.shrink import shrink
from amcast.trace.recorder import Recorder
from amcast.trace.run import Run
from amcast.trace.spacetime_diagram import draw_spacetime
from tests import ROOT
from tests.mutants.outcome import is_caught
from tests.mutants.protocols import flexcast, timestamped

PAGE: Final = ROOT / "docs" / "errata.md"
PICTURES: Final = ROOT / "docs" / "pictures" / "errata"
SEEDS: Final = 300
MAX_LINES: Final = 60
"""Of a story. A run that blocks goes on with timers for as long as it is watched."""


@dataclass(frozen=True)
class Erratum:
    """One printed rule, planted, and the rule of a correct version."""

    name: str
    paper: str
    process: Any
    product: Spec
    correct: str
    faults: str = "none"
    replicas: int = 3
    groups: int = 3
    destinations: tuple[int, int] = (1, 3)
    messages: tuple[int, ...] = (3, 6, 12)
    """A short run is easier to follow: the search begins with few messages."""
    max_runs: int = 300
    """Runs that shrinking may take. A run that blocks takes long."""

    @property
    def printed(self) -> str:
        return " ".join((getdoc(self.process) or "").split())

    def plan(self, messages: int) -> dict[str, Any]:
        return {
            "protocol": self.product.name,
            "topology": {"groups": self.groups, "replicas": self.replicas, "clients": 2},
            "workload": {"messages": messages, "outstanding": 4, "destinations": list(self.destinations)},
            "faults": {"profile": self.faults},
            "nodes": self.faults != "none",
        }


def _from_timestamped(name: str, paper: str, correct: str, replicas: int = 1) -> Erratum:
    mutant = next(mutant for mutant in timestamped.MUTANTS if mutant.name == name)
    replicas = 3 if mutant.faults != "none" else replicas
    return Erratum(name, paper, mutant.process, mutant.product, correct, mutant.faults, replicas)


def _from_flexcast(name: str, process: type[flexcast.FlexCast], correct: str) -> Erratum:
    spec = flexcast.Mutant(process, frozenset()).spec()
    return Erratum(name, "000", process, spec, correct, replicas=1, groups=4, destinations=(2, 3))


ERRATA: Final = (
    _from_flexcast("an early acknowledgement is lost", flexcast.EarlyAcksLost, "keep acknowledgements by message id"),
    _from_flexcast("higher groups are awaited", flexcast.HigherGroupsAwaited, "await the group's ancestors only"),
    _from_flexcast(
        "one notification is checked", flexcast.OneNotificationChecked, "check every notification that waits"
    ),
    _from_flexcast("the list is left behind", flexcast.ListLeftBehind, "one list per copy of a message, sent with it"),
    _from_flexcast("dependencies are lost", flexcast.EdgesLost, "merge the ancestor's dependencies into the own ones"),
    _from_timestamped("A_ge* skips s2", "001", "all global messages of A_ge* pass through all four stages", 3),
    _from_timestamped("equal timestamps block", "003, 004", "compare (timestamp, message id)"),
    _from_timestamped("the clock stays behind", "004", "raise the clock at SYNC-HARD"),
    _from_timestamped("the own timestamp is not in B", "003", "keep (SEND-HARD, own group, timestamp) in B, too"),
)


@dataclass(frozen=True)
class FoundRun:
    """A minimal run that a printed rule spoils."""

    erratum: Erratum
    prepared: PreparedRun
    script: Script
    seed: int
    messages: int

    def tell(self) -> Sequence[str]:
        judge = make_judge(self.prepared, self.seed)
        claims = self.prepared.spec.claims
        return narrate(self.script, self.prepared.make, claims, judge, monitoring=self.prepared.monitoring)

    def draw(self) -> str:
        recorder = Recorder()
        replay(
            self.script,
            self.prepared.make,
            self.prepared.spec.claims,
            make_judge(self.prepared, self.seed),
            strict=False,
            node_bodies=self.prepared.node_bodies,
            monitoring=self.prepared.monitoring,
            recorder=recorder,
        )
        topology = self.prepared.topology
        recorder.processes.clear()
        for process in topology.processes:
            recorder.record_process(process, topology.group_of(process), topology.region(process), None)
        return draw_spacetime(Run.from_recorder(recorder, self.prepared.make_meta(slug(self.erratum))))


def title(erratum: Erratum) -> str:
    return erratum.name[0].upper() + erratum.name[1:]


def slug(erratum: Erratum) -> str:
    """The anchor of its heading."""
    return re.sub(r"[^\w -]", "", erratum.name.lower()).replace(" ", "-")


def find_run(erratum: Erratum) -> FoundRun:
    """The first seed, with as few messages as possible, in which the printed rule fails and the product does not."""
    for messages in erratum.messages:
        plan = parse_plan(erratum.plan(messages))
        planted, product = prepare_run(plan, _plant(erratum)), prepare_run(plan)
        for seed in range(SEEDS):
            outcome = fuzz_seed(planted, seed)
            if is_caught(outcome) and fuzz_seed(product, seed).status == "holds":
                small = shrink(
                    make_script(planted, outcome),
                    planted.make,
                    planted.spec.claims,
                    make_judge(planted, seed),
                    max_runs=erratum.max_runs,
                    node_bodies=planted.node_bodies,
                    monitoring=planted.monitoring,
                )
                return FoundRun(erratum, planted, small.script, seed, messages)
    raise AssertionError(
        f"{erratum.name}: {SEEDS} seeds with up to {erratum.messages[-1]} messages found nothing wrong"
    )


def _plant(erratum: Erratum) -> Spec:
    spec = erratum.product
    if spec.process is erratum.process:
        return spec

    return replace(spec, process=erratum.process)


INTRODUCTION: Final = """# Errata of the papers, to watch

Parts of the printed pseudo-code block or order messages in a cycle. Each is planted here on purpose, as it is printed;
the fuzzer finds a run that it spoils, the shrinker makes it minimal, and the protocol of amcast survives the seed from
which the run comes. `.venv/bin/python -m tests.docs.errata NAME` tells one again, without NAME it writes this page. A
long story is cut here: what blocks goes on with timers, and delivers nothing.
Every deviation from a paper, with its reason, is on the page of its protocol. One printed rule is planted in the tests
alone (`tests/mutants/protocols/timestamped.py`), because its runs do not become short enough to be read: a late guess
of FastCast that stays in B (003, lines 34 to 36) blocks everything later.

| paper | as printed | what happens | a correct version |
|---|---|---|---|
"""


def render_page(found: Sequence[FoundRun]) -> str:
    lines = [INTRODUCTION.rstrip()]
    for run in found:
        erratum, status = run.erratum, {"violated": "order violated", "stuck": "blocks"}[run.script.status]
        link = f"[{erratum.name}](#{slug(erratum)})"
        lines.append(f"| {erratum.paper} | {link}: {erratum.printed} | {status} | {erratum.correct} |")
    for run in found:
        lines += ["", *render_run(run)]
    return "\n".join(lines) + "\n"


def render_run(run: FoundRun) -> list[str]:
    """The section of one erratum: picture, schedule and story."""
    erratum, steps = run.erratum, list(run.tell())
    return [
        f"## {title(erratum)}",
        "",
        f"{erratum.printed} A correct version: {erratum.correct}.",
        "",
        f"{erratum.product.name}, {erratum.groups} groups of {erratum.replicas}, seed {run.seed} with"
        f" {run.messages} messages, shrunk to {len(run.script.actions)} steps:",
        "",
        f"![{erratum.name}](pictures/errata/{slug(erratum)}.svg)",
        "",
        *(f"    {line}" for line in abridge(steps)),
    ]


def abridge(lines: Sequence[str]) -> Sequence[str]:
    """The beginning and the last line of a story."""
    if len(lines) <= MAX_LINES:
        return lines
    return [*lines[: MAX_LINES - 2], f"... {len(lines) - MAX_LINES + 1:,} more lines ...", lines[-1]]


def main(names: Sequence[str]) -> None:
    if names:
        for erratum in ERRATA:
            if erratum.name in names or slug(erratum) in names:
                print("\n".join(find_run(erratum).tell()))
        return
    found = []
    PICTURES.mkdir(parents=True, exist_ok=True)
    for erratum in ERRATA:
        found.append(find_run(erratum))
        (PICTURES / f"{slug(erratum)}.svg").write_text(found[-1].draw(), encoding="utf-8")
        print(f"{erratum.name}: seed {found[-1].seed}, {len(found[-1].script.actions)} steps", flush=True)
    Path(PAGE).write_text(render_page(found), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
