"""Pictures of an experiment's table, as the paper drew them."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any, Final

from amcast.figures.charts import (
    Axis,
    Chart,
    ChartFrame,
    Curve,
    RangeLine,
    draw_curves,
    draw_ranges,
    draw_winners,
    format_compact,
)
from amcast.lab.experiments.experiment import Experiment, Picture
from amcast.lab.experiments.table import Row

TIE: Final = 1.02
"""A value up to so many times the least one is as good."""


def draw_pictures(experiment: Experiment, rows: Sequence[Row]) -> list[Chart]:
    """The charts of an experiment; those of which no row is there are omitted."""
    charts = [
        _draw(f"picture-{number}", picture, rows) for number, picture in enumerate(experiment.file.picture, start=1)
    ]
    return [chart for chart in charts if chart.rows]


def _draw(name: str, picture: Picture, rows: Sequence[Row]) -> Chart:
    shown = [row for row in rows if all(row.get(key) == value for key, value in picture.only.items())]
    draw = {"lines": _draw_lines, "bars": _draw_bars, "winners": _draw_winners}[picture.kind]
    return draw(name, picture, shown)


def _label(picture: Picture, row: Row) -> str:
    return " ".join(filter(None, (_name(row.get(key)) for key in picture.series)))


def _draw_bars(name: str, picture: Picture, rows: Sequence[Row]) -> Chart:
    """Per line and value of x a mark at the mean of y, with a whisker from the least to the highest of its seeds."""
    bars: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if picture.y in row:
            bars[_label(picture, row), _name(row.get(picture.x))].append(float(row[picture.y]))
    series = list(dict.fromkeys(label for label, _ in bars))
    lines = [
        RangeLine(f"{x} {label}".strip(), [fmean(values)], min(values), max(values), series.index(label), label)
        for (label, x), values in sorted(bars.items(), key=lambda item: item[0][1])
    ]
    frame = ChartFrame(name, picture.title, "", Axis(picture.label_y, zero=True), Axis(picture.label_x))
    return draw_ranges(frame, [picture.label_y], lines)


def _draw_winners(name: str, picture: Picture, rows: Sequence[Row]) -> Chart:
    """Who has the least of a value, by the values of two columns."""
    found: dict[tuple[str, str], dict[str, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if picture.value in row:
            line = " ".join(filter(None, (_name(row.get(key)) for key in picture.places or (picture.y,))))
            place = line, _name(row.get(picture.x))
            found[place][_label(picture, row)].append(float(row[picture.value]))
    lines = list(dict.fromkeys(y for y, _ in found))
    columns = list(dict.fromkeys(x for _, x in found))
    cells = [[_find_winner(found[y, x]) if (y, x) in found else None for x in columns] for y in lines]
    frame = ChartFrame(name, picture.title, "", Axis(picture.label_x), Axis(picture.label_y))
    return draw_winners(frame, columns, lines, cells)


def _find_winner(values: dict[str, list[float]]) -> tuple[str, str]:
    """The line with the least mean; behind its number, how many others are within 2 % of it."""
    means = {label: fmean(found) for label, found in values.items()}
    best = min(means, key=lambda label: means[label])
    ties = sum(mean <= TIE * means[best] for label, mean in means.items() if label != best)
    return best, format_compact(means[best]) + (f" (+{ties})" if ties else "")


def _draw_lines(name: str, picture: Picture, rows: Sequence[Row]) -> Chart:
    points: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if picture.y in row and picture.x in row:
            points[_label(picture, row)][float(row[picture.x])].append(float(row[picture.y]))
    lines = []
    for label, values in points.items():
        places = sorted(values)
        several = any(len(values[x]) > 1 for x in places)
        lines.append(
            Curve(
                label,
                places,
                [fmean(values[x]) for x in places],
                [min(values[x]) for x in places] if several else (),
                [max(values[x]) for x in places] if several else (),
            )
        )
    frame = ChartFrame(name, picture.title, "", Axis(picture.label_x), Axis(picture.label_y, zero=True))
    return draw_curves(frame, lines)


def _name(value: Any) -> str:
    """A value of a column, in the name of a line."""
    if isinstance(value, dict):
        return " ".join(f"{key}={inner}" for key, inner in value.items() if not isinstance(inner, list))
    return "" if value is None else str(value)
