"""The arrows between rooms, and the purity of the pure ones: walked from the imports of every module."""

import ast
from pathlib import Path

import pytest

from tests import ROOT

SOURCE = ROOT / "src" / "amcast"

MAY_IMPORT = {
    "kernel": set(),
    "parts": {"kernel"},
    "protocols": {"kernel", "parts"},
    "workloads": {"kernel", "data"},
    "data": {"kernel"},
    "trace": {"kernel"},
    "check": {"kernel", "trace"},
    "simulation": {"kernel", "trace", "data"},
    "live": {"kernel", "trace"},
    "pipeline": {"kernel", "trace", "check"},
    "figures": {"kernel", "trace", "pipeline"},
}
PURE = ("kernel", "parts", "protocols")
PURE_MAY_IMPORT = {
    "__future__", "abc", "bisect", "collections", "collections.abc", "dataclasses", "enum", "functools", "heapq",
    "itertools", "math", "msgspec", "operator", "types", "typing",
}  # fmt: skip


def modules(room: str) -> list[Path]:
    return sorted((SOURCE / room).rglob("*.py"))


def imports(module: Path) -> set[str]:
    """Every module that is imported, at the top or inside a function."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(module.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: a relative import hides which room it reaches into"
            found.add(node.module or "")
            if node.module == "amcast":
                found |= {f"amcast.{alias.name}" for alias in node.names}
    return found


@pytest.mark.parametrize("room", sorted(MAY_IMPORT))
def test_rooms_import_only_along_the_arrows(room: str) -> None:
    for module in modules(room):
        for name in sorted(imports(module)):
            parts = name.split(".")
            if parts[0] == "amcast" and len(parts) > 1 and parts[1] != room:
                allowed = parts[1] in MAY_IMPORT[room]
                assert allowed, f"{module.relative_to(ROOT)} imports {name}; room {room} may use {MAY_IMPORT[room]}"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_import_no_chance_no_clock_no_io(room: str) -> None:
    for module in modules(room):
        for name in sorted(imports(module)):
            if not name.startswith("amcast"):
                assert name in PURE_MAY_IMPORT, f"{module.relative_to(ROOT)} imports {name}; pure rooms may not"


@pytest.mark.parametrize("room", PURE)
def test_pure_rooms_open_print_and_hash_nothing(room: str) -> None:
    for module in modules(room):
        for node in ast.walk(ast.parse(module.read_text())):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                assert node.func.id not in {"open", "print", "input", "exec", "eval", "id"}, (
                    f"{module.relative_to(ROOT)}:{node.lineno} calls {node.func.id}"
                )


def test_spark_and_asyncio_stay_in_their_rooms() -> None:
    for module in sorted(SOURCE.rglob("*.py")):
        room = module.relative_to(SOURCE).parts[0]
        for name in imports(module):
            top = name.split(".")[0]
            if top == "pyspark":
                assert room == "pipeline", f"{module.relative_to(ROOT)} imports {name}"
            if top in ("asyncio", "uvloop"):
                assert room == "live", f"{module.relative_to(ROOT)} imports {name}"


def test_no_random_without_a_seed() -> None:
    """Only simulation and workloads draw, and only from streams of a seed."""
    for module in sorted(SOURCE.rglob("*.py")):
        room = module.relative_to(SOURCE).parts[0]
        if "random" in imports(module):
            drawing = ("simulation", "workloads", "lab", "live")
            assert room in drawing, f"{module.relative_to(ROOT)} imports random; only {drawing} draw"
