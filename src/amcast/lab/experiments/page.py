"""docs/reproduction.md: all claims with ours beside theirs. Generated from the committed tables."""

from collections import Counter
from collections.abc import Mapping, Sequence

from amcast.lab.experiments.experiment import PAPERS, Experiment, ExperimentFile, ListedClaim
from amcast.lab.experiments.live_points import LiveRow
from amcast.lab.experiments.table import Row
from amcast.lab.experiments.verdicts import CheckedNumber, JudgedClaim

INTRODUCTION = """# The papers, reproduced

Every claim of the five papers' evaluations, with our numbers beside theirs. `amcast reproduce --page` writes this page
from the tables in `experiments/`; `amcast reproduce --list` names the experiments, `amcast reproduce NAME` runs one (it
continues after the cells that its table has), and `--quick` runs a reduced grid without touching the table.

A check has a direction and a tolerance that were set before it was run: *equal* within the tolerance, or at least
(*above*), or at most (*below*) the paper's value. Where a first run showed that a check measured something else than
the claim is about, it was corrected, and the setting says so. Comparisons of which the paper prints no number are
ratios with 1. A claim **holds** if all its checks do, **holds in part** if some do, and **differs** if none does.
Simulated processes have no CPU cost unless an experiment says so: absolute throughputs of other machines are no
targets, ratios and shapes are. Experiments were run with one seed unless the table has more; from three seeds on the
95 % confidence interval of the mean stands behind our number. [Errata](errata.md) shows
the printed pseudo-code that does not work, as runs to watch.

Live points are clusters of real processes with the distances imitated inside their links, and the same plan simulated.
The committed ones were run on two cores that other programs kept busy (a load of nine to fourteen), so that every step
of a live run took some milliseconds longer; rounds of 1.67 ms (A_ng) could not be kept there.
"""


def render_page(
    claims: Sequence[ListedClaim],
    experiments: dict[str, Experiment],
    judged: Sequence[JudgedClaim],
    tables: Mapping[str, Sequence[Row]],
    live: Mapping[str, Sequence[LiveRow]] | None = None,
) -> str:
    """The whole page. `live` has the rows of live points, by experiment."""
    counts = Counter(one.verdict for one in judged)
    summary = ", ".join(
        f"{counts[verdict]} {verdict}"
        for verdict in ("holds", "holds in part", "differs", "cannot be tested here", "not run")
    )
    lines = [INTRODUCTION, f"**{len(judged)} claims: {summary}.**", ""]
    by_number = {one.number: one for one in judged}
    for paper, title in PAPERS.items():
        lines += [f"## {paper}: {title}", "", "| | claim | where | verdict | experiment |", "|---|---|---|---|---|"]
        own = [claim for claim in claims if claim.paper == paper]
        for claim in own:
            one = by_number[claim.number]
            link = f"[{one.experiment}](#{one.experiment})" if one.experiment else ""
            lines.append(f"| {claim.number} | {claim.text} | {claim.where} | **{one.verdict}** | {link} |")
        lines.append("")
        for claim in own:
            one = by_number[claim.number]
            if one.reason and one.verdict != "not run":
                lines += [f"{claim.number}: {one.verdict}. {one.reason}", ""]
    lines += ["## Experiments", ""]
    for experiment in experiments.values():
        lines += _render_experiment(experiment, judged, tables.get(experiment.name, ()))
        lines += _render_live(experiment, (live or {}).get(experiment.name, ()))
    return "\n".join(lines).rstrip() + "\n"


def _render_experiment(experiment: Experiment, judged: Sequence[JudgedClaim], rows: Sequence[Row]) -> list[str]:
    file = experiment.file
    seeds = len({row["seed"] for row in rows})
    seconds = sum(float(row.get("seconds", 0)) for row in rows)
    lines = [
        f"### {experiment.name}",
        "",
        f"{file.title}. {_name_source(file)}. {file.question}",
        "",
        f"Setting: {file.setting}",
        "",
        f"    amcast reproduce {experiment.name}",
        "",
        f"{len(rows)} cells, {seeds} seed{'s' if seeds != 1 else ''}, {seconds / 60:.1f} minutes:"
        f" [table](../experiments/{experiment.name}/table.csv)."
        if rows
        else "Not run yet.",
        "",
    ]
    for number in range(len(file.picture)):
        if not rows or not (experiment.folder / f"picture-{number + 1}.svg").is_file():
            continue  # it is drawn at the end of a run
        lines += [f"![{file.picture[number].title}](../experiments/{experiment.name}/picture-{number + 1}.svg)", ""]
    own = [one for one in judged if one.experiment == experiment.name]
    if own:
        lines += ["| claim | number | paper | ours | ratio | expected | |", "|---|---|---|---|---|---|---|"]
        lines += [_render_number(one.number, number) for one in own for number in one.numbers]
        lines.append("")
    return lines


def _name_source(file: ExperimentFile) -> str:
    return "Beyond the papers" if file.paper == "beyond" else f"Paper {file.paper}, {file.figure}"


def _render_live(experiment: Experiment, rows: Sequence[LiveRow]) -> list[str]:
    """What clients waited for where points of the experiment were run live."""
    if not rows:
        return []
    lines = [
        f"Live, with the distances imitated inside the links (`amcast reproduce {experiment.name} --live`): what"
        " clients waited for, in ms.",
        "",
        "| live point | messages | p50, simulated | live | mean, simulated | live | |",
        "|---|---|---|---|---|---|---|",
    ]
    for row in rows:
        fields = (f"{path.rpartition('.')[2]} {value}" for path, value in row.point.items() if path != "options")
        options = [f"{name} = {value}" for name, value in row.point.get("options", {}).items()]
        spans = [f"{world[name]:.1f}" for name in ("p50_ms", "mean_ms") for world in (row.simulated, row.live)]
        point = ", ".join([*fields, *options])
        lines.append(f"| {point} | {row.messages} | {' | '.join(spans)} | {row.difference:+.0%} |")
    return [*lines, ""]


def _render_number(claim: int, number: CheckedNumber) -> str:
    check = number.check
    sign = {"equal": "±", "above": "at least, -", "below": "at most, +"}[check.direction]
    ours = "not run" if number.ours is None else format_number(number.ours)
    if number.interval is not None:
        ours += f" ({format_number(number.interval[0])} to {format_number(number.interval[1])})"
    ratio = "" if number.ratio is None else f"{number.ratio:.2f}"
    verdict = {None: "", True: "holds", False: "differs"}[number.holds]
    paper = format_number(check.paper)
    return f"| {claim} | {check.say} | {paper} | {ours} | {ratio} | {sign}{check.tolerance:.0%} | {verdict} |"


def format_number(value: float) -> str:
    return f"{value:.0f}" if value >= 1000 else f"{value:.3g}"
