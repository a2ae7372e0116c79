"""The style of charts: one palette for light and dark, and SVG whose text is text.

Charts are drawn in the light colours. Inside the page each of those colours becomes a CSS variable, so that the page's
colour scheme applies; in its own file a chart stays light on white, as papers need it.
"""

import io
import re
from collections.abc import Sequence
from html import escape
from typing import Any, Final

import matplotlib
from matplotlib.backends.backend_svg import FigureCanvasSVG
from matplotlib.figure import Figure

PAPER: Final = ("#fcfcfb", "#1a1a19")
INK: Final = ("#0b0b0b", "#f4f3ef")
SOFT: Final = ("#52514e", "#b9b7ae")
GRID: Final = ("#e1e0d9", "#33322f")
WASH: Final = ("#f1f0eb", "#242422")
SERIES: Final = (
    ("#2a78d6", "#4a96ee"),
    ("#d9480f", "#f0774a"),
    ("#0f9a68", "#2cb885"),
    ("#8a5cd6", "#a98bf0"),
    ("#c98500", "#e0a52e"),
    ("#d6336c", "#ee6d97"),
    ("#00838f", "#2fb3bf"),
    ("#6b7280", "#9aa2af"),
    ("#5c7c0f", "#93b83a"),
    ("#8d5524", "#c08a58"),
    ("#3b4cc0", "#7f8cf0"),
    ("#0b7285", "#4fc1d4"),
)
"""(light, dark) by series; markers differ too, so that no reader depends on colour."""
MARKERS: Final = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
LEVELS: Final = 20
"""Steps of a heat map, from the background to the first series' colour."""
HOT: Final = ("#1c63b8", "#3d8fee")

SETTINGS: Final[dict[str, Any]] = {
    "svg.fonttype": "none",
    "font.family": "DejaVu Sans",
    "font.size": 8.5,
    "axes.titlesize": 9.5,
    "axes.labelsize": 8.5,
    "axes.edgecolor": SOFT[0],
    "axes.labelcolor": SOFT[0],
    "axes.titlecolor": INK[0],
    "axes.titlelocation": "left",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.facecolor": "none",
    "axes.linewidth": 0.8,
    "axes.axisbelow": True,
    "axes.grid": True,
    "grid.color": GRID[0],
    "grid.linewidth": 0.7,
    "text.color": INK[0],
    "xtick.color": SOFT[0],
    "ytick.color": SOFT[0],
    "xtick.labelsize": 8,
    "ytick.labelsize": 8,
    "legend.frameon": False,
    "legend.fontsize": 8,
    "legend.labelcolor": INK[0],
    "figure.facecolor": "none",
    "lines.linewidth": 1.6,
    "lines.markersize": 4.5,
}


def heat_colour(level: int) -> str:
    """The light colour of a step of a heat map."""
    share = level / LEVELS
    return "#" + "".join(
        f"{round(int(PAPER[0][at : at + 2], 16) * (1 - share) + int(HOT[0][at : at + 2], 16) * share):02x}"
        for at in (1, 3, 5)
    )


def series_colour(number: int) -> str:
    return SERIES[number % len(SERIES)][0]


def build_css_variables() -> str:
    """The CSS variables of both colour schemes."""

    def colours(which: int) -> str:
        named = {"paper": PAPER, "ink": INK, "soft": SOFT, "grid": GRID, "wash": WASH, "hot": HOT}
        rules = [f"--{name}:{pair[which]}" for name, pair in named.items()]
        return ";".join([*rules, *(f"--s{number}:{pair[which]}" for number, pair in enumerate(SERIES))])

    return f":root{{{colours(0)}}}@media(prefers-color-scheme:dark){{:root{{{colours(1)}}}}}"


def create_figure(width: float, height: float) -> Figure:
    """An empty figure, in inches; call inside `apply_style()`."""
    return Figure(figsize=(width, height), layout="constrained")


def apply_style() -> Any:
    """The context in which charts are drawn and saved."""
    context: Any = matplotlib.rc_context
    return context(SETTINGS)


def render_svg(drawing: Figure, name: str) -> str:
    """A figure as an SVG file: equal figures, equal bytes."""
    matplotlib.rcParams["svg.hashsalt"] = name
    text = io.StringIO()
    canvas: Any = FigureCanvasSVG(drawing)
    canvas.print_svg(text, metadata={"Date": None, "Creator": "amcast", "Title": name})
    return re.sub(r"font: (\d[\d.]*px) '[^\"';]*'[^\"';]*", r"font: \1 system-ui, sans-serif", text.getvalue())


def add_background(text: str) -> str:
    """The version for a file: with its own background."""
    return re.sub(r"(<svg [^>]*>)", rf'\1<rect width="100%" height="100%" fill="{PAPER[0]}"/>', text, count=1)


def mark_series(series: str, part: str) -> str:
    """The name of a part of a drawing that shows a series; `to_inline_svg` makes an attribute of it."""
    return f"series:{series}:{part}"


def to_inline_svg(text: str, name: str, label: str, places: str = "[]") -> str:
    """The version for the page: no prologue, unique names, colours by variable, as wide as its container.

    `places` are those that answer to a pointer, as JSON.
    """
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r'\bid="series:([^"]*):[^":]*"', r'data-series="\1"', text)
    text = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', text)
    head = re.match(r"<svg [^>]*>", text)
    assert head is not None
    box = re.search(r'viewBox="[^"]+"', head[0])
    opening = (
        '<svg xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink"'
        f' {box[0] if box else ""} role="img" aria-label="{label}" data-places="{escape(places, quote=True)}">'
    )
    return _replace_colours(opening + text[head.end() :])


def _replace_colours(text: str) -> str:
    for light, name in _map_colour_names().items():
        text = re.sub(
            re.escape(light), f"var(--{name})" if not name.startswith("color-mix") else name, text, flags=re.I
        )
    return text


def _map_colour_names() -> dict[str, str]:
    """Light colour -> CSS variable of the page."""
    named = {INK[0]: "ink", SOFT[0]: "soft", GRID[0]: "grid", WASH[0]: "wash"}
    named.update({pair[0]: f"s{number}" for number, pair in enumerate(SERIES)})
    for level in range(LEVELS + 1):
        named[heat_colour(level)] = f"color-mix(in srgb,var(--hot) {level * 100 // LEVELS}%,var(--paper))"
    return named


def shorten_labels(texts: Sequence[str], most: int = 42) -> list[str]:
    """Labels of at most this many characters."""
    return [text if len(text) <= most else text[: most - 1] + "…" for text in texts]
