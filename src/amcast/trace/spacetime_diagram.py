"""A run as a space-time diagram: one line per process, time from left to right, an arrow per packet.

A dot is a multicast, a ring the answer to its sender, a diamond a delivery, a cross a lost packet or a crashed process;
a dashed line is a fault that the run notes.
Each message has a colour and a name; packets about no message are grey. The diagram is one SVG file without scripts or
external parts, for light and dark backgrounds. It says what its limits omit.
"""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from heapq import nsmallest
from html import escape
from typing import Final, Generic, TypeVar

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import MESSAGES_PER_SENDER, sender_of, sequence_of
from amcast.trace.run import Run
from amcast.trace.view import (
    Selection,
    check_selection,
    find_origin,
    format_time,
    group_names,
    packet_messages,
    process_names,
)

COLOURS: Final = (
    ("#2a78d6", "#3987e5"),
    ("#1baf7a", "#199e70"),
    ("#eda100", "#c98500"),
    ("#008300", "#008300"),
    ("#4a3aa7", "#9085e9"),
    ("#e34948", "#e66767"),
    ("#e87ba4", "#d55181"),
    ("#eb6834", "#d95926"),
)
"""(light, dark) for messages in order of their multicast; the others are drawn in a neutral colour."""
OTHERS: Final = ("#77756f", "#8f8d86")

T = TypeVar("T")

LEFT, RIGHT, TOP, BOTTOM, ROW, BREAK = 118, 40, 104, 62, 46, 20
LEGEND_ROW: Final = 20
FAULT_PREFIX: Final = "fault-"
"""How the names of notes about faults begin."""
LEGEND_NAMES: Final = 28


@dataclass(frozen=True)
class DiagramMark:
    """An event at one process at one time."""

    kind: str
    process: int
    at_ns: int
    message: int
    title: str


@dataclass(frozen=True)
class DiagramArrow:
    """A packet; `received_ns` is None if it was lost."""

    source: int
    target: int
    sent_ns: int
    received_ns: int | None
    messages: tuple[int, ...]
    body: str


def draw_spacetime(
    run: Run, selection: Selection | None = None, arrows: int = 200, marks: int = 300, width: int = 1200
) -> str:
    """The SVG text of a run, or of a selection of it; at most the given numbers of arrows and marks, the earliest."""
    if min(arrows, marks) < 1 or not 400 <= width <= 20_000:
        raise UsageError(f"arrows {arrows}, marks {marks}, width {width}; expected at least 1, 1 and 400 to 20000")
    selection = selection or Selection()
    check_selection(run, selection)
    return "\n".join(_Diagram(run, selection, arrows, marks, width).svg()) + "\n"


class _Earliest(Generic[T]):
    """The first `limit` of many items, in bounded memory; their total number; and the first one that is omitted."""

    def __init__(self, items: Iterator[T], key: Callable[[T], tuple[int, ...]], limit: int) -> None:
        self.count = 0
        found = nsmallest(limit + 1, self._count(items), key=key)
        self.first, self.omitted = found[:limit], found[limit:]

    def _count(self, items: Iterator[T]) -> Iterator[T]:
        for item in items:
            self.count += 1
            yield item


class _Diagram:
    def __init__(self, run: Run, selection: Selection, arrows: int, marks: int, width: int) -> None:
        self._run = run
        self._selection = selection
        self._origin = selection.origin_ns or find_origin(run)
        self._omissions: list[str] = []
        self._marks, self._arrows = self._apply_limits(
            _Earliest(_iterate_marks(run, selection), lambda mark: (mark.at_ns, mark.process), marks),
            _Earliest(
                _iterate_arrows(run, selection), lambda a: (a.sent_ns, a.source, a.target, a.received_ns or 0), arrows
            ),
        )
        self._names = process_names(run)
        self._width = width
        self._start, self._end = self._window()
        self._y = self._place_timelines()
        self._colour = self._choose_colours()
        shown = min(len(self._colour), LEGEND_NAMES)
        if len(self._colour) > shown:
            self._omissions.append(f"{shown} of {len(self._colour):,} names in the legend")
        self._legend_width = 40 + 7 * max((len(self._legend_text(message)) for message in self._colour), default=8)
        self._legend_columns = max(1, (width - LEFT - RIGHT) // self._legend_width)
        self._legend_top = max(self._y.values(), default=TOP) + BOTTOM + 22
        self._height = self._legend_top + LEGEND_ROW * (1 + -(-shown // self._legend_columns))

    def _apply_limits(
        self, marks: "_Earliest[DiagramMark]", arrows: "_Earliest[DiagramArrow]"
    ) -> tuple[list[DiagramMark], list[DiagramArrow]]:
        """Both limits cut at one time, so that the diagram is complete up to there."""
        cuts = [mark.at_ns for mark in marks.omitted] + [arrow.sent_ns for arrow in arrows.omitted]
        if not cuts:
            return marks.first, arrows.first
        end = min(cuts)
        shown_marks = [mark for mark in marks.first if mark.at_ns < end] or marks.first
        shown_arrows = [arrow for arrow in arrows.first if arrow.sent_ns < end] or arrows.first
        self._omissions.append(
            f"up to {self._format_time(end)}, {len(shown_arrows):,} of {arrows.count:,} packets,"
            f" {len(shown_marks):,} of {marks.count:,} marks"
        )
        return shown_marks, shown_arrows

    def _window(self) -> tuple[int, int]:
        """From the first to the last event shown, or the selected window."""
        times = [mark.at_ns for mark in self._marks]
        for arrow in self._arrows:
            times += [arrow.sent_ns, arrow.sent_ns if arrow.received_ns is None else arrow.received_ns]
        start = self._selection.since_ns if self._selection.since_ns is not None else min(times, default=0)
        end = self._selection.until_ns if self._selection.until_ns is not None else max(times, default=1)
        return start, max(end, start + 1)

    def _place_timelines(self) -> dict[int, int]:
        """process -> y of its line: group by group, clients last; processes without events are omitted."""
        seen = {mark.process for mark in self._marks}
        seen |= {end for arrow in self._arrows for end in (arrow.source, arrow.target)}
        groups = dict(zip(self._run.processes["process"], self._run.processes["group"], strict=True))
        last = max((group for group in groups.values() if group is not None), default=0) + 1
        order = sorted((last if groups.get(p) is None else groups[p], p) for p in seen)
        self._rows: list[tuple[int, int | None]] = [(p, groups.get(p)) for _, p in order]
        places, y, before = {}, TOP - ROW, None
        for group, process in order:
            y += ROW + (BREAK if before is not None and group != before else 0)
            places[process], before = y, group
        return places

    def _choose_colours(self) -> dict[int, int]:
        shown = {mark.message for mark in self._marks} | {m for arrow in self._arrows for m in arrow.messages}
        times = dict(zip(self._run.multicasts["message"], self._run.multicasts["at_ns"], strict=True))
        order = sorted(shown, key=lambda message: (times.get(message, 0), message))
        # The message that was asked for has the first colour; those behind the last colour share a neutral one.
        order.sort(key=lambda message: message != self._selection.message)
        return {message: min(place, len(COLOURS)) for place, message in enumerate(order)}

    def _format_time(self, at_ns: int) -> str:
        return format_time(at_ns - self._origin)

    def _x(self, at_ns: int) -> float:
        span = self._width - LEFT - RIGHT
        return round(LEFT + span * (at_ns - self._start) / (self._end - self._start), 1)

    # Drawing, from back to front

    def svg(self) -> Iterator[str]:
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {self._width} {self._height}"'
            f' width="{self._width}" height="{self._height}" role="img">'
        )
        yield f"<title>{escape(self._title())}</title>"
        yield f"<style>{_build_style()}</style>"
        yield f'<defs>{"".join(_draw_arrow_heads())}<clipPath id="inside"><rect x="{LEFT - 6}" y="0"'
        yield f' width="{self._width - LEFT - RIGHT + 12}" height="{self._height}"/></clipPath></defs>'
        yield f'<rect class="paper" width="{self._width}" height="{self._height}"/>'
        yield from self._draw_headings()
        yield from self._draw_axis()
        yield from self._draw_faults()
        yield from self._draw_timelines()
        yield '<g clip-path="url(#inside)">'
        for arrow in self._arrows:
            yield from self._draw_arrow(arrow)
        yield "</g>"
        yield from self._draw_marks()
        yield from self._draw_legend()
        yield "</svg>"

    def _title(self) -> str:
        protocol = f"{self._run.meta.protocol}, " if self._run.meta.protocol else ""
        return f"{protocol}run {self._run.meta.run}"

    def _draw_headings(self) -> Iterator[str]:
        yield f'<text class="title" x="20" y="32">{escape(self._title())}</text>'
        yield f'<text class="soft" x="20" y="52">{escape(self._selection.describe())}</text>'
        if self._omissions:
            text = "not all is shown: " + "; ".join(self._omissions)
            yield f'<text class="cut" x="{self._width - RIGHT}" y="32" text-anchor="end">{escape(text)}</text>'

    def _draw_axis(self) -> Iterator[str]:
        bottom = max(self._y.values(), default=TOP) + 26
        step = choose_tick_step(self._end - self._start, (self._width - LEFT - RIGHT) // 110)
        digits = max(0, 6 - (len(str(step)) - len(str(step).rstrip("0"))))
        start, end = self._start - self._origin, self._end - self._origin
        for at in range(-(-start // step) * step, end + 1, step):
            x = self._x(at + self._origin)
            yield f'<line class="grid" x1="{x}" y1="{TOP - 26}" x2="{x}" y2="{bottom}"/>'
            yield f'<text class="soft" x="{x}" y="{bottom + 18}" text-anchor="middle">{at / 1e6:,.{digits}f}</text>'
        yield f'<text class="soft" x="20" y="{bottom + 18}">time in ms</text>'

    def _draw_timelines(self) -> Iterator[str]:
        crashes = dict(zip(self._run.processes["process"], self._run.processes["crashed_at_ns"], strict=True))
        labelled: set[int | None] = set()
        groups = group_names(self._run)
        for process, group in self._rows:
            y, crashed, name = self._y[process], crashes.get(process), self._names.get(process, f"p{process}?")
            end = self._x(self._end)
            if crashed is not None and crashed < self._end:
                end = max(self._x(crashed), LEFT)
            yield f'<line class="incarnation" x1="{LEFT}" y1="{y}" x2="{end}" y2="{y}"/>'
            if crashed is not None and self._start <= crashed <= self._end:
                title = f"{name} crashed at {self._format_time(crashed)}"
                yield f"<g><title>{title}</title>{_draw_cross(end, y, 'crash')}</g>"
            yield f'<text class="name" x="{LEFT - 14}" y="{y + 4}" text-anchor="end">{escape(name)}</text>'
            if group is not None and group not in labelled and group not in groups:
                labelled.add(group)
                yield f'<text class="soft" x="20" y="{y + 4}">group {group}</text>'

    def _draw_faults(self) -> Iterator[str]:
        """A dashed line over all processes for every fault in the window, with its kind and its process."""
        bottom = max(self._y.values(), default=TOP) + 26
        notes = self._run.notes
        for process, at, name in zip(notes["process"], notes["at_ns"], notes["name"], strict=True):
            if name.startswith(FAULT_PREFIX) and self._start <= at <= self._end:
                x, who = self._x(at), self._names.get(process, f"p{process}?")
                yield f'<line class="fault" x1="{x}" y1="{TOP - 26}" x2="{x}" y2="{bottom}"/>'
                text = escape(f"{name.removeprefix(FAULT_PREFIX)} of {who}")
                yield f'<text class="cut" x="{x}" y="{TOP - 30}" text-anchor="middle">{text}</text>'

    def _draw_arrow(self, arrow: DiagramArrow) -> Iterator[str]:
        wanted = self._selection.message
        about = wanted if wanted in arrow.messages else arrow.messages[0] if arrow.messages else None
        colour = "none" if about is None else self._colour[about]
        x1, y1, y2 = self._x(arrow.sent_ns), self._y[arrow.source], float(self._y[arrow.target])
        ends = [self._names.get(process, f"p{process}?") for process in (arrow.source, arrow.target)]
        title = f"{arrow.body} from {ends[0]} to {ends[1]}, sent at {self._format_time(arrow.sent_ns)}"
        if arrow.messages:
            title += f", about {', '.join(map(str, arrow.messages))}"
        yield f"<g><title>{escape(title)}{', lost' if arrow.received_ns is None else ''}</title>"
        if arrow.received_ns is None:
            x2, y2 = x1 + 26, y1 + (y2 - y1) * 0.42
            cross = _draw_cross(x2, y2, f"c{colour}")
            yield f'<path class="arrow lost c{colour}" d="M{x1} {y1}L{x2} {y2:.1f}"/>{cross}'
        elif arrow.source == arrow.target:
            x2, high = self._x(arrow.received_ns), y1 - 22
            wide = max(0.0, 9 - (x2 - x1) / 2)
            yield f'<path class="arrow c{colour}" d="M{x1} {y1}C{x1 - wide} {high} {x2 + wide} {high} {x2} {y1}"/>'
        else:
            x2 = self._x(arrow.received_ns)
            x2, y2 = _shorten(x1, y1, x2, y2)
            yield f'<path class="arrow c{colour}" marker-end="url(#head{colour})" d="M{x1} {y1}L{x2} {y2}"/>'
        yield "</g>"

    def _draw_marks(self) -> Iterator[str]:
        """Marks at one place stand side by side; a name goes to the first of three rows with enough space."""
        last: dict[int, float] = {}
        taken: dict[tuple[int, int], float] = {}
        for mark in self._marks:
            y, colour = self._y[mark.process], self._colour[mark.message]
            x = last[mark.process] = max(self._x(mark.at_ns), last.get(mark.process, -14.0) + 14)
            yield f"<g><title>{escape(mark.title)}</title>"
            if mark.kind == "multicast":
                yield f'<circle class="mark f{colour}" cx="{x}" cy="{y}" r="6"/>'
            elif mark.kind == "answer":
                yield f'<circle class="answer c{colour}" cx="{x}" cy="{y}" r="5"/>'
            else:
                yield f'<path class="mark f{colour}" d="M{x} {y - 7}l7 7l-7 7l-7 -7z"/>'
            # The heading names the message if there is only one.
            name = self.short_name(mark.message) if len(self._colour) > 1 else ""
            half = 3.4 * len(name)
            for lift in (-12, -23, -34) if mark.kind != "delivery" else (19, 30, 41):
                if x - half > taken.get((mark.process, lift), 0.0):
                    taken[(mark.process, lift)] = x + half
                    yield f'<text class="label" x="{x}" y="{y + lift}" text-anchor="middle">{name}</text>'
                    break
            yield "</g>"

    def short_name(self, message: int) -> str:
        """ "6.3" for message number 3 of process 6, where ids have this form; else the id."""
        return f"{sender_of(message)}.{sequence_of(message)}" if message >= MESSAGES_PER_SENDER else str(message)

    def _legend_text(self, message: int) -> str:
        name = self.short_name(message)
        return f"{name} = {message}" if name != str(message) else name

    def _draw_legend(self) -> Iterator[str]:
        y = self._legend_top
        x = LEFT
        signs = (
            ('<circle class="mark ink" cx="0" cy="0" r="6"/>', "multicast"),
            ('<circle class="answer cnone" cx="0" cy="0" r="5"/>', "answer"),
            ('<path class="mark ink" d="M0 -7l7 7l-7 7l-7 -7z"/>', "delivery"),
            ('<path class="arrow cnone" d="M-9 0H9" marker-end="url(#headnone)"/>', "packet about no message"),
            (_draw_cross(0, 0, "crash"), "lost, crashed"),
        )
        for sign, text in signs:
            yield f'<g transform="translate({x} {y})">{sign}<text class="soft" x="16" y="4">{text}</text></g>'
            x += 52 + 7 * len(text)
        for place, (message, colour) in enumerate(list(self._colour.items())[:LEGEND_NAMES]):
            row, column = divmod(place, self._legend_columns)
            x, below = LEFT + column * self._legend_width, y + LEGEND_ROW * (row + 1)
            name = self.short_name(message)
            full = self._legend_text(message).removeprefix(name)
            yield f'<g transform="translate({x} {below})"><rect class="f{colour}" x="-6" y="-6" width="12" height="12"'
            yield f' rx="3"/><text class="soft" x="16" y="4"><tspan class="ink">{name}</tspan>{full}</text></g>'


def _iterate_marks(run: Run, selection: Selection) -> Iterator[DiagramMark]:
    origin, names = selection.origin_ns or find_origin(run), process_names(run)
    rows = run.multicasts
    for message, sender, at in zip(rows["message"], rows["sender"], rows["at_ns"], strict=True):
        if selection.includes_time(at) and selection.includes_message(message) and selection.includes_process(sender):
            title = f"{names.get(sender, sender)} multicasts {message} at {format_time(at - origin)}"
            yield DiagramMark("multicast", sender, at, message, title)
    senders = dict(zip(rows["message"], rows["sender"], strict=True))
    for message, at in zip(*(run.answers[name] for name in ("message", "at_ns")), strict=True) if run.answers else ():
        sender = senders.get(message)
        if sender is None or not selection.includes_process(sender):
            continue
        if selection.includes_time(at) and selection.includes_message(message):
            yield DiagramMark("answer", sender, at, message, f"{message} is answered at {format_time(at - origin)}")
    rows = run.deliveries
    for process, position, message, at in zip(
        rows["process"], rows["position"], rows["message"], rows["at_ns"], strict=True
    ):
        if selection.includes_time(at) and selection.includes_message(message) and selection.includes_process(process):
            who = names.get(process, f"p{process}?")
            title = f"{who} delivers {message} at position {position} and {format_time(at - origin)}"
            yield DiagramMark("delivery", process, at, message, title)


def _iterate_arrows(run: Run, selection: Selection) -> Iterator[DiagramArrow]:
    if run.packets is None:
        return
    names = ("message", "messages", "body", "source", "target", "sent_ns", "received_ns")
    for batch in run.packets.batches(*names):
        for one, several, body, source, target, sent, received in zip(*(batch[n] for n in names), strict=True):
            messages = packet_messages(one, several)
            touches = selection.includes_time(sent) or (received is not None and selection.includes_time(received))
            if touches and selection.includes_message(*messages) and selection.includes_process(source, target):
                yield DiagramArrow(source, target, sent, received, messages, body)


def choose_tick_step(span: int, ticks: int) -> int:
    """1, 2 or 5 times a power of ten, so that a span has at most the given number of ticks."""
    step = 1
    while True:
        for factor in (1, 2, 5):
            if span <= step * factor * max(ticks, 1):
                return step * factor
        step *= 10


def _shorten(x1: float, y1: float, x2: float, y2: float, by: float = 7) -> tuple[float, float]:
    """The end of an arrow just before the line that it points at, so that its head is visible."""
    length = ((x2 - x1) ** 2 + (y2 - y1) ** 2) ** 0.5
    keep = max(0.0, 1 - by / length) if length else 1.0
    return round(x1 + (x2 - x1) * keep, 1), round(y1 + (y2 - y1) * keep, 1)


def _draw_cross(x: float, y: float, kind: str) -> str:
    return f'<path class="cross {kind}" d="M{x - 5:.1f} {y - 5:.1f}l10 10m0 -10l-10 10"/>'


def _draw_arrow_heads() -> Iterator[str]:
    for name in (*map(str, range(len(COLOURS) + 1)), "none"):
        yield (
            f'<marker id="head{name}" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7"'
            f' orient="auto"><path class="f{name}" d="M0 0.6L8 4L0 7.4z"/></marker>'
        )


def _build_style() -> str:
    def colours(which: int) -> str:
        rules = [
            f".c{i}{{stroke:{pair[which]}}}.f{i}{{fill:{pair[which]}}}" for i, pair in enumerate((*COLOURS, OTHERS))
        ]
        return "".join(rules)

    light = (
        ".paper{fill:#fcfcfb}.title,.ink{fill:#0b0b0b}.name,.label{fill:#0b0b0b}.soft{fill:#52514e}"
        ".grid{stroke:#e1e0d9}.incarnation{stroke:#c3c2b7}.cnone{stroke:#b5b3ab}.fnone{fill:#b5b3ab}.cut{fill:#b3341f}"
        ".crash,.fault{stroke:#d03b3b}.mark{stroke:#fcfcfb}.label{stroke:#fcfcfb}" + colours(0)
    )
    dark = (
        ".paper{fill:#1a1a19}.title,.ink{fill:#ffffff}.name,.label{fill:#ffffff}.soft{fill:#c3c2b7}"
        ".grid{stroke:#2c2c2a}.incarnation{stroke:#52514e}.cnone{stroke:#5c5b57}.fnone{fill:#5c5b57}.cut{fill:#f08a74}"
        ".crash,.fault{stroke:#e66767}.mark{stroke:#1a1a19}.label{stroke:#1a1a19}" + colours(1)
    )
    return (
        "text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif}.title{font-size:16px;font-weight:600}"
        ".name{font-weight:600}.label{font-size:11px;stroke-width:3;paint-order:stroke}.grid{stroke-width:1}"
        ".incarnation{stroke-width:1.5}.arrow{fill:none;stroke-width:1.5;opacity:.8}.lost{stroke-dasharray:4 3}"
        ".cross{fill:none;stroke-width:2}.mark{stroke-width:2}.fault{stroke-width:1.5;stroke-dasharray:5 4}"
        ".answer{fill:none;stroke-width:2.5}"
        f"{light}@media(prefers-color-scheme:dark){{{dark}}}"
    )
