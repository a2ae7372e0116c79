"""Verdicts: holds, violated or unknown; how much was checked; and the story of a violation.

Missing evidence is never "holds". A property that a run does not claim is checked and reported as well, but only
claimed properties decide the verdict of the run.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from amcast.trace.meta import Meta, RunClaims

Verdict = Literal["holds", "violated", "unknown"]

PROPERTY_NAMES: Final = {
    "P1": "integrity",
    "P2": "validity",
    "P3": "uniform agreement",
    "P4": "uniform prefix order",
    "P5": "uniform acyclic order",
    "P6": "minimality",
    "P6'": "strict genuineness",
    "P7": "FIFO order of sessions",
    "P8": "exactly-once of sessions",
    "P9": "real-time order",
}
EXIT_CODES: Final[dict[Verdict, int]] = {"holds": 0, "violated": 1, "unknown": 2}
MAX_SENTENCES: Final = 5
"""A story has one sentence for each of this many violations, then the number of the others."""


def worst_verdict(verdicts: Iterable[Verdict]) -> Verdict:
    """Violated if one is; unknown if one is, or if there is no verdict; else holds."""
    found = set(verdicts)
    if "violated" in found:
        return "violated"
    return "holds" if found == {"holds"} else "unknown"


@dataclass
class Finding:
    """The verdict on one property."""

    property: str
    verdict: Verdict
    claimed: bool = True
    checked: dict[str, int] = field(default_factory=dict)
    """How much was checked: a verdict over nothing is a weak one."""
    story: list[str] = field(default_factory=list)
    """Sentences: why the property is violated, or what evidence is missing."""
    witness: list[dict[str, Any]] = field(default_factory=list)
    """The same as data: ids, processes, positions."""

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": PROPERTY_NAMES[self.property],
            "verdict": self.verdict,
            "claimed": self.claimed,
            "checked": self.checked,
            "story": self.story,
            "witness": self.witness,
        }


@dataclass
class Report:
    """The verdicts on one run."""

    meta: Meta
    properties: dict[str, Finding]

    @property
    def verdict(self) -> Verdict:
        """Violated if one claimed property is, else unknown if one is, else holds."""
        return worst_verdict(finding.verdict for finding in self.properties.values() if finding.claimed)

    @property
    def exit_code(self) -> int:
        return EXIT_CODES[self.verdict]

    def as_dict(self) -> dict[str, Any]:
        """The report as JSON values."""
        claims = self.meta.claims
        return {
            "verdict": self.verdict,
            "run": self.meta.run,
            "protocol": self.meta.protocol,
            "seed": self.meta.seed,
            "claims": {
                "genuine": claims.genuine,
                "complete": claims.complete,
                "fifo": claims.fifo,
                "exactly_once": claims.exactly_once,
                "real_time": claims.real_time,
            },
            "properties": {name: finding.as_dict() for name, finding in self.properties.items()},
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> "Report":
        """The inverse of `as_dict`."""
        meta = Meta(run=data["run"], protocol=data["protocol"], seed=data["seed"], claims=RunClaims(**data["claims"]))
        findings = {
            name: Finding(name, found["verdict"], found["claimed"], found["checked"], found["story"], found["witness"])
            for name, found in data["properties"].items()
        }
        return cls(meta, findings)

    def story(self) -> Iterator[str]:
        """Every sentence behind the verdict, violations first."""
        for verdict in ("violated", "unknown"):
            for name, finding in self.properties.items():
                if finding.claimed and finding.verdict == verdict:
                    yield f"{name} {PROPERTY_NAMES[name]} is {verdict}:"
                    yield from (f"  {sentence}" for sentence in finding.story)


class FindingBuilder:
    """Collects what the check of one property finds. A violation outweighs a doubt, a doubt outweighs no finding."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._found: dict[Verdict, int] = {"violated": 0, "unknown": 0}
        self._story: dict[Verdict, list[str]] = {"violated": [], "unknown": []}
        self._witness: dict[Verdict, list[dict[str, Any]]] = {"violated": [], "unknown": []}
        self.checked: dict[str, int] = {}

    def add_violation(self, sentence: str, **witness: Any) -> None:
        self._add("violated", sentence, witness)

    def add_violation_story(self, story: list[str], witness: list[dict[str, Any]]) -> None:
        """Adds one violation that takes several sentences, and keeps all of them."""
        self._found["violated"] += 1
        self._story["violated"] += story
        self._witness["violated"] += witness

    def add_doubt(self, sentence: str, **witness: Any) -> None:
        self._add("unknown", sentence, witness)

    def _add(self, verdict: Verdict, sentence: str, witness: dict[str, Any]) -> None:
        self._found[verdict] += 1
        if len(self._story[verdict]) < MAX_SENTENCES:
            self._story[verdict].append(sentence)
            if witness:
                self._witness[verdict].append(witness)

    def build(self) -> Finding:
        for verdict in ("violated", "unknown"):
            count = self._found[verdict]
            if count:
                story = self._story[verdict]
                more = [f"and {count - MAX_SENTENCES} more like these"] if count > MAX_SENTENCES else []
                checked = {**self.checked, verdict: count}
                return Finding(self._name, verdict, True, checked, story + more, self._witness[verdict])
        return Finding(self._name, "holds", True, self.checked)


COUNT_TEXTS: Final = {
    "about_none": "packets about no message",
    "concerned": "processes that some message concerns",
    "violated": "violations",
}
"""What counts of the checker mean, where their names do not say it."""


def describe_counts(checked: Mapping[str, int]) -> str:
    """What was checked, in words."""
    return ", ".join(f"{count:,} {COUNT_TEXTS.get(what, what)}" for what, count in checked.items())
