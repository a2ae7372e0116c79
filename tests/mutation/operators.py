"""Mutation operators: the small faults that are planted into the source, one at a time.

Each operator is a well-known mistake: a record that is not persisted, a message that is not sent, a guard that is
missing, a quorum that is one too small, a comparison that is off by one, a field that a restart forgets, an order key
without its tie-breaker. A mutant replaces one piece of text of one module; everything else stays as it is.
"""

import ast
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

DIAGNOSTIC: Final = re.compile(
    r"status|explain|describe|__repr__|__str__|__init__|_about|_label|_delays|_packets|_bound"
)
"""Functions that only operators read, and constructors, whose fields nothing can do without."""
RESTORING: Final = re.compile(r"restore|load|replay|install|adopt|on_start|_start|recover")
PERSISTS: Final = re.compile(r"^_?(persist|make_durable)")
SENDS: Final = re.compile(r"send(?!s_after|_after_persist$)|_send_after_persist$")
MERGES: Final = re.compile(r"^_?(merge|update|extend|add|union|observe|raise|resolve|record)")
HARMLESS: Final = re.compile(r"^_?(note|end_blocking|note_convoy|begin_blocking|debug|info|warning)")
SWAPPED: Final = {ast.Lt: "<=", ast.LtE: "<", ast.Gt: ">=", ast.GtE: ">"}


@dataclass(frozen=True)
class Mutant:
    """One replacement in one module."""

    module: str
    function: str
    operator: str
    ordinal: int
    """Its place among the mutants of this operator in this function."""
    line: int
    start: int
    end: int
    """The replaced text, as characters of the source."""
    before: str
    after: str

    @property
    def id(self) -> str:
        return f"{self.module}:{self.function}:{self.operator}:{self.ordinal}"

    def apply(self, source: str) -> str:
        """The source of the module with the fault."""
        return source[: self.start] + self.after + source[self.end :]


def list_mutants(module: str, source: str) -> list[Mutant]:
    """Every mutant of a module, in the order of the source."""
    return _Collector(module, source).collect()


class _Collector:
    def __init__(self, module: str, source: str) -> None:
        self._module = module
        self._source = source
        self._starts = [0]
        for line in source.splitlines(keepends=True):
            self._starts.append(self._starts[-1] + len(line))
        self._found: list[Mutant] = []
        self._counts: dict[tuple[str, str], int] = {}

    def collect(self) -> list[Mutant]:
        for name, function in _list_functions(ast.parse(self._source)):
            if not DIAGNOSTIC.search(name.rsplit(".")[-1]):
                self._visit_block(name, function.body)
        return sorted(self._found, key=lambda mutant: (mutant.start, mutant.operator, mutant.ordinal))

    def _add(self, function: str, operator: str, node: ast.AST, after: str) -> None:
        start, end = self._span(node)
        before = self._source[start:end]
        if before == after:
            return
        ordinal = self._counts.get((function, operator), 0)
        self._counts[function, operator] = ordinal + 1
        line: int = node.lineno  # type: ignore[attr-defined]
        self._found.append(Mutant(self._module, function, operator, ordinal, line, start, end, before, after))

    def _span(self, node: ast.AST) -> tuple[int, int]:
        first = self._starts[node.lineno - 1]  # type: ignore[attr-defined]
        last = self._starts[node.end_lineno - 1]  # type: ignore[attr-defined]
        # Columns of the syntax tree count bytes.
        return (
            first + _characters(self._source[first:], node.col_offset),  # type: ignore[attr-defined]
            last + _characters(self._source[last:], node.end_col_offset),  # type: ignore[attr-defined]
        )

    def _text(self, node: ast.AST) -> str:
        start, end = self._span(node)
        return self._source[start:end]

    # Statements

    def _visit_block(self, function: str, block: list[ast.stmt]) -> None:
        for index, statement in enumerate(block):
            if index + 1 < len(block):
                self._swap(function, statement, block[index + 1])
            self._visit_statement(function, statement)

    def _visit_statement(self, function: str, statement: ast.stmt) -> None:
        if isinstance(statement, ast.Assert | ast.FunctionDef | ast.Raise):
            return
        if isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Call):
            if HARMLESS.search(_called_name(statement.value)):
                return
            self._drop_call(function, statement, statement.value)
        elif isinstance(statement, ast.Assign | ast.AugAssign):
            self._drop_assignment(function, statement)
        elif isinstance(statement, ast.If) and not statement.orelse:
            if len(statement.body) == 1 and isinstance(statement.body[0], ast.Return | ast.Continue | ast.Break):
                self._add(function, "drop-guard", statement.test, "False")
            else:
                self._add(function, "force-guard", statement.test, "True")
        for expression in _list_expressions(statement):
            self._visit_expression(function, expression)
        for inner in _list_blocks(statement):
            self._visit_block(function, inner)

    def _drop_call(self, function: str, statement: ast.Expr, call: ast.Call) -> None:
        name = _called_name(call)
        if PERSISTS.search(name):
            self._add(function, "drop-persist", statement, "pass")
        elif SENDS.search(name):
            self._add(function, "drop-send", statement, "pass")
        elif MERGES.search(name):
            self._add(function, "drop-merge", statement, "pass")
        else:
            self._add(function, "drop-call", statement, "pass")

    def _drop_assignment(self, function: str, statement: ast.Assign | ast.AugAssign) -> None:
        targets = statement.targets if isinstance(statement, ast.Assign) else [statement.target]
        if not all(isinstance(target, ast.Attribute | ast.Subscript) for target in targets):
            return
        value = statement.value
        if isinstance(value, ast.Call) and _called_name(value) in ("max", "min"):
            self._add(function, "drop-merge", statement, "pass")
        elif RESTORING.search(function.rsplit(".")[-1]):
            self._add(function, "forget-field", statement, "pass")
        else:
            self._add(function, "drop-assignment", statement, "pass")

    def _swap(self, function: str, first: ast.stmt, second: ast.stmt) -> None:
        """Plants a send before the record that it depends on."""
        if _calls(first, PERSISTS) and _calls(second, SENDS) and not _calls(first, SENDS):
            start, middle = self._span(first)
            between, end = self._span(second)
            source = self._source
            after = source[between:end] + source[middle:between] + source[start:middle]
            whole = ast.copy_location(ast.Pass(), first)
            whole.end_lineno, whole.end_col_offset = second.end_lineno, second.end_col_offset
            self._add(function, "send-before-persist", whole, after)

    # Expressions

    def _visit_expression(self, function: str, expression: ast.expr) -> None:
        in_compare: set[int] = set()
        for node in ast.walk(expression):
            match node:
                case ast.BoolOp(op, values):
                    word = " and " if isinstance(op, ast.And) else " or "
                    for dropped in values:
                        kept = word.join(self._text(value) for value in values if value is not dropped)
                        self._add(function, "drop-operand", node, f"({kept})")
                case ast.Compare(left, [operator], [right]):
                    in_compare.update((id(left), id(right)))
                    if type(operator) in SWAPPED:
                        sign = SWAPPED[type(operator)]
                        self._add(function, "off-by-one", node, f"{self._text(left)} {sign} {self._text(right)}")
                case ast.Call(func, [_, _, *_]) if isinstance(func, ast.Name) and func.id in ("max", "min"):
                    self._add(function, "first-of-extreme", node, f"({self._text(node.args[0])})")
            if _is_quorum(node):
                self._add(function, "weaken-quorum", node, f"({self._text(node)} - 1)")
            self._break_tie(function, node, in_compare)

    def _break_tie(self, function: str, node: ast.AST, in_compare: set[int]) -> None:
        """Takes the tie-breaker from an order key."""
        keys: list[ast.expr] = []
        if isinstance(node, ast.Lambda):
            keys = [node.body]
        elif isinstance(node, ast.Call) and _called_name(node) in ("heappush", "heapreplace", "insort"):
            keys = node.args[1:2]
        elif isinstance(node, ast.Tuple) and id(node) in in_compare:
            keys = [node]
        for key in keys:
            if isinstance(key, ast.Tuple) and len(key.elts) > 1:
                self._add(function, "drop-tie-breaker", key.elts[-1], "0")


def _characters(text: str, count: int) -> int:
    line = text[: text.find("\n") + 1] or text
    return len(line.encode()[:count].decode())


def _list_functions(tree: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in tree.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef):
                    yield f"{node.name}.{inner.name}", inner


def _list_expressions(statement: ast.stmt) -> Iterator[ast.expr]:
    """The expressions of a statement itself, without those of the statements inside it."""
    for child in ast.iter_child_nodes(statement):
        if isinstance(child, ast.expr):
            yield child


def _list_blocks(statement: ast.stmt) -> Iterator[list[ast.stmt]]:
    for field in ("body", "orelse", "finalbody"):
        block = getattr(statement, field, None)
        if block:
            yield block
    if isinstance(statement, ast.Match):
        for case in statement.cases:
            yield case.body


def _called_name(call: ast.Call) -> str:
    match call.func:
        case ast.Attribute(attr=name) | ast.Name(id=name):
            return name
    return ""


def _calls(statement: ast.stmt, pattern: re.Pattern[str]) -> bool:
    return any(isinstance(node, ast.Call) and pattern.search(_called_name(node)) for node in ast.walk(statement))


def _is_quorum(node: ast.AST) -> bool:
    match node:
        case ast.Attribute(attr="quorum" | "_quorum", ctx=ast.Load()):
            return True
        case ast.Call(func=ast.Name(id="majority")):
            return True
        case _:
            return False
