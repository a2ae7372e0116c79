"""The kinds of chart. Each takes plain numbers and returns a chart with the table that it shows."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from html import escape
from math import isfinite
from typing import Any

from matplotlib.axes import Axes
from matplotlib.patches import Rectangle
from matplotlib.ticker import FuncFormatter, MaxNLocator

from amcast.figures import style

WIDTH = 4.7
"""Inches: about the width of a phone; the page scales charts up."""


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


def draw_curves(
    frame: ChartFrame,
    lines: Sequence[Curve],
    marks: bool = True,
    bands: Sequence[tuple[float, float]] = (),
    events: Sequence[tuple[float, str]] = (),
) -> Chart:
    """Lines, with or without marks at their points; bands are shaded, events are vertical lines."""
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 3.1 + 0.17 * max(0, (len(lines) - 1) // 2))
        axes = drawing.add_subplot()
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
        _format_axes(axes, frame)
        # An interval from two seeds can be huge; it must not flatten the curves.
        highest = max((value for line in lines for value in line.y), default=0.0)
        if frame.y.top is None and not frame.y.log and axes.get_ylim()[1] > 1.5 * highest > 0:
            axes.set_ylim(top=1.5 * highest)
        if len(lines) > 1 or (lines and lines[0].label):
            drawing.legend(loc="outside lower left", ncols=2, handlelength=1.6, columnspacing=1.4)
        rows = [
            (line.label, line.x[place], line.y[place], _value_at(line.low, place), _value_at(line.high, place))
            for line in lines
            for place in range(len(line.x))
        ]
        return _build_chart(frame, drawing, ("line", frame.x.label, frame.y.label, "low", "high"), rows)


def _draw_line(axes: Axes, number: int, line: Curve, marks: bool) -> None:
    colour = style.series_colour(number)
    marker = style.MARKERS[number % len(style.MARKERS)] if marks else None
    axes.plot(line.x, line.y, color=colour, marker=marker, label=line.label, markeredgewidth=0)
    low, high = list(line.low), list(line.high)
    if len(low) == len(line.y) and any(value is not None for value in low):
        down = [max(0.0, y - v) if v is not None else 0.0 for y, v in zip(line.y, low, strict=True)]
        up = [max(0.0, v - y) if v is not None else 0.0 for y, v in zip(line.y, high, strict=True)]
        axes.errorbar(line.x, line.y, yerr=[down, up], fmt="none", ecolor=colour, elinewidth=1, capsize=2)
    for place, text in enumerate(line.notes):
        axes.annotate(
            text,
            (line.x[place], line.y[place]),
            xytext=(4, 4),
            textcoords="offset points",
            fontsize=7,
            color=style.SOFT[0],
        )


@dataclass(frozen=True)
class RangeLine:
    """One line of a range chart: some values of one thing, from low to high."""

    label: str
    values: Sequence[float]
    low: float | None = None
    high: float | None = None
    colour: int = 0


def draw_ranges(frame: ChartFrame, names: Sequence[str], lines: Sequence[RangeLine]) -> Chart:
    """Per line, a bar from its first to its last value with a mark at each: percentiles, for example."""
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 0.95 + 0.26 * len(lines))
        axes = drawing.add_subplot()
        for place, line in enumerate(lines):
            colour = style.series_colour(line.colour)
            axes.plot(
                [line.values[0], line.values[-1]],
                [place, place],
                color=colour,
                linewidth=3,
                alpha=0.35,
                solid_capstyle="round",
            )
            for number, value in enumerate(line.values):
                axes.plot([value], [place], marker=style.MARKERS[number], color=colour, markersize=5, markeredgewidth=0)
        axes.set_yticks(range(len(lines)), style.shorten_labels([line.label for line in lines]))
        axes.set_ylim(len(lines) - 0.4, -0.6)
        axes.grid(visible=False, axis="y")
        for number, name in enumerate(names):
            axes.plot([], [], marker=style.MARKERS[number], color=style.SOFT[0], linestyle="none", label=name)
        _format_axes(axes, frame, y=False)
        drawing.legend(loc="outside lower left", ncols=len(names), handlelength=1)
        rows = [(line.label, *line.values) for line in lines]
        return _build_chart(frame, drawing, ("", *names), rows)


def draw_bars(frame: ChartFrame, parts: Sequence[str], lines: Sequence[tuple[str, Sequence[float]]]) -> Chart:
    """Horizontal bars, each made of parts."""
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 0.95 + 0.26 * len(lines) + 0.17 * ((len(parts) - 1) // 3))
        axes = drawing.add_subplot()
        for place, (_, values) in enumerate(lines):
            begin = 0.0
            for number, value in enumerate(values):
                axes.barh([place], [value], left=begin, height=0.62, color=style.series_colour(number), linewidth=0)
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
        return _build_chart(frame, drawing, ("", *parts), [(label, *values) for label, values in lines])


def draw_heat_map(
    frame: ChartFrame, columns: Sequence[str], rows: Sequence[str], values: Sequence[Sequence[float | None]]
) -> Chart:
    """A heat map with its numbers written in it; None is an empty cell."""
    with style.apply_style():
        drawing = style.create_figure(WIDTH, 1.15 + 0.3 * len(rows))
        axes = drawing.add_subplot()
        known = [value for line in values for value in line if value is not None and isfinite(value)]
        low, high = min(known, default=0.0), max(known, default=1.0)
        for y, line in enumerate(values):
            for x, value in enumerate(line):
                if value is None:
                    continue
                level = 2 + round((style.LEVELS - 2) * (value - low) / (high - low)) if high > low else 2
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
        )


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
    axes.xaxis.set_major_formatter(plain)
    if not frame.x.log:
        axes.xaxis.set_major_locator(MaxNLocator(6))
    if y:
        axes.yaxis.set_major_formatter(plain)


def _build_chart(frame: ChartFrame, drawing: Any, headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Chart:
    text = style.render_svg(drawing, frame.name)
    return Chart(
        frame.name,
        frame.title,
        frame.caption,
        style.add_background(text),
        style.to_inline_svg(text, frame.name, escape(frame.title, quote=True)),
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
