"""The verdict on a history."""

from dataclasses import dataclass, field
from typing import Any

from amcast.check.verdict import Verdict


@dataclass(frozen=True)
class HistoryReport:
    """What was found."""

    verdict: Verdict
    checked: dict[str, int]
    """How much was checked."""
    story: list[str] = field(default_factory=list)
    """Why it is violated, or unknown, as sentences."""

    def as_dict(self) -> dict[str, Any]:
        return {"verdict": self.verdict, "checked": self.checked, "story": self.story}
