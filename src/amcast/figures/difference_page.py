"""Two runs, sweeps or commits on one page: what differs, with its interval, and both distributions in one picture."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from amcast.figures import charts
from amcast.figures.chart_selection import PageContent
from amcast.figures.charts import Axis, Chart, ChartFrame, Curve, RangeLine, spans_decades
from amcast.figures.html_page import ReportSummary, render_page
from amcast.figures.report import write_page_files
from amcast.figures.tables import PageTable, format_number
from amcast.pipeline.measure.difference import NumberChange, RunsDifference

MS: Final = 1e6
MAX_LINES: Final = 24
MAX_STORY: Final = 8
SIDES: Final = ("before", "after")
MEANINGS: Final = {
    "holds": ("Not worse", "No number that decides is worse in the second."),
    "violated": ("Worse", "A number that decides is worse in the second, or more of its runs are not in order."),
    "unknown": ("Not shown", "The runs do not show whether the second is worse."),
}
CHANGES: Final = ("worse", "better", "same", "unknown")


@dataclass(frozen=True)
class ComparedSide:
    """One of the two: its name, and the rows of its measures that pictures need."""

    name: str
    distributions: Sequence[Mapping[str, Any]] = field(default=())
    throughput: Sequence[Mapping[str, Any]] = field(default=())


def write_difference(found: RunsDifference, sides: tuple[ComparedSide, ComparedSide], out: Path) -> Path:
    """Writes the page and its pictures; returns the page."""
    summary = summarize_difference(found, sides)
    content = PageContent(draw_difference(found, sides), tabulate_difference(found), left_out=describe_limits(found))
    return write_page_files(summary, content, render_page(summary, content), out)[0]


def summarize_difference(found: RunsDifference, sides: tuple[ComparedSide, ComparedSide]) -> ReportSummary:
    """The head of the page."""
    numbers = [one for setting in found.settings for one in setting.numbers if one.gated]
    counts = {change: sum(one.change == change for one in numbers) for change in CHANGES}
    story = [*found.worse, *(f"not known: {sentence}" for sentence in found.unknown)]
    if len(story) > MAX_STORY:
        story[MAX_STORY:] = [f"and {len(story) - MAX_STORY} more sentences: amcast diff shows them"]
    return ReportSummary(
        title=f"{sides[0].name} and {sides[1].name}",
        verdict=found.verdict,
        meaning=MEANINGS[found.verdict],
        story=tuple(story),
        tiles=(
            ("settings", format_number(len(found.settings))),
            *((f"numbers {change}", format_number(count)) for change, count in counts.items()),
        ),
        facts=tuple(zip(SIDES, (side.name for side in sides), strict=True)),
        notes=(
            "A difference is the second minus the first; its interval is of 95 %. Runs of equal seeds are compared seed"
            " by seed.",
            "A number is the same or worse only if its interval shows that. Intervals are not corrected for the number"
            " of comparisons: of many settings, some are called worse by chance.",
        ),
    )


def describe_limits(found: RunsDifference) -> list[str]:
    """What the page leaves out, in sentences."""
    numbers, settings = sum(len(setting.numbers) for setting in found.settings), len(found.settings)
    sentences = []
    if numbers > MAX_LINES:
        sentences.append(f"The picture of differences shows {MAX_LINES} of {numbers} numbers.")
    if settings > MAX_LINES:
        sentences.append(f"The tables are those of {MAX_LINES} of {settings} settings; amcast diff --json has all.")
    return sentences


def draw_difference(found: RunsDifference, sides: tuple[ComparedSide, ComparedSide]) -> list[Chart]:
    """A line per number with its interval; and both runs in one picture, where each side has one setting."""
    made = []
    lines = [
        _draw_change(setting.name, one, len(found.settings) > 1)
        for setting in found.settings
        for one in setting.numbers
    ]
    known = [line for line in lines if line is not None]
    if known:
        frame = ChartFrame(
            "differences",
            "What differs",
            "The second relative to the first, with the 95 % interval where the runs give one; 0 is no difference.",
            Axis("difference, per cent"),
        )
        made.append(charts.draw_ranges(frame, ("difference",), known[:MAX_LINES]))
    if len(found.settings) == 1:
        for draw in (_draw_distributions, _draw_throughput):
            picture = draw(sides)
            if picture is not None:
                made.append(picture)
    return made


def _draw_change(setting: str, one: NumberChange, is_named: bool) -> RangeLine | None:
    share = one.to_share(one.difference)
    if share is None:
        return None
    low, high = (None if end is None else 100 * end for end in (one.to_share(one.low), one.to_share(one.high)))
    label = f"{setting}: {one.number}" if is_named else one.number
    # The colours of the series: the second is orange, the third green.
    colour = {"worse": 1, "better": 2, "same": 0}.get(one.change, 7)
    return RangeLine(label, [100 * share], low, high, colour)


def _draw_distributions(sides: tuple[ComparedSide, ComparedSide]) -> Chart | None:
    lines = []
    for name, side in zip(SIDES, sides, strict=True):
        by_share: dict[float, list[float]] = {}
        for row in side.distributions:
            if row["by"] == "all":
                by_share.setdefault(row["share"], []).append(row["latency_ns"] / MS)
        if by_share:
            shares = sorted(by_share)
            lines.append(Curve(name, [sum(by_share[s]) / len(by_share[s]) for s in shares], shares))
    if len(lines) < 2:
        return None
    is_log = spans_decades([x for line in lines for x in line.x if x > 0])
    frame = ChartFrame(
        "distributions",
        "How latencies are distributed",
        "The share of responses within a time; the mean over runs.",
        Axis("latency, ms", log=is_log, zero=not is_log),
        Axis("share of responses", zero=True, top=1.02),
    )
    return charts.draw_curves(frame, lines, marks=False)


def _draw_throughput(sides: tuple[ComparedSide, ComparedSide]) -> Chart | None:
    """The first run of each side, both counted from their first slice."""
    lines = []
    for name, side in zip(SIDES, sides, strict=True):
        first = min((row["run"] for row in side.throughput), default=None)
        rows = sorted((row for row in side.throughput if row["run"] == first), key=lambda row: row["from_ns"])
        if rows:
            zero = rows[0]["from_ns"]
            middle = [((row["from_ns"] + row["to_ns"]) / 2 - zero) / 1e9 for row in rows]
            lines.append(Curve(name, middle, [row["completions_per_s"] for row in rows]))
    if len(lines) < 2:
        return None
    frame = ChartFrame(
        "throughput",
        "Messages completed per second over time",
        "One run of each, from its first message on.",
        Axis("seconds"),
        Axis("messages per second", zero=True),
    )
    return charts.draw_curves(frame, lines, marks=False)


def tabulate_difference(found: RunsDifference) -> list[PageTable]:
    """A table per setting, up to as many as a page holds."""
    headings = ("number", "before", "after", "difference", "95 % interval", "runs", "")
    tables = []
    for setting in found.settings[:MAX_LINES]:
        rows = tuple(_list_cells(one) for one in setting.numbers)
        tables.append(PageTable(setting.name, headings, rows, "", ""))
    return tables


def _list_cells(one: NumberChange) -> tuple[str, ...]:
    share, low, high = (one.to_share(value) for value in (one.difference, one.low, one.high))
    return (
        one.number + ("" if one.gated else " (only shown)"),
        f"{one.before:,.6g}",
        f"{one.after:,.6g}",
        f"{100 * share:+.1f} %" if share is not None else f"{one.difference:+.6g}",
        f"{100 * low:+.1f} to {100 * high:+.1f} %" if low is not None and high is not None else "",
        f"{one.runs[0]}, {one.runs[1]}",
        one.change,
    )
