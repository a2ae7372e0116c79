"""Pictures of an experiment's table, as the paper drew them."""

from collections import defaultdict
from collections.abc import Sequence
from statistics import fmean
from typing import Any

from amcast.figures.charts import Axis, Chart, ChartFrame, Curve, draw_curves
from amcast.lab.experiments.experiment import Experiment, Picture
from amcast.lab.experiments.table import Row


def draw_pictures(experiment: Experiment, rows: Sequence[Row]) -> list[Chart]:
    """The charts of an experiment; those of which no row is there are omitted."""
    charts = [
        _draw(f"picture-{number}", picture, rows) for number, picture in enumerate(experiment.file.picture, start=1)
    ]
    return [chart for chart in charts if chart.rows]


def _draw(name: str, picture: Picture, rows: Sequence[Row]) -> Chart:
    points: dict[str, dict[float, list[float]]] = defaultdict(lambda: defaultdict(list))
    for row in rows:
        if picture.y in row and picture.x in row and all(row.get(key) == value for key, value in picture.only.items()):
            label = " ".join(filter(None, (_name(row.get(key)) for key in picture.series)))
            points[label][float(row[picture.x])].append(float(row[picture.y]))
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
