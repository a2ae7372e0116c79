"""A planted bug: an exact replacement in the source of one module."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

SOURCE: Final = Path(__file__).parents[3] / "src"
MOST_SEEDS: Final = 2000
"""Within so many seeds every bug of the gate must be found, unless it states fewer."""


@dataclass(frozen=True)
class Bug:
    """A mistake, where it is planted and by whom it is looked for."""

    name: str
    module: str
    before: str
    """Occurs once in the module."""
    after: str
    protocol: str
    most_seeds: int = MOST_SEEDS
    """Seeds of `amcast fuzz` within which it must be found."""
    order: str = ""
    """What `--order` fixes for every seed; "": each draws it."""

    @property
    def file(self) -> Path:
        return SOURCE.joinpath("amcast", *self.module.split(".")).with_suffix(".py")

    def apply(self, source: str) -> str:
        count = source.count(self.before)
        assert count == 1, f"bug {self.name}: its source occurs {count} times in {self.module}; expected once"
        return source.replace(self.before, self.after)
