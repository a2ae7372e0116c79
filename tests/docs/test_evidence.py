"""The evidence page is what its files say, and the tests that it names exist."""

import ast
import tomllib

import pytest

from tests.docs.evidence import FOLDER, PAGE, ROOT, render_page

BUGS = tomllib.loads((FOLDER / "bugs.toml").read_text())["bug"]


def test_page_is_generated_from_its_files() -> None:
    assert PAGE.read_text() == render_page(), "run: python -m tests.docs.evidence"


@pytest.mark.parametrize("bug", BUGS, ids=lambda bug: bug["commit"] or bug["what"][:20])
def test_bug_is_kept_away_by_tests_that_exist(bug: dict[str, list[str]]) -> None:
    for test in bug["kept_away_by"]:
        file, _, name = test.partition("::")
        tree = ast.parse((ROOT / file).read_text())
        names = {node.name for node in ast.walk(tree) if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef))}
        assert name in names, f"{file} has no {name}"
