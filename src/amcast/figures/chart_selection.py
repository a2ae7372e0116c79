"""Selects the charts and tables that a set of measures has data for.

Settings differ in the fields that a plan varied. One of them may be the load (messages in flight, clients): it varies
along the curves. The protocol distinguishes the curves. Every combination of the other varying fields has its own
chart, up to a limit that the page states.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from amcast.figures import charts
from amcast.figures.charts import Axis, Chart, ChartFrame, Curve, RangeLine, spans_decades
from amcast.figures.measured_settings import (
    MIN_SEEDS,
    MeasuredSettings,
    Row,
    Setting,
    Tables,
    describe_fields,
    match_by,
    short_name,
    sort_value,
)
from amcast.figures.ranks import Ranking, describe_rankings, rank_protocols
from amcast.figures.tables import PageTable, build_tables

FACETS: Final = 4
PROTOCOLS: Final = 6
"""Protocols that get charts of their own, one each."""
CURVES: Final = 4
"""More curves than these are drawn as small charts, one each."""
BODY_KINDS: Final = 8
"""Kinds of packets with a colour of their own."""
LINES: Final = 24
HEAT_MAPS: Final = 3
HEAT_PLACES: Final = 16
RANKS: Final = 8
EVENTS: Final = 12
MATRIX_GROUPS: Final = 24
MS: Final = 1e6


@dataclass
class PageContent:
    """The charts and tables of a page."""

    charts: list[Chart] = field(default_factory=list)
    tables: list[PageTable] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What a limit omitted, in sentences."""
    answers: list[str] = field(default_factory=list)
    """What the comparison of protocols comes to, in sentences."""
    protocols: list[str] = field(default_factory=list)


class ChartSelector:
    """Draws the charts that a set of measures has data for."""

    def __init__(self, measured: MeasuredSettings) -> None:
        self._measured = measured
        self._settings = measured.settings
        self._protocols = measured.protocols
        self._tables = measured.tables
        self._load = measured.load
        self._rankings = rank_protocols(measured)
        self.content = PageContent(varied=measured.varied, protocols=measured.protocols)

    def _split_facets(self) -> dict[str, list[Setting]]:
        """The settings that share everything but protocol and load, by what they share."""
        found: dict[str, list[Setting]] = {}
        for setting in self._settings:
            found.setdefault(describe_fields(setting, self._measured.free_fields), []).append(setting)
        if len(found) > FACETS:
            self.content.left_out.append(f"Pictures show {FACETS} of {len(found)} combinations; the tables have all.")
        return dict(list(found.items())[:FACETS])

    def _list_charted_protocols(self) -> list[str]:
        """The protocols that get charts of their own."""
        if len(self._protocols) > PROTOCOLS:
            sentence = f"Pictures of one protocol each show {PROTOCOLS} of {len(self._protocols)}; the tables have all."
            self.content.left_out.append(sentence)
        return self._protocols[:PROTOCOLS]

    def _pick_setting(self, protocol: str) -> tuple[str, str]:
        """The setting of a picture that shows one of a protocol's, and a sentence that says so if there are more."""
        own = [setting for setting in self._settings if setting.protocol == protocol]
        shown = f" One of {len(own)} settings: {self._measured.label(own[0])}." if len(own) > 1 else ""
        return own[0].row["setting"], shown

    # Over settings

    def _list_ranked(self) -> list[str]:
        """The protocols, the one that answers first at the lowest load first."""
        ranked = [setting.protocol for ranking in self._rankings[:1] for setting in ranking.settings]
        return [*dict.fromkeys(ranked), *(one for one in self._protocols if one not in ranked)]

    def add_ranking(self) -> None:
        """The protocols in the order in which they answer, at the lowest and at the highest load."""
        self.content.answers = describe_rankings(self._rankings)
        for number, ranking in enumerate(_take_ends(self._rankings)):
            lines = []
            for setting in ranking.settings[:LINES]:
                low, high = setting.interval("latency_ns_p50")
                value = setting.row["latency_ns_p50"] / MS
                colour = self._protocols.index(setting.protocol)
                lines.append(RangeLine(setting.protocol, [value], _to_ms(low), _to_ms(high), colour, setting.protocol))
            where = ", ".join(part for part in (ranking.facet, ranking.load) if part)
            frame = ChartFrame(
                f"ranking-{number}" if number else "ranking",
                f"Who answers first{_format_facet(where)}",
                f"{ranking.describe()} Median latency; bars are 95 % intervals over seeds, where there are"
                f" {MIN_SEEDS} or more.",
                Axis("median latency, ms", log=spans_decades(line.values[0] for line in lines)),
            )
            self.content.charts.append(charts.draw_ranges(frame, ("median",), lines))

    def add_throughput_curves(self) -> None:
        for number, (facet, settings) in enumerate(self._split_facets().items()):
            lines = []
            for protocol in self._list_ranked():
                own = [s for s in settings if s.protocol == protocol and _has_both(s.row)]
                own.sort(key=lambda s: _to_number(s[self._load]) if self._load else 0)
                intervals = [s.interval("latency_ns_p50") for s in own]
                lines.append(
                    Curve(
                        protocol,
                        [s.row["throughput_per_s"] for s in own],
                        [s.row["latency_ns_p50"] / MS for s in own],
                        [_to_ms(low) for low, _ in intervals],
                        [_to_ms(high) for _, high in intervals],
                        [f"{short_name(self._load)} {s[self._load]}" for s in own] if self._load else (),
                        colour=self._protocols.index(protocol),
                    )
                )
            lines = [line for line in lines if line.x]
            if not lines:
                continue
            along = f" Points along a line: {short_name(self._load)} from low to high." if self._load else ""
            order = " The protocol that answers first comes first." if len(lines) > CURVES else ""
            frame = ChartFrame(
                f"throughput-latency-{number}" if number else "throughput-latency",
                f"Throughput and latency{_format_facet(facet)}",
                "Median latency from multicast to the first delivery in each destination group, against messages"
                f" completed per second; bars are 95 % intervals over at least {MIN_SEEDS} seeds.{along}{order}",
                _scale("messages per second", [x for line in lines for x in line.x]),
                _scale("median latency, ms", [y for line in lines for y in line.y]),
            )
            draw = charts.draw_panels if len(lines) > CURVES else charts.draw_curves
            self.content.charts.append(draw(frame, lines))

    def add_percentiles(self) -> None:
        known = [s for s in self._settings if s.row["latency_ns_p50"] is not None]
        if not known:
            return
        shown = [s for ranking in _take_ends(self._rankings) for s in ranking.settings] if self._rankings else known
        count = min(len(shown), LINES)
        if len(known) > count:
            self.content.left_out.append(f"The picture of percentiles shows {count} of {len(known)} settings.")
        lines = [
            RangeLine(
                self._measured.label(setting),
                [setting.row[f"latency_ns_{name}"] / MS for name in ("p50", "p95", "p99")],
                colour=self._protocols.index(setting.protocol),
                series=setting.protocol,
            )
            for setting in shown[:LINES]
        ]
        frame = ChartFrame(
            "percentiles",
            "Latency percentiles",
            "Half, 95 % and 99 % of the responses came within these times; the mean over seeds.",
            _scale("latency, ms", [value for line in lines for value in line.values]),
        )
        self.content.charts.append(charts.draw_ranges(frame, ("50 %", "95 %", "99 %"), lines))

    def add_heat_maps(self) -> None:
        fields = [path for path in [self._load, *self._measured.free_fields] if path]
        if len(fields) > HEAT_MAPS:
            self.content.left_out.append(f"Heat maps show {HEAT_MAPS} of {len(fields)} fields that vary.")
        for path in fields[:HEAT_MAPS]:
            places = sorted({str(s[path]) for s in self._settings}, key=sort_value)
            if len(places) > HEAT_PLACES:
                self.content.left_out.append(f"No heat map of {path}: it has {len(places)} values, over {HEAT_PLACES}.")
            if not 2 <= len(places) <= HEAT_PLACES:
                continue
            grid = [
                [
                    _mean(
                        [
                            s.row["latency_ns_p50"]
                            for s in self._settings
                            if (s.protocol, str(s[path])) == (protocol, place)
                        ],
                        MS,
                    )
                    for place in places
                ]
                for protocol in self._list_ranked()
            ]
            frame = ChartFrame(
                f"heat-{path.replace('.', '-')}",
                f"Median latency by protocol and {short_name(path)}, ms",
                "The mean over everything else that varies; the stronger the colour, the slower.",
                Axis(path),
            )
            self.content.charts.append(charts.draw_heat_map(frame, places, self._list_ranked(), grid))

    # Over the runs of settings

    def add_cdfs(self) -> None:
        points = self._measured.average_runs("cdf", ("share",), "latency_ns", match_by("all"))
        by_setting: dict[str, list[tuple[float, float]]] = {}
        for (setting, share), value in sorted(points.items()):
            by_setting.setdefault(setting, []).append((value / MS, share))
        for number, (facet, settings) in enumerate(self._split_facets().items() if by_setting else ()):
            lines = []
            for protocol in self._protocols:
                own = [s for s in settings if s.protocol == protocol and s.row["setting"] in by_setting]
                own.sort(key=lambda s: _to_number(s[self._load]) if self._load else 0)
                for setting in own[:1]:
                    points_drawn = by_setting[setting.row["setting"]]
                    x, y = [x for x, _ in points_drawn], [y for _, y in points_drawn]
                    lines.append(Curve(protocol, x, y, colour=self._protocols.index(protocol)))
            least = f" At the lowest {short_name(self._load)}." if self._load else ""
            frame = ChartFrame(
                f"cdf-{number}" if number else "cdf",
                f"How latencies are distributed{_format_facet(facet)}",
                f"The share of responses within a time.{least}",
                _scale("latency, ms", [x for line in lines for x in line.x if x > 0][:: len(lines) or 1]),
                Axis("share of responses", zero=True, top=1.02),
            )
            draw = charts.draw_panels if len(lines) > CURVES else charts.draw_curves
            self.content.charts.append(draw(frame, lines, marks=False))

    def add_place_cdfs(self) -> None:
        """By rank and by order of response. Among more than two protocols, the table compares better."""
        if len(self._protocols) > 2:
            return
        for by, title in (("rank", "by rank of the destination"), ("response", "by order of response")):
            points = self._measured.average_runs("cdf", ("place", "share"), "latency_ns", match_by(by))
            for protocol in self._list_charted_protocols():
                setting, which = self._pick_setting(protocol)
                ranks = sorted({key[1] for key in points if key[0] == setting})
                if len(ranks) < 2:
                    continue
                if len(ranks) > RANKS:
                    self.content.left_out.append(f"Latency {title}: pictures show {RANKS} of {len(ranks)} places.")
                lines = []
                for rank in ranks[:RANKS]:
                    points_drawn = sorted(
                        (share, value / MS) for (s, r, share), value in points.items() if (s, r) == (setting, rank)
                    )
                    lines.append(
                        Curve(_format_ordinal(rank), [x for _, x in points_drawn], [y for y, _ in points_drawn])
                    )
                only = f": {protocol}" if len(self._protocols) > 1 else ""
                frame = ChartFrame(
                    f"cdf-{by}-{protocol}",
                    f"Latency {title}{only}",
                    f"Destination groups are numbered from the first; the share of responses within a time.{which}",
                    Axis("latency, ms", zero=True),
                    Axis("share of responses", zero=True, top=1.02),
                )
                self.content.charts.append(charts.draw_curves(frame, lines, marks=False))

    def add_timelines(self) -> None:
        slices: dict[str, list[Row]] = {}
        for row in self._tables.get("throughput", ()):
            slices.setdefault(row["run"], []).append(row)
        faults: dict[str, dict[float, str]] = {}
        for row in self._tables.get("recovery", ()):
            faults.setdefault(row["run"], {})[row["fault_ns"] / 1e9] = row["fault"]
        for protocol in self._list_charted_protocols():
            setting, which = self._pick_setting(protocol)
            runs = [row for row in self._tables["summary"] if row["setting"] == setting and row["run"] in slices]
            for run in sorted(runs, key=lambda row: str(row["seed"]))[:1]:
                own = _fill_empty_slices(slices[run["run"]])
                # A live run counts from 1970, a simulated one from 0; the chart counts from the first slice.
                zero = own[0]["from_ns"]
                middle = [((row["from_ns"] + row["to_ns"]) / 2 - zero) / 1e9 for row in own]
                steady = [row for row in own if row["steady"]]
                bands = [((steady[0]["from_ns"] - zero) / 1e9, (steady[-1]["to_ns"] - zero) / 1e9)] if steady else []
                title = self._measured.name_run(run)
                lines = [
                    Curve("multicast", middle, [row["multicasts_per_s"] for row in own]),
                    Curve("completed", middle, [row["completions_per_s"] for row in own]),
                ]
                frame = ChartFrame(
                    f"time-{protocol}",
                    f"Messages per second over time: {title}",
                    f"The shaded part is the one that counts; dashed lines are faults.{which}",
                    Axis("seconds"),
                    Axis("messages per second", zero=True),
                )
                every = sorted(faults.get(run["run"], {}).items())
                if len(every) > EVENTS:
                    self.content.left_out.append(
                        f"{title}: the picture over time marks {EVENTS} of {len(every)} faults."
                    )
                events = [(at - zero / 1e9, what) for at, what in every[:EVENTS]]
                self.content.charts.append(charts.draw_curves(frame, lines, marks=False, bands=bands, events=events))

    def add_bodies(self) -> None:
        found = self._measured.average_runs("bodies", ("body",), "packets_per_multicast", lambda row: True)
        totals: dict[str, float] = {}
        for (_, body), value in found.items():
            totals[body] = totals.get(body, 0.0) + value
        order = sorted(totals, key=lambda body: (-totals[body], body))
        # Every kind has a colour of its own, the last one is that of the others.
        kinds = order if len(order) <= BODY_KINDS else order[: BODY_KINDS - 1]
        others = order[len(kinds) :]
        if found and len(self._settings) > LINES:
            self.content.left_out.append(f"The picture of packets shows {LINES} of {len(self._settings)} settings.")
        lines = []
        for setting in self._settings[:LINES]:
            values = [found.get((setting.row["setting"], body), 0.0) for body in kinds]
            rest = sum(found.get((setting.row["setting"], body), 0.0) for body in others)
            if any(values):
                lines.append((self._measured.label(setting), [*values, rest] if others else values))
        if others:
            kinds = [*kinds, f"{len(others)} rarer kinds"]
        if lines:
            frame = ChartFrame(
                "packets",
                "Packets per multicast",
                "By the kind of their body; what a process sends to itself is counted. bodies.csv has all kinds.",
                Axis("packets per multicast", zero=True),
            )
            self.content.charts.append(charts.draw_bars(frame, kinds, lines))

    def add_work(self) -> None:
        """Packets of groups about messages of other groups, where there are any."""
        found = self._measured.average_runs("work", ("group", "for_group"), "worked_as_stranger", lambda row: True)
        for protocol in self._protocols:
            setting, which = self._pick_setting(protocol)
            own = {key[1:]: value for key, value in found.items() if key[0] == setting}
            groups = sorted({group for pair in own for group in pair})
            if any(own.values()) and len(groups) > MATRIX_GROUPS:
                self.content.left_out.append(_format_large_matrix("work for others", protocol, len(groups)))
            if not any(own.values()) or len(groups) > MATRIX_GROUPS:
                continue
            frame = ChartFrame(
                f"work-{protocol}",
                f"Who worked for whom: {protocol}",
                "Packets that processes of a group handled about messages which do not concern them, by a group that"
                f" those messages were for.{which}",
                Axis("for group"),
                Axis("group"),
            )
            names = [str(group) for group in groups]
            grid = [[own.get((group, other)) for other in groups] for group in groups]
            self.content.charts.append(charts.draw_heat_map(frame, names, names, grid))

    def add_routes(self) -> None:
        found = self._measured.average_runs("routes", ("sender_region", "group"), "latency_ns_p50", lambda row: True)
        for protocol in self._list_charted_protocols():
            setting, which = self._pick_setting(protocol)
            own = {key[1:]: value / MS for key, value in found.items() if key[0] == setting}
            regions, groups = sorted({r for r, _ in own}), sorted({g for _, g in own})
            if len(regions) > 1 and len(groups) > MATRIX_GROUPS:
                self.content.left_out.append(_format_large_matrix("latency by place", protocol, len(groups)))
            if len(regions) < 2 or len(groups) > MATRIX_GROUPS:
                continue
            frame = ChartFrame(
                f"routes-{protocol}",
                f"Median latency by place, ms: {protocol}",
                f"From the region of the sender to the first delivery in a group.{which}",
                Axis("group"),
                Axis(""),
            )
            grid = [[own.get((region, group)) for group in groups] for region in regions]
            self.content.charts.append(charts.draw_heat_map(frame, [str(g) for g in groups], regions, grid))


def select_content(tables: Tables, plans: Mapping[str, Mapping[str, Any]]) -> PageContent:
    """Everything that these measures have to show."""
    measured = MeasuredSettings(tables, plans)
    selector = ChartSelector(measured)
    # A single setting is a single point: there is nothing to compare.
    pictures = (selector.add_ranking, selector.add_throughput_curves, selector.add_percentiles)
    compared = pictures if len(measured.settings) > 1 else ()
    single = (selector.add_cdfs, selector.add_heat_maps, selector.add_place_cdfs, selector.add_routes)
    for add_charts in (*compared, *single, selector.add_timelines, selector.add_bodies, selector.add_work):
        add_charts()
    content = selector.content
    content.tables = build_tables(measured)
    content.left_out = list(dict.fromkeys(content.left_out))
    return content


def _fill_empty_slices(slices: Sequence[Row]) -> list[Row]:
    """Slices in order of time, with empty ones where nothing happened."""
    known = {row["slice"]: row for row in slices}
    some = slices[0]
    width = some["to_ns"] - some["from_ns"]
    first = some["from_ns"] - some["slice"] * width
    silent = {"multicasts_per_s": 0.0, "completions_per_s": 0.0, "deliveries_per_s": 0.0, "steady": False}
    return [
        known.get(number, {**silent, "from_ns": first + number * width, "to_ns": first + (number + 1) * width})
        for number in range(max(known) + 1)
    ]


def _format_large_matrix(what: str, protocol: str, groups: int) -> str:
    return f"No picture of {what} of {protocol}: it has {groups} groups, over {MATRIX_GROUPS}; the tables have all."


def _format_facet(facet: str) -> str:
    return f": {facet}" if facet else ""


def _scale(label: str, values: Sequence[float]) -> Axis:
    """An axis from 0, or a logarithmic one if the values span decades."""
    is_log = spans_decades(values)
    return Axis(label, log=is_log, zero=not is_log)


def _take_ends(rankings: Sequence[Ranking]) -> list[Ranking]:
    """The first and the last: the lowest and the highest load, where it varies."""
    return list(rankings) if len(rankings) < 2 else [rankings[0], rankings[-1]]


def _has_both(row: Row) -> bool:
    return row["throughput_per_s"] is not None and row["latency_ns_p50"] is not None


def _to_ms(value: float | None) -> float | None:
    return None if value is None else value / MS


def _mean(values: Sequence[float | None], unit: float) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) / unit if known else None


def _to_number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _format_ordinal(rank: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(rank, f"{rank}th")
