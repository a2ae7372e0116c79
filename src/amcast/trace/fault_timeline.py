"""The seconds around a fault, one lane per process: how much each delivered, and who fell silent for how long.

Time counts from the fault. A bar is the deliveries of a process in one slice of time; the lane of the clients counts
their answers. A dashed line is a fault; the band is the pause of the group that it struck. The picture is one SVG
without scripts or external parts, for light and dark backgrounds.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Final

from amcast.trace.run import Run
from amcast.trace.spacetime_diagram import FAULT_PREFIX, choose_tick_step
from amcast.trace.view import group_names, process_names

BEFORE_NS: Final = 1_000_000_000
AFTER_NS: Final = 3_000_000_000
SLICES: Final = 160
WIDTH: Final = 1200
LEFT: Final = 118
RIGHT: Final = 30
TOP: Final = 96
LANE: Final = 34
GROUP_SPACE: Final = 16
CLIENTS: Final = "clients"
NEAR_NS: Final = 300_000_000
"""A pause that begins later after the fault has another cause."""
SILENCE_NS: Final = 20_000_000
"""A pause that is shorter is not worth a word."""
FAULT_TEXTS: Final = {"crash": "kill -9", "recover": "starts again", "pause": "is stopped", "resume": "goes on"}


@dataclass(frozen=True)
class Lane:
    """One process, or all clients: its name, its group, and when it delivered."""

    name: str
    group: str
    times: Sequence[int]


class FaultTimeline:
    """Draws one fault of a run with what happened around it."""

    def __init__(self, run: Run, fault_ns: int) -> None:
        self._zero = fault_ns
        self._lanes = list_lanes(run)
        times = [at for lane in self._lanes for at in lane.times]
        self._start = max(fault_ns - BEFORE_NS, min(times, default=fault_ns))
        self._end = max(self._start + 1, min(fault_ns + AFTER_NS, max(times, default=fault_ns + 1)))
        self._faults = [
            (at, kind, process_names(run).get(process, f"p{process}"))
            for process, at, kind in list_faults(run)
            if self._start <= at <= self._end
        ]
        struck = next((name for at, _, name in self._faults if at == fault_ns), "")
        self._struck = next((lane.group for lane in self._lanes if lane.name == struck), CLIENTS)
        self._height = TOP + sum(LANE for _ in self._lanes) + GROUP_SPACE * len({lane.group for lane in self._lanes})

    def describe(self) -> str:
        """The picture in a sentence: the longest silence of each group, and of the clients."""
        parts = []
        for group in dict.fromkeys(lane.group for lane in self._lanes):
            silence = self._find_silence(group)
            if silence is None:
                continue
            parts.append(f"{group} {(silence[1] - silence[0]) / 1e6:.0f} ms")
        if not parts:
            return ""
        return (
            f"How long nobody of a group delivered, and no client was answered: {', '.join(parts)}. A killed process"
            " loses the end of its own record."
        )

    def svg(self) -> Iterator[str]:
        """The lines of the picture."""
        height = self._height + 52
        yield (
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" width="{WIDTH}"'
            f' height="{height}" role="img">'
        )
        yield f"<title>The seconds around {escape(self._name_fault())}</title><style>{STYLE}</style>"
        yield f'<rect class="paper" width="{WIDTH}" height="{height}"/>'
        yield f'<text class="title" x="20" y="30">{escape(self._name_fault())}, and what happened around it</text>'
        slice_ms = (self._end - self._start) / SLICES / 1e6
        text = f"each bar: deliveries in {slice_ms:.0f} ms; of the clients, multicasts that were answered"
        yield f'<text class="soft" x="20" y="50">{text}</text>'
        yield from self._draw_silence()
        yield from self._draw_axis()
        y = TOP
        before = ""
        for lane in self._lanes:
            y += GROUP_SPACE if lane.group != before else 0
            before = lane.group
            y += LANE
            yield from self._draw_lane(lane, y)
        yield from self._draw_faults()
        yield "</svg>"

    def _name_fault(self) -> str:
        kind, who = next(((kind, who) for at, kind, who in self._faults if at == self._zero), ("fault", ""))
        return f"{FAULT_TEXTS.get(kind, kind)} {who}".strip()

    def _x(self, at_ns: int) -> float:
        return round(LEFT + (WIDTH - LEFT - RIGHT) * (at_ns - self._start) / (self._end - self._start), 1)

    def _find_silence(self, group: str) -> tuple[int, int] | None:
        """The longest time in which nobody of a group delivered, of those that the fault met or that begin soon after
        it."""
        times = sorted(
            at for lane in self._lanes if lane.group == group for at in lane.times if self._start <= at <= self._end
        )
        place = bisect_left(times, self._zero)
        around = times[max(0, place - 1) :]
        pauses = [
            (later - earlier, earlier, later) for earlier, later in pairwise(around) if earlier < self._zero + NEAR_NS
        ]
        longest = max(pauses, default=None)
        return (longest[1], longest[2]) if longest else None

    def _draw_silence(self) -> Iterator[str]:
        silence = self._find_silence(self._struck)
        if silence is None or silence[1] - silence[0] < SILENCE_NS:
            return
        left, right = self._x(silence[0]), self._x(silence[1])
        text = f"{self._struck} delivered nothing for {(silence[1] - silence[0]) / 1e6:.0f} ms"
        high = self._height - TOP + 6
        yield f'<rect class="silence" x="{left}" y="{TOP - 6}" width="{right - left:.1f}" height="{high}"/>'
        yield f'<text class="soft" x="{right + 6}" y="{TOP + 6}">{escape(text)}</text>'

    def _draw_axis(self) -> Iterator[str]:
        step = choose_tick_step(self._end - self._start, 9)
        start, end = self._start - self._zero, self._end - self._zero
        for at in range(-(-start // step) * step, end + 1, step):
            x = self._x(at + self._zero)
            label = f"{at / 1e9:+g} s" if at else "0"
            yield f'<line class="grid" x1="{x}" y1="{TOP - 6}" x2="{x}" y2="{self._height + 4}"/>'
            yield f'<text class="soft" x="{x}" y="{self._height + 22}" text-anchor="middle">{label}</text>'

    def _draw_lane(self, lane: Lane, y: int) -> Iterator[str]:
        counts = [0] * SLICES
        for at in lane.times:
            if self._start <= at < self._end:
                counts[(at - self._start) * SLICES // (self._end - self._start)] += 1
        most = max(counts, default=0) or 1
        width = (WIDTH - LEFT - RIGHT) / SLICES
        kind = "answers" if lane.group == CLIENTS else "deliveries"
        yield f'<g data-group="{escape(lane.group, quote=True)}">'
        yield f'<text class="name" x="{LEFT - 12}" y="{y - 4}" text-anchor="end">{escape(lane.name)}</text>'
        yield f'<line class="base" x1="{LEFT}" y1="{y}" x2="{WIDTH - RIGHT}" y2="{y}"/>'
        for place, count in enumerate(counts):
            if not count:
                continue
            high = max(1.5, (LANE - 9) * count / most)
            at_s = (self._start + (self._end - self._start) * place // SLICES - self._zero) / 1e9
            yield (
                f'<rect class="{kind}" x="{LEFT + place * width:.1f}" y="{y - high:.1f}" width="{width - 0.8:.1f}"'
                f' height="{high:.1f}"><title>{escape(lane.name)}: {count} {kind} at {at_s:+.2f} s</title></rect>'
            )
        yield "</g>"

    def _draw_faults(self) -> Iterator[str]:
        for number, (at, kind, who) in enumerate(self._faults):
            x, lift = self._x(at), 14 * (number % 2)
            yield f'<line class="fault" x1="{x}" y1="{TOP - 10}" x2="{x}" y2="{self._height + 4}"/>'
            text = f"{FAULT_TEXTS[kind]} {who}" if kind in ("crash",) else f"{who} {FAULT_TEXTS.get(kind, kind)}"
            yield f'<text class="cut" x="{x}" y="{TOP - 14 - lift}" text-anchor="middle">{escape(text)}</text>'


def list_faults(run: Run) -> list[tuple[int, int, str]]:
    """Process, time and kind of the faults that a run notes, in order of time."""
    notes = zip(run.notes["process"], run.notes["at_ns"], run.notes["name"], strict=True)
    found = [(p, at, name.removeprefix(FAULT_PREFIX)) for p, at, name in notes if name.startswith(FAULT_PREFIX)]
    return sorted(found, key=lambda fault: (fault[1], fault[0]))


def list_lanes(run: Run) -> list[Lane]:
    """A lane per member of a group, group by group, and one for the answers of all clients."""
    names, groups = process_names(run), group_names(run)
    times: dict[int, list[int]] = {}
    for process, at in zip(run.deliveries["process"], run.deliveries["at_ns"], strict=True):
        times.setdefault(process, []).append(at)
    members = [
        (group, process)
        for process, group in zip(run.processes["process"], run.processes["group"], strict=True)
        if group is not None
    ]
    lanes = [
        Lane(names.get(process, f"p{process}"), groups.get(group, f"group {group}"), times.get(process, []))
        for group, process in sorted(members)
    ]
    answers = list(run.answers["at_ns"]) if run.answers is not None else []
    return [*lanes, Lane(CLIENTS, CLIENTS, answers)] if answers else lanes


STYLE: Final = (
    "text{font:12px system-ui,-apple-system,'Segoe UI',sans-serif}.title{font-size:16px;font-weight:600}"
    ".paper{fill:#fcfcfb}.title,.name{fill:#0b0b0b}.name{font-weight:600}.soft{fill:#52514e}.cut{fill:#b3341f}"
    ".grid{stroke:#e1e0d9}.base{stroke:#c3c2b7}.fault{stroke:#d03b3b;stroke-width:1.5;stroke-dasharray:5 4}"
    ".deliveries{fill:#2a78d6}.answers{fill:#0f9a68}.silence{fill:#d03b3b;opacity:.09}"
    "@media(prefers-color-scheme:dark){.paper{fill:#1a1a19}.title,.name{fill:#ffffff}.soft{fill:#c3c2b7}"
    ".cut{fill:#f08a74}.grid{stroke:#2c2c2a}.base{stroke:#52514e}.fault{stroke:#e66767}.deliveries{fill:#3987e5}"
    ".answers{fill:#199e70}.silence{fill:#e66767;opacity:.16}}"
)
