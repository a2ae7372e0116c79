"""The notebooks run from the first cell to the last, and are committed without outputs."""

import ast
import json
from pathlib import Path
from typing import Any

import pytest

from tests import ROOT

NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))


def read_cells(file: Path) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = json.loads(file.read_text(encoding="utf-8"))["cells"]
    return [cell for cell in cells if cell["cell_type"] == "code"]


def test_there_are_three() -> None:
    assert [file.stem for file in NOTEBOOKS] == ["choose-a-protocol", "find-a-bug", "reproduce-a-figure"]


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_runs(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As a kernel does: all cells in one namespace, and the last expression of a cell is shown."""
    monkeypatch.chdir(ROOT)
    names: dict[str, Any] = {"__name__": "__main__"}
    for place, cell in enumerate(read_cells(file)):
        tree = ast.parse("".join(cell["source"]))
        shown = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
        exec(compile(tree, f"{file.name}, cell {place}", "exec"), names)
        if shown is not None:
            assert isinstance(shown, ast.Expr)
            value = eval(compile(ast.Expression(shown.value), f"{file.name}, cell {place}", "eval"), names)
            svg = getattr(value, "_repr_svg_", None)
            assert svg() if svg else repr(value), f"{file.name}, cell {place} shows nothing"


@pytest.mark.parametrize("file", NOTEBOOKS, ids=lambda file: file.stem)
def test_notebook_has_no_outputs(file: Path) -> None:
    assert all(not cell["outputs"] and cell["execution_count"] is None for cell in read_cells(file))
