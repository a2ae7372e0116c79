"""Executable lines of modules, and a tracer that records which of them run.

Only bodies of functions count: what runs at import is no evidence. The lines of one statement count as its first line,
which is reached when any of them is. A code object is no longer traced once all its lines
have run, so that the tracer costs little after the first seeds.
"""

import ast
import sys
from collections.abc import Iterator
from pathlib import Path
from types import CodeType, FrameType
from typing import Any, Final, NamedTuple

PACKAGE: Final = Path(__file__).parents[2] / "src" / "amcast"
AREAS: Final = ("protocols", "parts", "storage")
"""The packages whose lines are counted."""


class Line(NamedTuple):
    """One executable line: where it is, in terms that survive the movement of lines."""

    module: str
    """The path in the package."""
    function: str
    """The qualified name."""
    text: str
    """The line itself, without indentation."""


def list_modules() -> list[Path]:
    return sorted(file for area in AREAS for file in (PACKAGE / area).rglob("*.py"))


def find_lines(file: Path) -> dict[Line, set[int]]:
    """The statements of a module that can run, each with the numbers of its lines. Equal lines of one function are told
    apart by a number behind the text."""
    source = file.read_text()
    texts = source.splitlines()
    module = file.relative_to(PACKAGE).as_posix() if file.is_relative_to(PACKAGE) else file.name
    tree = ast.parse(source)
    names, firsts = _name_functions(tree), _map_to_statements(tree)
    numbers: dict[int, set[int]] = {}
    for code in _iterate_functions(compile(source, str(file), "exec")):
        for number in _list_numbers(code):
            numbers.setdefault(firsts.get(number, number), set()).add(number)
    found: dict[Line, set[int]] = {}
    for first in sorted(numbers):
        name = next((name for start, end, name in reversed(names) if start <= first <= end), "<lambda>")
        line, again = Line(module, name, texts[first - 1].strip()), 1
        while line in found:
            again += 1
            line = Line(module, name, f"{texts[first - 1].strip()} ({again})")
        found[line] = numbers[first]
    return found


def _map_to_statements(tree: ast.AST) -> dict[int, int]:
    """By number of a line: the first line of its statement, or of the head of its statement."""
    firsts: dict[int, int] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.match_case):
            first, last = node.pattern.lineno, node.body[0].lineno - 1
        elif isinstance(node, ast.stmt):
            inner = [part for part in ast.iter_child_nodes(node) if isinstance(part, (ast.stmt, ast.match_case))]
            starts = [part.lineno if isinstance(part, ast.stmt) else part.pattern.lineno for part in inner]
            first, last = node.lineno, min(starts) - 1 if starts else node.end_lineno or node.lineno
        else:
            continue
        firsts.update(dict.fromkeys(range(first, max(first, last) + 1), first))
    return firsts


def _name_functions(tree: ast.AST, prefix: str = "") -> list[tuple[int, int, str]]:
    """First line of the body, last line and qualified name of every function, outer ones first."""
    found = []
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            found.append((node.body[0].lineno, node.end_lineno or node.lineno, prefix + node.name))
            found += _name_functions(node, f"{prefix}{node.name}.")
        elif isinstance(node, ast.ClassDef):
            found += _name_functions(node, f"{prefix}{node.name}.")
        else:
            found += _name_functions(node, prefix)
    return found


def _iterate_functions(code: CodeType) -> Iterator[CodeType]:
    """Code of functions, lambdas and comprehensions, but not of modules and classes."""
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            if constant.co_flags & 0x2:  # CO_NEWLOCALS: a function; a class body has no such flag
                yield constant
            yield from _iterate_functions(constant)


def _list_numbers(code: CodeType) -> set[int]:
    """The numbers of a function's lines without the line of its `def`."""
    numbers = {number for _, _, number in code.co_lines() if number is not None}
    return numbers - {code.co_firstlineno} if code.co_name[0] != "<" else numbers


class LineTracer:
    """Records the lines of some modules that run while it is active."""

    def __init__(self, files: list[Path]) -> None:
        self._files = {str(file) for file in files}
        self.reached: dict[str, set[int]] = {name: set() for name in self._files}
        """By file: lines that have run; those that are added before the tracer is active are not looked for."""
        self._left: dict[CodeType, set[int]] = {}
        """By code object that ran: its lines that have not run."""

    def __enter__(self) -> "LineTracer":
        sys.settrace(self._trace_call)
        return self

    def __exit__(self, *error: object) -> None:
        sys.settrace(None)

    def _trace_call(self, frame: FrameType, event: str, argument: Any) -> Any:
        code = frame.f_code
        if code.co_filename not in self._files:
            return None
        left = self._left.get(code)
        if left is None:
            left = self._left[code] = _list_numbers(code) - self.reached[code.co_filename]
        return self._trace_line if left else None

    def _trace_line(self, frame: FrameType, event: str, argument: Any) -> Any:
        if event == "line":
            self.reached[frame.f_code.co_filename].add(frame.f_lineno)
            self._left[frame.f_code].discard(frame.f_lineno)
        return self._trace_line
