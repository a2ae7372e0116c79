"""Refuses methods of services that replicas would execute differently, as far as their source shows it.

It is a search of the source for the usual mistakes, in the methods and in the functions of the same package that they
call; it proves nothing. What it does not see, the simulator may: it compares the states of replicas
(`amcast fuzz --service`). But replicas of a simulation are in one process, with one environment and one order of each
set of strings: that is why what depends on these is looked for here.
"""

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterator, Mapping
from types import FunctionType, ModuleType
from typing import Any, Final, get_origin

CLOCKS: Final = frozenset({"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "now", "utcnow", "today"})
CLOCK_MODULES: Final = frozenset({"time", "datetime", "date"})
DRAWING_MODULES: Final = frozenset({"random", "secrets", "uuid"})
MACHINE_MODULES: Final = frozenset(
    {"os", "platform", "socket", "subprocess", "shutil", "tempfile", "urllib", "requests"}
)
"""What they give differs between machines, or is I/O."""
OWN_NAMES: Final = {"posix": "os", "nt": "os", "_socket": "socket"}
"""What some of them say that their functions are from."""
FILE_METHODS: Final = frozenset({"read_text", "read_bytes", "write_text", "write_bytes"})
THREAD_MODULES: Final = frozenset({"threading", "multiprocessing", "asyncio", "concurrent"})
READING_ORDER: Final = frozenset({"list", "tuple", "iter", "enumerate", "zip", "map", "filter", "next", "reversed"})
READING_METHODS: Final = frozenset({"join", "fromkeys", "extend", "extendleft"})
ORDERLESS: Final = frozenset({"sorted", "set", "frozenset", "any", "all", "len", "sum", "min", "max"})
"""What they return does not depend on the order of what they are given (but for sums of floats, which the simulator
finds)."""
SETS: Final = frozenset({"set", "frozenset"})
SET_METHODS: Final = frozenset({"union", "intersection", "difference", "symmetric_difference"})
ENDING: Final = frozenset({"exit", "quit", "sys.exit", "os._exit", "os.abort"})


def find_nondeterminism(service: type, name: str, fields: Mapping[str, Any], has_files: bool = False) -> str:
    """The end of a sentence about the first source of differences in a method, or in a function that it calls; "" if
    none is found. `has_files`: the service may read and write files."""
    return _Search(service, fields, has_files).judge(getattr(service, name))


class _Search:
    """A search of one method and of what it calls."""

    def __init__(self, service: type, fields: Mapping[str, Any], has_files: bool) -> None:
        self._service = service
        self._sets = {f"self.{name}" for name, hint in fields.items() if (get_origin(hint) or hint) in (set, frozenset)}
        self._has_files = has_files
        self._seen: set[object] = set()

    def judge(self, function: Callable[..., Any]) -> str:
        """Judges a function, and those that it calls, each once."""
        function = inspect.unwrap(function)
        if function in self._seen:
            return ""
        self._seen.add(function)
        try:
            tree = ast.parse(textwrap.dedent(inspect.getsource(function)))
        except (OSError, TypeError, SyntaxError):
            return ""
        sets, names = _find_sets(tree, self._sets), getattr(function, "__globals__", {})
        orderless = _find_orderless(tree)
        for node in ast.walk(tree):
            sentence = self._judge_machine(node, names)
            if not sentence and isinstance(node, ast.Call) and node not in orderless:
                sentence = _judge_call(node, sets)
            if isinstance(node, ast.For | ast.comprehension) and node not in orderless and _is_set(node.iter, sets):
                sentence = f"loops over the set {ast.unparse(node.iter)}, whose order differs; expected sorted(...)"
            if sentence:
                return sentence
        for called in self._find_called(tree, names):
            if sentence := self.judge(called):
                return f"calls {called.__name__}, which {sentence}"
        return ""

    def _find_called(self, tree: ast.AST, names: Mapping[str, Any]) -> Iterator[FunctionType]:
        """The functions of the same package, and the other methods, that are called by their names."""
        package = str(names.get("__name__", "")).partition(".")[0]
        for node in ast.walk(tree):
            called = node.func if isinstance(node, ast.Call) else None
            found = names.get(called.id) if isinstance(called, ast.Name) else None
            if isinstance(called, ast.Attribute) and ast.unparse(called.value) == "self":
                found = getattr(self._service, called.attr, None)
            if isinstance(found, FunctionType) and found.__module__.partition(".")[0] == package:
                yield found

    def _judge_machine(self, node: ast.AST, names: Mapping[str, Any]) -> str:
        """What differs between machines, and what a program does beside its state."""
        if isinstance(node, ast.Global):
            return f"assigns the global {node.names[0]}, which is no state; expected an attribute"
        called = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if called in ENDING:
            return f"ends the program ({called}); expected an exception, which is the result of the command"
        module, text = _find_module(node, names), ast.unparse(node) if isinstance(node, ast.expr) else ""
        if module in THREAD_MODULES:
            return f"starts what runs beside the order ({text}); expected that a command does its work itself"
        if self._has_files:
            return ""
        if called in ("open", "input") or (called and called.rpartition(".")[2] in FILE_METHODS):
            return f"reads or writes files ({called}), which other replicas do not have; expected arguments and state"
        if module in MACHINE_MODULES and not text.startswith("os.path"):
            return f"depends on the machine ({text}); expected arguments and state"
        return ""


def _find_module(node: ast.AST, names: Mapping[str, Any]) -> str:
    """The module that an attribute, or a global name, is from; "" if that is not evident."""
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
        module = names.get(node.value.id)
        name = module.__name__ if isinstance(module, ModuleType) else ""
    elif isinstance(node, ast.Name) and node.id in names:
        found = names[node.id]
        name = (
            "" if isinstance(found, ModuleType) else str(getattr(found, "__module__", None) or type(found).__module__)
        )
    else:
        return ""
    name = name.partition(".")[0]
    return OWN_NAMES.get(name, name)


def _find_orderless(tree: ast.AST) -> set[ast.AST]:
    """Calls and loops whose order does not matter."""
    found: set[ast.AST] = set()
    for node in ast.walk(tree):
        inner: list[ast.expr] = [node] if isinstance(node, ast.SetComp) else []
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ORDERLESS:
            inner += node.args
        for one in inner:
            found |= {one, *getattr(one, "generators", ())}
    return found


def _find_sets(tree: ast.AST, known: set[str]) -> set[str]:
    """The names of sets: attributes, and local names that are assigned sets and nothing else."""
    found, others = set(known), set[str]()
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign | ast.AnnAssign):
            targets = node.targets if isinstance(node, ast.Assign) else [node.target]
            is_set = node.value is not None and _is_set(node.value, found)
        elif isinstance(node, ast.For | ast.comprehension | ast.NamedExpr):
            targets, is_set = [node.target], False
        else:
            continue
        (found if is_set else others).update(target.id for target in targets if isinstance(target, ast.Name))
    return found - others


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
    elif isinstance(called, ast.Name) and called.id in ("hash", "id"):
        return f"calls {called.id}, which differs between processes; expected a value of the state"
    name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
    reading = READING_METHODS if isinstance(called, ast.Attribute) else READING_ORDER
    if name in reading and any(_is_set(argument, sets) for argument in node.args):
        return f"reads the order of a set ({ast.unparse(node)}); expected sorted(...)"
    return ""


def _is_set(node: ast.expr | ast.AST, sets: set[str]) -> bool:
    """Whether an expression is evidently a set."""
    if isinstance(node, ast.Attribute | ast.Name):
        return ast.unparse(node) in sets
    if isinstance(node, ast.BinOp) and isinstance(node.op, ast.BitOr | ast.BitAnd | ast.Sub | ast.BitXor):
        return _is_set(node.left, sets)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
        return node.func.attr in SET_METHODS and _is_set(node.func.value, sets)
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        return node.func.id in SETS
    return isinstance(node, ast.Set | ast.SetComp)
