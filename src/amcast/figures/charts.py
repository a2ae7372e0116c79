"""The kinds of chart. Each takes plain numbers and returns a chart with the table that it shows."""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite, log
from typing import Any, Final

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullFormatter

from amcast.figures import style

WIDTH = 4.7
"""Inches: about the width of a phone; the page scales charts up."""
PANEL_WIDTH: Final = 2.35
"""Inches of one of many small charts: half the width of a phone."""
DECADES: Final = 20
"""Positive values whose largest is at least this many times their smallest are drawn on a logarithmic scale."""


@dataclass(frozen=True)
class Chart:
    """One chart, as a file and for the page, and its numbers."""

    name: str
    title: str
    caption: str
    file: str
    inline: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    is_wide: bool = False
    """Takes the whole width of a page with two columns."""


class PointList:
    """The places of a chart that answer to a pointer: what stands there, in words."""

    def __init__(self) -> None:
        self._found: list[tuple[Axes, float, float, str, str]] = []

    def add(self, axes: Axes, x: float, y: float, text: str, series: str = "") -> None:
        """Adds a place in the coordinates of the axes."""
        self._found.append((axes, x, y, text, series))

    def to_json(self, drawing: Any) -> str:
        """The places in points of the drawing, from its left upper corner."""
        drawing.draw_without_rendering()
        width, height = drawing.get_size_inches() * 72
        places = []
        for axes, x, y, text, series in self._found:
            across, up = drawing.transFigure.inverted().transform(axes.transData.transform((x, y)))
            if isfinite(across) and isfinite(up):
                places.append([round(width * across, 1), round(height * (1 - up), 1), text, series])
        return json.dumps(places, separators=(",", ":"))


@dataclass(frozen=True)
class Curve:
    """One line. `low` and `high` are the ends of an interval of y, where known."""

    label: str
    x: Sequence[float]
    y: Sequence[float]
    low: Sequence[float | None] = ()
    high: Sequence[float | None] = ()
    notes: Sequence[str] = ()
    """Labels of points."""
    series: str = ""
    """What a reader filters by: the protocol."""
    colour: int | None = None
    """The number of its colour, if it has one in other charts, too."""


@dataclass(frozen=True)
class Axis:
    """The label and scale of an axis."""

    label: str
    log: bool = False
    zero: bool = False
    """Begin at 0."""
    top: float | None = None


@dataclass
class ChartFrame:
    """The name, title, caption and axes of a chart."""

    name: str
    title: str
    caption: str
    x: Axis = field(default_factory=lambda: Axis(""))
    y: Axis = field(default_factory=lambda: Axis(""))


def spans_decades(values: Iterable[float | None]) -> bool:
    """Whether a linear scale would flatten the smaller ones of these values."""
    known = [value for value in values if value is not None]
    return bool(known) and min(known) > 0 and max(known) >= DECADES * min(known)


def draw_curves(
    frame: ChartFrame,
    lines: Sequence[Curve],
    marks: bool = True,
    bands: Sequence[tuple[float, float]] = (),
    events: Sequence[tuple[float, str]] = (),
) -> Chart:
    """Lines, with marks at their points; bands are shaded, events are vertical lines."""
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 3.1 + 0.17 * max(0, (len(lines) - 1) // 2))
        axes = drawing.add_subplot()
        points = PointList()
        for left, right in bands:
            axes.axvspan(left, right, color=style.WASH[0], linewidth=0, zorder=0)
        for at, text in events:
            axes.axvline(at, color=style.SERIES[1][0], linewidth=1, linestyle=(0, (3, 2)))
            axes.annotate(
                text,
                (at, 1),
                xycoords=("data", "axes fraction"),
                fontsize=7,
                rotation=90,
                ha="right",
                va="top",
                color=style.SOFT[0],
            )
        for number, line in enumerate(lines):
            _draw_line(axes, number, line, marks)
            _add_points(points, axes, frame, line)
        _format_axes(axes, frame)
        # An interval from few seeds can be huge; it must not flatten the curves.
        highest = max((value for line in lines for value in line.y), default=0.0)
        if frame.y.top is None and not frame.y.log and axes.get_ylim()[1] > 1.5 * highest > 0:
            axes.set_ylim(top=1.5 * highest)
        if len(lines) > 1 or (lines and lines[0].label):
            drawing.legend(loc="outside lower left", ncols=2, handlelength=1.6, columnspacing=1.4)
        return _build_chart(frame, drawing, _list_headings(frame), _list_rows(lines), points)


def draw_panels(frame: ChartFrame, lines: Sequence[Curve], marks: bool = True) -> Chart:
    """Many lines as small charts with equal axes: in each, one line in its colour and the others behind it in grey."""
    with style.apply_style():
        limits = _find_limits(frame, lines)
        panels = []
        for number, line in enumerate(lines):
            drawing = style.create_figure(PANEL_WIDTH, 1.95)
            axes, points = drawing.add_subplot(), PointList()
            for other in lines:
                if other is not line:
                    axes.plot(other.x, other.y, color=style.GRID[0], linewidth=1.1, zorder=1)
            _draw_line(axes, number, line, marks)
            _add_points(points, axes, frame, line)
            _format_axes(axes, frame)
            axes.set_xlim(*limits[0])
            axes.set_ylim(*limits[1])
            axes.set_title(line.label)
            name = f"{frame.name}-{number}"
            text, places = style.render_svg(drawing, name), points.to_json(drawing)
            title = escape(f"{frame.title}: {line.label}", quote=True)
            inline = style.to_inline_svg(text, name, title, places)
            panels.append(f'<div data-series="{escape(line.series or line.label, quote=True)}">{inline}</div>')
        whole = _draw_all_panels(frame, lines, marks, limits)
    return Chart(
        frame.name,
        frame.title,
        frame.caption,
        style.add_background(whole),
        f'<div class="panels">{"".join(panels)}</div>',
        _list_headings(frame),
        tuple(_list_rows(lines)),
        is_wide=True,
    )


def _draw_all_panels(frame: ChartFrame, lines: Sequence[Curve], marks: bool, limits: Any) -> str:
    """The file: all panels in one drawing."""
    columns = 4
    rows = -(-len(lines) // columns)
    drawing = style.create_figure(columns * PANEL_WIDTH, rows * 1.95)
    for number, line in enumerate(lines):
        axes = drawing.add_subplot(rows, columns, number + 1)
        for other in lines:
            if other is not line:
                axes.plot(other.x, other.y, color=style.GRID[0], linewidth=1.1, zorder=1)
        _draw_line(axes, number, line, marks)
        _format_axes(axes, frame)
        axes.set_xlim(*limits[0])
        axes.set_ylim(*limits[1])
        axes.set_title(line.label)
    return style.render_svg(drawing, frame.name)


def _find_limits(frame: ChartFrame, lines: Sequence[Curve]) -> list[tuple[float, float]]:
    """The ends of both axes, with some space around the values."""
    limits = []
    for axis, values in ((frame.x, [v for line in lines for v in line.x]), (frame.y, [v for e in lines for v in e.y])):
        low, high = min(values, default=0.0), max(values, default=1.0)
        if axis.log:
            limits.append((low / 1.4, high * 1.4))
        else:
            low = 0.0 if axis.zero else low
            limits.append((low, axis.top or high + 0.08 * (high - low or 1)))
    return limits


def _list_headings(frame: ChartFrame) -> tuple[str, ...]:
    return ("line", frame.x.label, frame.y.label, "low", "high")


def _list_rows(lines: Sequence[Curve]) -> list[tuple[Any, ...]]:
    return [
        (line.label, line.x[place], line.y[place], _value_at(line.low, place), _value_at(line.high, place))
        for line in lines
        for place in range(len(line.x))
    ]


def _add_points(points: PointList, axes: Axes, frame: ChartFrame, line: Curve, most: int = 120) -> None:
    """What a pointer reads at the points of a line; of many points, every so many-th."""
    for place in range(0, len(line.x), max(1, len(line.x) // most)):
        low, high = _value_at(line.low, place), _value_at(line.high, place)
        interval = "" if low is None or high is None else f" ({format_compact(low)} to {format_compact(high)})"
        note = f", {line.notes[place]}" if place < len(line.notes) else ""
        x, y = line.x[place], line.y[place]
        text = f"{line.label}{note}: {frame.x.label} {format_compact(x)}, {frame.y.label} {format_compact(y)}{interval}"
        points.add(axes, x, y, text, line.series or line.label)


def _draw_line(axes: Axes, number: int, line: Curve, marks: bool) -> None:
    number = number if line.colour is None else line.colour
    colour = style.series_colour(number)
    marker = style.MARKERS[number % len(style.MARKERS)] if marks else None
    (drawn,) = axes.plot(line.x, line.y, color=colour, marker=marker, label=line.label, markeredgewidth=0)
    drawn.set_gid(style.mark_series(line.series or line.label, f"{number}"))
    low, high = list(line.low), list(line.high)
    if len(low) == len(line.y) and any(value is not None for value in low):
        down = [max(0.0, y - v) if v is not None else 0.0 for y, v in zip(line.y, low, strict=True)]
        up = [max(0.0, v - y) if v is not None else 0.0 for y, v in zip(line.y, high, strict=True)]
        bars = axes.errorbar(line.x, line.y, yerr=[down, up], fmt="none", ecolor=colour, elinewidth=1, capsize=2)
        for part, artist in enumerate((*bars.lines[1], *bars.lines[2])):
            artist.set_gid(style.mark_series(line.series or line.label, f"{number}-{part}"))


@dataclass(frozen=True)
class RangeLine:
    """One line of a range chart: some values of one thing, from low to high."""

    label: str
    values: Sequence[float]
    low: float | None = None
    high: float | None = None
    colour: int = 0
    series: str = ""
    """What a reader filters by: the protocol."""


def draw_ranges(frame: ChartFrame, names: Sequence[str], lines: Sequence[RangeLine]) -> Chart:
    """Per line, a bar from its first to its last value with a mark at each: percentiles, for example."""
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 0.95 + 0.26 * len(lines))
        axes, points = drawing.add_subplot(), PointList()
        for place, line in enumerate(lines):
            colour, series = style.series_colour(line.colour), line.series or line.label
            ends = (line.values[0], line.values[-1])
            if line.low is not None and line.high is not None:
                ends = (line.low, line.high)
            (bar,) = axes.plot(ends, [place, place], color=colour, linewidth=3, alpha=0.35, solid_capstyle="round")
            bar.set_gid(style.mark_series(series, f"{place}-bar"))
            for number, value in enumerate(line.values):
                (mark,) = axes.plot(
                    [value], [place], marker=style.MARKERS[number], color=colour, markersize=5, markeredgewidth=0
                )
                mark.set_gid(style.mark_series(series, f"{place}-{number}"))
                interval = (
                    f" ({format_compact(line.low)} to {format_compact(line.high)})"
                    if line.low is not None and line.high is not None
                    else ""
                )
                text = f"{line.label}, {names[number]}: {format_compact(value)}{interval}, {frame.x.label}"
                points.add(axes, value, place, text, series)
        axes.set_yticks(range(len(lines)), style.shorten_labels([line.label for line in lines]))
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        for number, name in enumerate(names):
            axes.plot([], [], marker=style.MARKERS[number], color=style.SOFT[0], linestyle="none", label=name)
        _format_axes(axes, frame, y=False)
        if len(names) > 1:
            drawing.legend(loc="outside lower left", ncols=len(names), handlelength=1)
        rows = [(line.label, *line.values) for line in lines]
        return _build_chart(frame, drawing, ("", *names), rows, points)


def draw_bars(frame: ChartFrame, parts: Sequence[str], lines: Sequence[tuple[str, Sequence[float]]]) -> Chart:
    """Horizontal bars, each made of parts."""
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 0.95 + 0.26 * len(lines) + 0.17 * ((len(parts) - 1) // 3))
        axes, points = drawing.add_subplot(), PointList()
        for place, (label, values) in enumerate(lines):
            begin = 0.0
            for number, value in enumerate(values):
                axes.barh([place], [value], left=begin, height=0.62, color=style.series_colour(number), linewidth=0)
                if value:
                    text = f"{label}: {parts[number]} {format_compact(value)}"
                    points.add(axes, begin + value / 2, place, text, label)
                begin += value
        axes.set_yticks(range(len(lines)), style.shorten_labels([label for label, _ in lines]))
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        _format_axes(axes, frame, y=False)
        if len(parts) > 1:
            handles = [
                Rectangle((0, 0), 1, 1, color=style.series_colour(number), label=part)
                for number, part in enumerate(parts)
            ]
            drawing.legend(handles=handles, loc="outside lower left", ncols=3, handlelength=1, handleheight=0.9)
        rows = [(label, *values) for label, values in lines]
        return _build_chart(frame, drawing, ("", *parts), rows, points)


def draw_heat_map(
    frame: ChartFrame, columns: Sequence[str], rows: Sequence[str], values: Sequence[Sequence[float | None]]
) -> Chart:
    """A heat map with its numbers written in it; None is an empty cell. Colours are logarithmic over decades."""
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 1.15 + 0.3 * len(rows))
        axes, points = drawing.add_subplot(), PointList()
        known = [value for line in values for value in line if value is not None and isfinite(value)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        is_log = spans_decades(known)
        for y, line in enumerate(values):
            for x, value in enumerate(line):
                if value is None:
                    continue
                share = log(value / low) / log(high / low) if is_log else (value - low) / (high - low or 1)
                level = 2 + round((style.LEVELS - 2) * share)
                points.add(axes, x, y, f"{rows[y]}, {columns[x]}: {format_compact(value)}", rows[y])
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=style.heat_colour(level), linewidth=0))
                colour = "#ffffff" if level > style.LEVELS * 0.55 else style.INK[0]
                axes.text(x, y, format_compact(value), ha="center", va="center", fontsize=7.5, color=colour)
        axes.set_xticks(range(len(columns)), style.shorten_labels(columns, 12))
        if sum(len(column) for column in columns) > 44:
            axes.tick_params(axis="x", rotation=40)
        axes.set_yticks(range(len(rows)), style.shorten_labels(rows))
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_xlabel(frame.x.label)
        axes.set_ylabel(frame.y.label)
        return _build_chart(
            frame,
            drawing,
            (frame.y.label or "", *columns),
            [(label, *line) for label, line in zip(rows, values, strict=True)],
            points,
        )


def draw_winners(
    frame: ChartFrame, columns: Sequence[str], rows: Sequence[str], cells: Sequence[Sequence[tuple[str, str] | None]]
) -> Chart:
    """A map of who is best where: each place has the colour and the name of its winner, and a number; None is empty."""
    names = sorted({cell[0] for line in cells for cell in line if cell is not None})
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 1.15 + 0.42 * len(rows))
        axes, points = drawing.add_subplot(), PointList()
        for y, line in enumerate(cells):
            for x, cell in enumerate(line):
                if cell is None:
                    continue
                name, number = cell
                colour = style.series_colour(names.index(name))
                axes.add_patch(Rectangle((x - 0.48, y - 0.46), 0.96, 0.92, color=colour, alpha=0.3, linewidth=0))
                axes.text(x, y, f"{name}\n{number}", ha="center", va="center", fontsize=7, color=style.INK[0])
                points.add(axes, x, y, f"{rows[y]}, {columns[x]}: {name}, {number}", name)
        axes.set_xticks(range(len(columns)), style.shorten_labels(columns, 16))
        axes.set_yticks(range(len(rows)), style.shorten_labels(rows))
        axes.set_xlim(-0.6, len(columns) - 0.4)
        axes.set_ylim(len(rows) - 0.4, -0.6)
        axes.grid(visible=False)
        axes.tick_params(length=0)
        for side in axes.spines.values():
            side.set_visible(False)
        axes.set_xlabel(frame.x.label)
        axes.set_ylabel(frame.y.label)
        table = [
            (label, *(None if cell is None else f"{cell[0]} {cell[1]}" for cell in line))
            for label, line in zip(rows, cells, strict=True)
        ]
        return _build_chart(frame, drawing, (frame.y.label or "", *columns), table, points)


def _format_axes(axes: Axes, frame: ChartFrame, y: bool = True) -> None:
    for axis, set_scale, set_label, limits in (
        (frame.x, axes.set_xscale, axes.set_xlabel, axes.set_xlim),
        (frame.y, axes.set_yscale, axes.set_ylabel, axes.set_ylim),
    ):
        if axis is frame.y and not y:
            continue
        set_label(axis.label)
        if axis.log:
            set_scale("log")
        if axis.zero and not axis.log:
            limits(0, axis.top)
    plain = FuncFormatter(lambda value, place: format_compact(value))
    for scale, along in ((axes.xaxis, frame.x), *([(axes.yaxis, frame.y)] if y else [])):
        scale.set_major_formatter(plain)
        if along.log:
            scale.set_major_locator(LogLocator(base=10, subs=(1.0, 3.0), numticks=12))
            scale.set_minor_formatter(NullFormatter())
        elif along is frame.x:
            scale.set_major_locator(MaxNLocator(6))


def _build_chart(
    frame: ChartFrame, drawing: Any, headings: Sequence[str], rows: Sequence[Sequence[Any]], points: PointList
) -> Chart:
    text, places = style.render_svg(drawing, frame.name), points.to_json(drawing)
    return Chart(
        frame.name,
        frame.title,
        frame.caption,
        style.add_background(text),
        style.to_inline_svg(text, frame.name, escape(frame.title, quote=True), places),
        tuple(headings),
        tuple(tuple(row) for row in rows),
    )


def _value_at(values: Sequence[float | None], place: int) -> float | None:
    return values[place] if place < len(values) else None


def format_compact(value: float) -> str:
    """A number in few characters: 0.25, 3.1, 120, 15k, 2.4M."""
    size = abs(value)
    for limit, unit in ((1e9, "G"), (1e6, "M"), (1e4, "k")):
        if size >= limit:
            scaled = value / {"G": 1e9, "M": 1e6, "k": 1e3}[unit]
            return f"{scaled:.3g}{unit}"
    if size >= 100 or value == int(value):
        return f"{value:.0f}"
    return f"{value:.3g}"
