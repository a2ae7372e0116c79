"""Refuses methods of services that replicas would execute differently, as far as their source shows it.

It is a search of the source for the usual mistakes, and proves nothing: a helper function may hide them. The simulator
finds those, because it compares the states of replicas (`amcast fuzz --service`).
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Mapping
from typing import Any, Final, get_origin

CLOCKS: Final = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "now", "utcnow", "today"})
CLOCK_MODULES: Final = frozenset({"time", "datetime", "date"})
DRAWING_MODULES: Final = frozenset({"random", "secrets", "uuid"})
READING_ORDER: Final = frozenset({"list", "tuple", "iter", "enumerate", "zip", "map", "next"})


def find_nondeterminism(method: Callable[..., Any], fields: Mapping[str, Any]) -> str:
    """The end of a sentence about the first source of differences in a method; "" if none is found."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):
        return ""
    sets = {name for name, hint in fields.items() if (get_origin(hint) or hint) in (set, frozenset)}
    for node in ast.walk(tree):
        sentence = _judge_call(node, sets) if isinstance(node, ast.Call) else ""
        if isinstance(node, ast.For | ast.comprehension) and _is_set(node.iter, sets):
            sentence = f"loops over the set {ast.unparse(node.iter)}, whose order differs; expected sorted(...)"
        if sentence:
            return sentence
    return ""


def _judge_call(node: ast.Call, sets: set[str]) -> str:
    called, text = node.func, ast.unparse(node.func)
    if isinstance(called, ast.Attribute):
        owner = text.partition(".")[0]
        if owner in CLOCK_MODULES and called.attr in CLOCKS:
            return f"reads a clock ({text}); expected at.now, which is the same at every replica"
        if owner in DRAWING_MODULES:
            return f"draws random numbers ({text}); expected at.random, which is the same at every replica"
        if called.attr == "pop" and not node.args and _is_set(called.value, sets):
            return f"takes any element of a set ({text}); expected a choice that is the same at every replica"
    elif isinstance(called, ast.Name):
        if called.id in ("hash", "id"):
            return f"calls {called.id}, which differs between processes; expected a value of the state"
        if called.id in READING_ORDER and any(_is_set(argument, sets) for argument in node.args):
            return f"reads the order of a set ({ast.unparse(node)}); expected sorted(...)"
    return ""


def _is_set(node: ast.expr, sets: set[str]) -> bool:
    """Whether an expression is evidently a set."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "self":
        return node.attr in sets
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in ("set", "frozenset")
    return isinstance(node, ast.Set | ast.SetComp)
