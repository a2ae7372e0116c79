"""Runs a command of amcast, or pytest, with one mutant planted.

    python -m tests.mutation.plant ID fuzz -p primcast --seeds 0..99
    python -m tests.mutation.plant ID judges --seeds 0..99        random traces and histories, judged by force, too
    python -m tests.mutation.plant ID pytest tests/check

The mutated module is compiled when it is first imported; no file changes.
"""

import importlib.abc
import importlib.machinery
import sys
from collections.abc import Callable, Sequence
from types import ModuleType
from typing import Any

from tests.mutation.sample import SOURCE, find_mutant


class MutantFinder(importlib.abc.MetaPathFinder, importlib.abc.Loader):
    """Imports one module from mutated source; all others as usual."""

    def __init__(self, module: str, apply: Callable[[str], str]) -> None:
        self._module = module
        self._apply = apply
        self._file = SOURCE.joinpath(*module.split(".")).with_suffix(".py")

    def find_spec(
        self, name: str, path: Any, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        if name != self._module:
            return None
        return importlib.machinery.ModuleSpec(name, self, origin=str(self._file))

    def exec_module(self, module: ModuleType) -> None:
        source = self._apply(self._file.read_text())
        exec(compile(source, str(self._file), "exec"), module.__dict__)


def plant(id: str) -> None:
    """Plants a mutant into this process, which must not have imported its module."""
    mutant = find_mutant(id)
    assert mutant.module not in sys.modules, f"{mutant.module} was imported before the mutant was planted"
    sys.meta_path.insert(0, MutantFinder(mutant.module, mutant.apply))


def main(arguments: Sequence[str]) -> None:
    id, command, *rest = arguments
    sys.path.insert(0, str(SOURCE))
    plant(id)
    if command == "pytest":
        import pytest

        sys.exit(pytest.main(rest))
    if command == "judges":
        from tests.mutation.judges import main as run_judges

        sys.exit(run_judges(rest))
    from amcast.cli import main as run_amcast

    sys.argv = ["amcast", command, *rest]
    run_amcast()


if __name__ == "__main__":
    main(sys.argv[1:])
