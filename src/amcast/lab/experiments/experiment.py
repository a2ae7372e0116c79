"""An experiment file, and the list of claims: parsed, checked, expanded into cells."""

import copy
import tomllib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from msgspec import field

from amcast.kernel.config import Config, parse_config
from amcast.kernel.errors import UsageError
from amcast.lab.sweep_cell import normalise_plan
from amcast.pipeline.sweep.grid import Grid, SweepCell, Values, expand_cells, parse_grid, set_fields

PAPERS: Final = {
    "000": "FlexCast",
    "001": "Genuine and non-genuine atomic multicast",
    "002": "PrimCast",
    "003": "FastCast",
    "004": "the TreeCast thesis",
}


class Check(Config, frozen=True):
    """One number that a claim is about, and what the paper says of it."""

    say: str
    metric: str
    """A column of the table; see `measures.py`."""
    of: dict[str, Any]
    """Column -> value: the rows that count. Several (seeds, for example) are combined by `over`."""
    paper: float
    """The value of the paper; of a comparison without a printed number 1."""
    against: dict[str, Any] | None = None
    """The rows with which the number is compared; None: it is taken as it is."""
    compare: Literal["ratio", "difference"] = "ratio"
    over: Literal["mean", "min", "max"] = "mean"
    direction: Literal["equal", "above", "below"] = "equal"
    tolerance: float = 0.15
    """equal: the largest deviation, as a share of the paper's value; above, below: by how much it may be missed."""

    def __post_init__(self) -> None:
        if not 0 <= self.tolerance < 1:
            raise ValueError(f"tolerance = {self.tolerance}; expected a share from 0 to below 1")
        if self.paper <= 0:
            raise ValueError(f"paper = {self.paper}; expected a value above 0")


class ExperimentClaim(Config, frozen=True):
    """A claim as an experiment tests it."""

    number: int
    checks: tuple[Check, ...]
    reason: str = ""
    """Why a part differs, as found out by a run of this or another experiment."""

    def __post_init__(self) -> None:
        if not self.checks:
            raise ValueError("checks = []; expected at least one")


class Picture(Config, frozen=True):
    """A chart of the table, as the paper drew it."""

    title: str
    x: str
    y: str
    label_x: str
    label_y: str
    series: tuple[str, ...] = ("protocol",)
    """The columns that distinguish lines."""
    kind: Literal["lines", "bars", "winners"] = "lines"
    """lines: y over x. bars: one bar per value of x and line. winners: a map of `x` by `y`, which are columns, with the
    line that has the least of `value` at each place."""
    value: str = ""
    """winners: what is compared."""
    places: tuple[str, ...] = ()
    """winners: the columns that name a line of the map, in place of `y`."""
    only: dict[str, Any] = field(default_factory=dict)
    """The rows that are shown."""

    def __post_init__(self) -> None:
        if (self.kind == "winners") != bool(self.value):
            raise ValueError(f"value = {self.value!r} with kind = {self.kind!r}; expected a column with winners alone")


class ExperimentFile(Config, frozen=True):
    """The contents of experiment.toml."""

    title: str
    paper: Literal["000", "001", "002", "003", "004", "beyond"]
    """"beyond": what no paper measured."""
    figure: str
    question: str
    setting: str
    """What was measured how, where the paper leaves it open."""
    plan: dict[str, Any]
    """A plan with the tables of a sweep: grid, zip, override, exclude."""
    quick: dict[str, Any] = field(default_factory=dict)
    """Dotted path -> value, over the plan: a reduced grid."""
    packets: bool = False
    """Whether bytes and packets are measured."""
    lone: bool = False
    """Whether a cell is one lone multicast in a world of unit delays instead of a simulated run."""
    saturate: str = ""
    """The field of a plan that is doubled until clients wait twice as long; see `saturation.py`. Empty: each cell is
    one run."""
    timeout_s: float = 1800.0
    claim: tuple[ExperimentClaim, ...] = ()
    picture: tuple[Picture, ...] = ()
    live: tuple[dict[str, Any], ...] = ()
    """Points that are also run live: dotted path -> value, over the plan without its grid; see `live_points.py`."""


@dataclass(frozen=True)
class Experiment:
    """An experiment with its folder."""

    name: str
    folder: Path
    file: ExperimentFile

    def make_grid(self, quick: bool, seeds: Sequence[int] = ()) -> Grid:
        """The grid, whole or reduced, with other seeds if some are given."""
        values: Values = copy.deepcopy(self.file.plan)
        if quick:
            for path, value in self.file.quick.items():
                if "." in path and path.split(".")[0] in ("grid", "zip", "override", "exclude"):
                    table, _, inner = path.partition(".")
                    values.setdefault(table, {})[inner] = value
                else:
                    values = set_fields(values, {path: value})
        if seeds:
            values.get("grid", {}).pop("seed", None)
            values.setdefault("grid", {})["seed"] = list(seeds)
        return parse_grid(values, f"experiment {self.name}")

    def expand(self, quick: bool = False, seeds: Sequence[int] = ()) -> list[SweepCell]:
        return expand_cells(self.make_grid(quick, seeds), normalise_plan, f"experiment {self.name}")


class ListedClaim(Config, frozen=True):
    """A claim of a paper, whether or not an experiment tests it."""

    number: int
    paper: Literal["000", "001", "002", "003", "004"]
    where: str
    text: str
    cannot: str = ""
    """Why it cannot be tested here; empty: it can."""


class _ClaimList(Config, frozen=True):
    claim: tuple[ListedClaim, ...]


def _read_toml(file: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise UsageError(f"{file}: cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: not TOML: {error}") from None


def read_claims(folder: Path) -> tuple[ListedClaim, ...]:
    """All claims, by number."""
    file = folder / "claims.toml"
    claims = parse_config(_ClaimList, _read_toml(file), str(file)).claim
    numbers = [claim.number for claim in claims]
    if numbers != list(range(1, len(numbers) + 1)):
        raise UsageError(f"{file}: the claims have the numbers {numbers}; expected 1, 2, 3 ...")
    return claims


def read_experiments(folder: Path) -> dict[str, Experiment]:
    """All experiments of a folder, by name."""
    if not (folder / "claims.toml").is_file():
        raise UsageError(f"--folder {folder}: no claims.toml; expected the folder experiments/ of the project")
    files = sorted(folder.glob("*/experiment.toml"))
    found = {}
    for file in files:
        parsed = parse_config(ExperimentFile, _read_toml(file), str(file))
        found[file.parent.name] = Experiment(file.parent.name, file.parent, parsed)
    known = {claim.number for claim in read_claims(folder)}
    for experiment in found.values():
        for claim in experiment.file.claim:
            if claim.number not in known:
                raise UsageError(f"experiment {experiment.name}: claim {claim.number} is not in claims.toml")
    return found


def find_experiment(folder: Path, name: str) -> Experiment:
    known = read_experiments(folder)
    if name not in known:
        raise UsageError(f"experiment {name!r} does not exist; `amcast reproduce --list` has: {', '.join(known)}")
    return known[name]
