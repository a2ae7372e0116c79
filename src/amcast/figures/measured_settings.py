"""The measured settings of a page: their plans, what varies between them, and means over their runs."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from amcast.pipeline.measure.comparison import find_varying_fields
from amcast.pipeline.sweep.grid import look_up

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

LOADS: Final = ("workload.outstanding", "topology.clients", "workload.rate", "workload.interval_ns")
"""Fields that are a load. The first of them that varies is the load of the page."""
MIN_SEEDS: Final = 5
"""An interval from fewer runs says more about their number than about the setting: none is shown."""


@dataclass(frozen=True)
class Setting:
    """One row of the comparison, with its plan."""

    row: Row
    plan: Mapping[str, Any]

    @property
    def protocol(self) -> str:
        return str(self.row["protocol"] or "run")

    def __getitem__(self, path: str) -> Any:
        return look_up(dict(self.plan), path)

    def interval(self, name: str) -> tuple[float | None, float | None]:
        """The 95 % interval of a number over seeds, if there are enough of them."""
        if self.row["runs"] < MIN_SEEDS:
            return None, None
        return self.row[f"{name}_low"], self.row[f"{name}_high"]


class MeasuredSettings:
    """All settings of a page, in the order in which the page shows them."""

    def __init__(self, tables: Tables, plans: Mapping[str, Mapping[str, Any]]) -> None:
        self.tables = tables
        self.settings = [Setting(row, plans[row["setting"]]) for row in tables["comparison"]]
        self.varied = find_varying_fields([dict(row) for row in tables["comparison"]])
        self.protocols = list(dict.fromkeys(setting.protocol for setting in self.settings))
        self.load = next((path for path in LOADS if path in self.varied), None)
        self.free_fields = [
            path for path in self.varied if path not in ("protocol", self.load) and self._varies_freely(path)
        ]
        """Fields that vary and do not follow from the protocol and the load."""
        self.settings.sort(key=self._sort_key)
        self._setting_of = {row["run"]: row["setting"] for row in tables["summary"]}

    def _varies_freely(self, path: str) -> bool:
        """Whether two settings of one protocol and one load differ in this field."""
        seen: dict[tuple[str, str], str] = {}
        for setting in self.settings:
            key = (setting.protocol, str(setting[self.load]) if self.load else "")
            if seen.setdefault(key, str(setting[path])) != str(setting[path]):
                return True
        return False

    def _sort_key(self, setting: Setting) -> list[Any]:
        """By the fields that vary, numbers by size, then by protocol."""
        fields = [path for path in [*self.free_fields, self.load] if path]
        return [*(sort_value(str(setting[path])) for path in fields), self.protocols.index(setting.protocol)]

    def label(self, setting: Setting) -> str:
        """A setting in a few words: its protocol and the fields that vary."""
        fields = [path for path in [*self.free_fields, self.load] if path]
        return " ".join(part for part in (setting.protocol, describe_fields(setting, fields)) if part)

    def name_run(self, row: Row) -> str:
        """A run in a few words: its protocol, and its seed if it has one."""
        protocol = str(row["protocol"] or "run")
        return protocol if row["seed"] is None else f"{protocol}, seed {row['seed']}"

    def find_starts(self) -> dict[str, int]:
        """By run: when its first multicast happened. A live run counts from 1970, a simulated one from 0."""
        starts: dict[str, int] = {}
        for row in self.tables.get("throughput", ()):
            starts[row["run"]] = min(row["from_ns"], starts.get(row["run"], row["from_ns"]))
        return starts

    def average_runs(
        self, table: str, keys: Sequence[str], value: str, where: Callable[[Row], bool]
    ) -> dict[tuple[Any, ...], float]:
        """(setting, *keys) -> the mean of a column over the setting's runs."""
        found: dict[tuple[Any, ...], list[float]] = {}
        for row in self.tables.get(table, ()):
            if where(row) and row[value] is not None:
                found.setdefault((self._setting_of[row["run"]], *(row[key] for key in keys)), []).append(row[value])
        return {key: sum(values) / len(values) for key, values in found.items()}


def describe_fields(setting: Setting, paths: Iterable[str]) -> str:
    """Some fields of a setting, in a few words."""
    return ", ".join(f"{short_name(path)} {_format_value(setting[path])}" for path in paths)


def match_by(by: str) -> Callable[[Row], bool]:
    """A condition on rows: their column `by` has this value."""
    return lambda row: bool(row["by"] == by)


def short_name(path: str | None) -> str:
    """The last part of a dotted path."""
    return (path or "").rpartition(".")[2]


def sort_value(text: str) -> tuple[int, float, str]:
    """A sort key: numbers by size, then texts."""
    try:
        return 0, float(text), text
    except ValueError:
        return 1, 0.0, text


def _format_value(value: Any) -> str:
    if isinstance(value, (list, tuple)):
        return "..".join(str(item) for item in value)
    return "default" if value in (None, "") else str(value)
