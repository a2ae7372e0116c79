"""Methods of test classes that extend the product: each overrides a method that exists, or is called by its test.

A method that was renamed in the product leaves its overrides behind: a mutant then changes nothing, and a
recorder records nothing.
"""

import ast
import builtins
import importlib
from collections.abc import Iterator
from types import ModuleType
from typing import NamedTuple

from tests import ROOT

TESTS = ROOT / "tests"


class LoadedModule(NamedTuple):
    """One file below tests/, parsed and imported."""

    name: str
    tree: ast.Module
    loaded: ModuleType


def test_methods_of_test_classes_override_something_or_are_called() -> None:
    faults = [fault for module in load_modules() for fault in find_dead_methods(module)]
    assert not faults, f"methods that override nothing and that no test calls: {faults}"


def test_dead_override_is_found() -> None:
    text = """
class Mutant(Base):
    def _renamed(self): ...
    def on_renamed(self): super().on_renamed()
    def _overridden(self): ...
    def _called(self): ...
    def helper(self): self._called()
class Heir(Mutant):
    def _renamed(self): ...
    def _elsewhere(self): ...
def make():
    class Inner(Mutant):
        def _unknown(self): ...
    return Inner
"""

    class Base:
        def _overridden(self) -> None: ...

    Base.__module__ = "amcast.made_up"
    loaded = ModuleType("made_up")
    loaded.Base = Base  # type: ignore[attr-defined]
    dead = find_dead_methods(LoadedModule("made_up", ast.parse(text), loaded))
    assert list(dead) == [
        "made_up.Mutant._renamed", "made_up.Mutant.on_renamed", "made_up.Heir._elsewhere", "made_up.Inner._unknown",
    ]  # fmt: skip


def load_modules() -> Iterator[LoadedModule]:
    for path in sorted(TESTS.rglob("*.py")):
        name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
        tree = ast.parse(path.read_text())
        if any(isinstance(node, ast.ClassDef) and node.bases for node in ast.walk(tree)):
            yield LoadedModule(name, tree, importlib.import_module(name))


def find_dead_methods(module: LoadedModule) -> Iterator[str]:
    """Private methods and handlers of classes that extend a class of amcast, which nothing calls."""
    inside = {node.name: node for node in ast.walk(module.tree) if isinstance(node, ast.ClassDef)}
    used = [node for node in ast.walk(module.tree) if isinstance(node, ast.Attribute)]
    called = {node.attr for node in used if ast.unparse(node.value) != "super()"}
    for node in inside.values():
        inherited = set[str]()
        extends_product = False
        for ancestor in list_ancestors(node, inside, module):
            if isinstance(ancestor, type):
                inherited |= set(dir(ancestor))
                extends_product |= any(kind.__module__.startswith("amcast.") for kind in ancestor.__mro__)
            else:
                inherited |= {item.name for item in list_methods(ancestor)}
        for method in list_methods(node):
            handles = method.name.startswith("on_") or (method.name.startswith("_") and not method.name.endswith("__"))
            if extends_product and handles and method.name not in inherited | called:
                yield f"{module.name}.{node.name}.{method.name}"


def list_methods(node: ast.ClassDef) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    return [item for item in node.body if isinstance(item, ast.FunctionDef | ast.AsyncFunctionDef)]


def list_ancestors(
    node: ast.ClassDef, inside: dict[str, ast.ClassDef], module: LoadedModule
) -> Iterator[type | ast.ClassDef]:
    """The classes that a class extends: those of its own file as syntax, others as objects."""
    for base in node.bases:
        plain = base.value if isinstance(base, ast.Subscript) else base
        if isinstance(plain, ast.Name) and plain.id in inside:
            yield inside[plain.id]
            yield from list_ancestors(inside[plain.id], inside, module)
        else:
            yield find_class(plain, module)


def find_class(base: ast.expr, module: LoadedModule) -> type:
    """The class that an expression names; of a parameter `kind: type[PrimCast]`, the class in its annotation."""
    parameters = {
        node.arg: node.annotation.slice
        for node in ast.walk(module.tree)
        if isinstance(node, ast.arg) and isinstance(node.annotation, ast.Subscript)
    }
    named = parameters.get(base.id, base) if isinstance(base, ast.Name) else base
    found = eval(ast.unparse(named), {**vars(builtins), **vars(module.loaded)})
    if found is NamedTuple:
        return tuple
    assert isinstance(found, type), f"{module.name}: {ast.unparse(base)} is no class"
    return found
