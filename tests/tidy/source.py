"""The source tree as data for the tidy tests: modules, their syntax trees, and what each imports."""

import ast
from collections.abc import Iterator
from functools import cache

from tests import ROOT

SOURCE = ROOT / "src" / "amcast"


@cache
def modules() -> dict[str, ast.Module]:
    """Every module of the package by its dotted name; a package is named by its folder."""
    found = {}
    for path in sorted(SOURCE.rglob("*.py")):
        parts = ["amcast", *path.relative_to(SOURCE).with_suffix("").parts]
        if parts[-1] == "__init__":
            parts.pop()
        found[".".join(parts)] = ast.parse(path.read_text())
    return found


def package(module: str) -> str:
    """The top-level package of a module; a module beside the packages is its own."""
    return module.split(".")[1] if "." in module else ""


@cache
def imports(module: str) -> frozenset[str]:
    """Modules that a module imports at the top, in a function or for type checking, as far as they can be named."""
    known = modules()
    found: set[str] = set()
    for node in ast.walk(known[module]):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module} imports relatively; write the whole name"
            assert node.module is not None
            inner = {f"{node.module}.{alias.name}" for alias in node.names}
            named = {name for name in inner if name in known}
            found |= named
            if named != inner:
                found.add(node.module)
    return frozenset(found)


def classes() -> Iterator[tuple[str, ast.ClassDef]]:
    """Every class at the top of a module, with the module's name."""
    for name, tree in modules().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                yield name, node


def functions() -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function and method, with its module's name."""
    for name, tree in modules().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield name, node
