"""Which pictures and which tables a set of measures deserves.

Settings differ in the fields that a plan varied. One of them may be the load (messages in flight, clients): it runs
along the curves. The protocol tells the curves apart. What else varies makes one picture each, up to a limit that the
page states.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from amcast.figures import charts
from amcast.figures.charts import Axis, Curve, Frame, Picture, Range
from amcast.figures.tables import PageTable, sheets
from amcast.pipeline.measure.comparison import find_varying_fields
from amcast.pipeline.sweep.grid import look_up

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

LOADS: Final = ("workload.outstanding", "topology.clients", "workload.rate", "workload.interval_ns")
"""Fields that mean load, the first that varies is the one."""
FACETS: Final = 4
PROTOCOLS: Final = 6
"""Protocols that get pictures of their own, one each."""
LINES: Final = 24
ROWS: Final = 40
MS: Final = 1e6


@dataclass
class Chosen:
    """What the page shows."""

    pictures: list[Picture] = field(default_factory=list)
    sheets: list[PageTable] = field(default_factory=list)
    varied: list[str] = field(default_factory=list)
    left_out: list[str] = field(default_factory=list)
    """What a limit left out, in sentences."""


@dataclass(frozen=True)
class Setting:
    """One line of the comparison with its plan taken apart."""

    row: Row
    plan: Mapping[str, Any]

    @property
    def protocol(self) -> str:
        return str(self.row["protocol"] or "run")

    def __getitem__(self, path: str) -> Any:
        return look_up(dict(self.plan), path)


class Chooser:
    """Knows the settings, what varies between them, and which colour each protocol has."""

    def __init__(self, tables: Tables, plans: Mapping[str, Mapping[str, Any]]) -> None:
        self.tables = tables
        self.settings = [Setting(row, plans[row["setting"]]) for row in tables["comparison"]]
        self.varied = find_varying_fields([dict(row) for row in tables["comparison"]])
        self.protocols = list(dict.fromkeys(setting.protocol for setting in self.settings))
        self.load = next((path for path in LOADS if path in self.varied), None)
        self.free = [path for path in self.varied if path not in ("protocol", self.load) and self._free(path)]
        self.settings.sort(key=self._place)
        self.chosen = Chosen(varied=self.varied)
        self._setting_of = {row["run"]: row["setting"] for row in tables["summary"]}

    def _free(self, path: str) -> bool:
        """Not a mere consequence of the protocol and the load: two settings differ in it alone of the three."""
        seen: dict[tuple[str, str], str] = {}
        for setting in self.settings:
            key = (setting.protocol, str(setting[self.load]) if self.load else "")
            if seen.setdefault(key, str(setting[path])) != str(setting[path]):
                return True
        return False

    def _place(self, setting: Setting) -> list[Any]:
        """Settings come by what varies, numbers by size, then by protocol."""
        fields = [path for path in [*self.free, self.load] if path]
        return [*(_number_or_text(str(setting[path])) for path in fields), self.protocols.index(setting.protocol)]

    def facets(self) -> dict[str, list[Setting]]:
        """The settings that share everything but protocol and load, by what they share."""
        found: dict[str, list[Setting]] = {}
        for setting in self.settings:
            found.setdefault(said(setting, self.free), []).append(setting)
        if len(found) > FACETS:
            self.chosen.left_out.append(f"Pictures show {FACETS} of {len(found)} combinations; the tables have all.")
        return dict(list(found.items())[:FACETS])

    def _few(self) -> list[str]:
        """The protocols that get pictures of their own."""
        if len(self.protocols) > PROTOCOLS:
            told = f"Pictures of one protocol each show {PROTOCOLS} of {len(self.protocols)}; the tables have all."
            self.chosen.left_out.append(told)
        return self.protocols[:PROTOCOLS]

    def label(self, setting: Setting) -> str:
        fields = [path for path in [*self.free, self.load] if path]
        return " ".join(part for part in (setting.protocol, said(setting, fields)) if part)

    # Over settings

    def curves(self) -> None:
        for number, (facet, settings) in enumerate(self.facets().items()):
            lines = []
            for protocol in self.protocols:
                mine = [s for s in settings if s.protocol == protocol and _both(s.row)]
                mine.sort(key=lambda s: _number(s[self.load]) if self.load else 0)
                lines.append(
                    Curve(
                        protocol,
                        [s.row["throughput_per_s"] for s in mine],
                        [s.row["latency_ns_p50"] / MS for s in mine],
                        [_ms(s.row["latency_ns_p50_low"]) for s in mine],
                        [_ms(s.row["latency_ns_p50_high"]) for s in mine],
                    )
                )
            if not any(line.x for line in lines):
                continue
            along = f" Points along a line: {_short(self.load)} from low to high." if self.load else ""
            frame = Frame(
                f"throughput-latency-{number}" if number else "throughput-latency",
                f"Throughput and latency{_of(facet)}",
                "Median latency from multicast to the first delivery in each destination group, against messages"
                f" completed per second; bars are 95 % intervals over seeds.{along}",
                Axis("messages per second", zero=True),
                Axis("median latency, ms", zero=True),
            )
            self.chosen.pictures.append(charts.curves(frame, lines))

    def ranges(self) -> None:
        known = [s for s in self.settings if s.row["latency_ns_p50"] is not None]
        if not known:
            return
        if len(known) > LINES:
            self.chosen.left_out.append(f"The picture of percentiles shows {LINES} of {len(known)} settings.")
        lines = [
            Range(
                self.label(setting),
                [setting.row[f"latency_ns_{name}"] / MS for name in ("p50", "p95", "p99")],
                colour=self.protocols.index(setting.protocol),
            )
            for setting in known[:LINES]
        ]
        frame = Frame(
            "percentiles",
            "Latency percentiles",
            "Half, 95 % and 99 % of the responses came within these times; the mean over seeds.",
            Axis("latency, ms", zero=True),
        )
        self.chosen.pictures.append(charts.ranges(frame, ("50 %", "95 %", "99 %"), lines))

    def heats(self) -> None:
        fields = [path for path in [self.load, *self.free] if path][:3]
        for path in fields:
            places = sorted({str(s[path]) for s in self.settings}, key=_number_or_text)
            if not 2 <= len(places) <= 16:
                continue
            grid = [
                [
                    _mean(
                        [
                            s.row["latency_ns_p50"]
                            for s in self.settings
                            if (s.protocol, str(s[path])) == (protocol, place)
                        ],
                        MS,
                    )
                    for place in places
                ]
                for protocol in self.protocols
            ]
            frame = Frame(
                f"heat-{path.replace('.', '-')}",
                f"Median latency by protocol and {_short(path)}, ms",
                "The mean over everything else that varies; the stronger the colour, the slower.",
                Axis(path),
            )
            self.chosen.pictures.append(charts.heat(frame, places, self.protocols, grid))

    # Over the runs of settings

    def pooled(
        self, table: str, keys: Sequence[str], value: str, where: Callable[[Row], bool]
    ) -> dict[tuple[Any, ...], float]:
        """(setting, *keys) -> the mean over the setting's runs."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for row in self.tables.get(table, ()):
            if where(row) and row[value] is not None:
                found.setdefault((self._setting_of[row["run"]], *(row[key] for key in keys)), []).append(row[value])
        return {key: sum(values) / len(values) for key, values in found.items()}

    def cdfs(self) -> None:
        points = self.pooled("cdf", ("share",), "latency_ns", lambda row: row["by"] == "all")
        by_setting: dict[str, list[tuple[float, float]]] = {}
        for (setting, share), value in sorted(points.items()):
            by_setting.setdefault(setting, []).append((value / MS, share))
        for number, (facet, settings) in enumerate(self.facets().items() if by_setting else ()):
            lines = []
            for protocol in self.protocols:
                mine = [s for s in settings if s.protocol == protocol and s.row["setting"] in by_setting]
                mine.sort(key=lambda s: _number(s[self.load]) if self.load else 0)
                for setting in mine[:1]:
                    drawn = by_setting[setting.row["setting"]]
                    lines.append(Curve(protocol, [x for x, _ in drawn], [y for _, y in drawn]))
            least = f" At the lowest {_short(self.load)}." if self.load else ""
            frame = Frame(
                f"cdf-{number}" if number else "cdf",
                f"How latencies are distributed{_of(facet)}",
                f"The share of responses within a time.{least}",
                Axis("latency, ms", zero=True),
                Axis("share of responses", zero=True, top=1.02),
            )
            self.chosen.pictures.append(charts.curves(frame, lines, marks=False))

    def places(self) -> None:
        """By rank and by order of response; between more than two protocols, the table compares better."""
        if len(self.protocols) > 2:
            return
        for by, title in (("rank", "by rank of the destination"), ("response", "by order of response")):
            points = self.pooled("cdf", ("place", "share"), "latency_ns", lambda row, by=by: row["by"] == by)  # type: ignore[misc]
            for protocol in self._few():
                setting = next(s for s in self.settings if s.protocol == protocol).row["setting"]
                ranks = sorted({key[1] for key in points if key[0] == setting})
                if len(ranks) < 2:
                    continue
                lines = []
                for rank in ranks[:8]:
                    drawn = sorted(
                        (share, value / MS) for (s, r, share), value in points.items() if (s, r) == (setting, rank)
                    )
                    lines.append(Curve(_nth(rank), [x for _, x in drawn], [y for y, _ in drawn]))
                only = f": {protocol}" if len(self.protocols) > 1 else ""
                frame = Frame(
                    f"cdf-{by}-{protocol}",
                    f"Latency {title}{only}",
                    "Destination groups are numbered from the first; the share of responses within a time.",
                    Axis("latency, ms", zero=True),
                    Axis("share of responses", zero=True, top=1.02),
                )
                self.chosen.pictures.append(charts.curves(frame, lines, marks=False))

    def over_time(self) -> None:
        slices: dict[str, list[Row]] = {}
        for row in self.tables.get("throughput", ()):
            slices.setdefault(row["run"], []).append(row)
        struck: dict[str, dict[float, str]] = {}
        for row in self.tables.get("recovery", ()):
            struck.setdefault(row["run"], {})[row["fault_ns"] / 1e9] = row["fault"]
        for protocol in self._few():
            setting = next(s for s in self.settings if s.protocol == protocol).row["setting"]
            runs = [row for row in self.tables["summary"] if row["setting"] == setting and row["run"] in slices]
            for run in sorted(runs, key=lambda row: str(row["seed"]))[:1]:
                mine = _filled(slices[run["run"]])
                # A live run counts from 1970, a simulated one from 0; a reader counts from the beginning.
                zero = mine[0]["from_ns"]
                middle = [((row["from_ns"] + row["to_ns"]) / 2 - zero) / 1e9 for row in mine]
                steady = [row for row in mine if row["steady"]]
                bands = [((steady[0]["from_ns"] - zero) / 1e9, (steady[-1]["to_ns"] - zero) / 1e9)] if steady else []
                called = protocol if run["seed"] is None else f"{protocol}, seed {run['seed']}"
                lines = [
                    Curve("multicast", middle, [row["multicasts_per_s"] for row in mine]),
                    Curve("completed", middle, [row["completions_per_s"] for row in mine]),
                ]
                frame = Frame(
                    f"time-{protocol}",
                    f"Messages per second over time: {called}",
                    "The shaded part is the one that counts; dashed lines are faults.",
                    Axis("seconds"),
                    Axis("messages per second", zero=True),
                )
                events = [(at - zero / 1e9, what) for at, what in sorted(struck.get(run["run"], {}).items())[:12]]
                self.chosen.pictures.append(charts.curves(frame, lines, marks=False, bands=bands, events=events))

    def bodies(self) -> None:
        found = self.pooled("bodies", ("body",), "packets_per_multicast", lambda row: True)
        kinds = sorted({body for _, body in found})
        lines = []
        for setting in self.settings[:LINES]:
            values = [found.get((setting.row["setting"], body), 0.0) for body in kinds]
            if any(values):
                lines.append((self.label(setting), values))
        if lines:
            frame = Frame(
                "packets",
                "Packets per multicast",
                "By the kind of their body; what a process sends to itself is counted.",
                Axis("packets per multicast", zero=True),
            )
            self.chosen.pictures.append(charts.bars(frame, kinds, lines))

    def work(self) -> None:
        """Who worked for whom, where anybody worked for others."""
        found = self.pooled("work", ("group", "for_group"), "worked_as_stranger", lambda row: True)
        for protocol in self.protocols:
            setting = next(s for s in self.settings if s.protocol == protocol).row["setting"]
            mine = {key[1:]: value for key, value in found.items() if key[0] == setting}
            groups = sorted({group for pair in mine for group in pair})
            if not any(mine.values()) or len(groups) > 24:
                continue
            frame = Frame(
                f"work-{protocol}",
                f"Who worked for whom: {protocol}",
                "Packets that processes of a group handled about messages which do not concern them, by a group that"
                " those messages were for.",
                Axis("for group"),
                Axis("group"),
            )
            names = [str(group) for group in groups]
            grid = [[mine.get((group, other)) for other in groups] for group in groups]
            self.chosen.pictures.append(charts.heat(frame, names, names, grid))

    def routes(self) -> None:
        found = self.pooled("routes", ("sender_region", "group"), "latency_ns_p50", lambda row: True)
        for protocol in self._few():
            setting = next(s for s in self.settings if s.protocol == protocol).row["setting"]
            mine = {key[1:]: value / MS for key, value in found.items() if key[0] == setting}
            regions, groups = sorted({r for r, _ in mine}), sorted({g for _, g in mine})
            if len(regions) < 2 or len(groups) > 24:
                continue
            frame = Frame(
                f"routes-{protocol}",
                f"Median latency by place, ms: {protocol}",
                "From the region of the sender to the first delivery in a group.",
                Axis("group"),
                Axis(""),
            )
            grid = [[mine.get((region, group)) for group in groups] for region in regions]
            self.chosen.pictures.append(charts.heat(frame, [str(g) for g in groups], regions, grid))


def choose(tables: Tables, plans: Mapping[str, Mapping[str, Any]]) -> Chosen:
    """Everything that these measures have to show."""
    chooser = Chooser(tables, plans)
    # One setting alone is one point: there is nothing to compare.
    compared = (chooser.curves, chooser.ranges) if len(chooser.settings) > 1 else ()
    alone = (chooser.cdfs, chooser.heats, chooser.places, chooser.routes)
    for draw in (*compared, *alone, chooser.over_time, chooser.bodies, chooser.work):
        draw()
    chooser.chosen.sheets = sheets(chooser)
    chooser.chosen.left_out = list(dict.fromkeys(chooser.chosen.left_out))
    return chooser.chosen


def said(setting: Setting, paths: Iterable[str]) -> str:
    """Some fields of a setting, in a few words."""
    return ", ".join(f"{_short(path)} {_text(setting[path])}" for path in paths)


def _filled(slices: Sequence[Row]) -> list[Row]:
    """Slices in order of time, those in which nothing happened included."""
    known = {row["slice"]: row for row in slices}
    some = slices[0]
    width = some["to_ns"] - some["from_ns"]
    first = some["from_ns"] - some["slice"] * width
    silent = {"multicasts_per_s": 0.0, "completions_per_s": 0.0, "deliveries_per_s": 0.0, "steady": False}
    return [
        known.get(number, {**silent, "from_ns": first + number * width, "to_ns": first + (number + 1) * width})
        for number in range(max(known) + 1)
    ]


def _text(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "..".join(str(item) for item in value)
    return "default" if value in (None, "") else str(value)


def _short(path: str | None) -> str:
    return (path or "").rpartition(".")[2]


def _of(facet: str) -> str:
    return f": {facet}" if facet else ""


def _both(row: Row) -> bool:
    return row["throughput_per_s"] is not None and row["latency_ns_p50"] is not None


def _ms(value: float | None) -> float | None:
    return None if value is None else value / MS


def _mean(values: Sequence[float | None], unit: float) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) / unit if known else None


def _number(value: Any) -> float:
    return float(value) if isinstance(value, (int, float)) else 0.0


def _number_or_text(text: str) -> tuple[int, float, str]:
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def _nth(rank: int) -> str:
    return {1: "1st", 2: "2nd", 3: "3rd"}.get(rank, f"{rank}th")
