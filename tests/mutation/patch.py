"""Plants changed source into the running interpreter: functions get the code of their changed twins.

A search over hundreds of mutants would otherwise spend its time on starting interpreters. What is not inside a function
(a constant, a class body) cannot be planted so: `PatchError` says it, and the caller starts an interpreter.
"""

import importlib
import inspect
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import CodeType, FunctionType, ModuleType
from typing import Any

from tests.mutation.sample import SOURCE

OUTSIDE = "<module>"


class PatchError(Exception):
    """The change cannot be planted into a running interpreter."""


@contextmanager
def plant_source(module: str, changed: str) -> Iterator[None]:
    """Runs a block with the functions of a module as changed source has them."""
    loaded = importlib.import_module(module)
    file = SOURCE.joinpath(*module.split(".")).with_suffix(".py")
    original = compile(file.read_text(), str(file), "exec", dont_inherit=True)
    before, after = collect_functions(original), collect_functions(compile(changed, str(file), "exec"))
    if before.keys() != after.keys() or _shape(original, True) != _shape(compile(changed, str(file), "exec"), True):
        raise PatchError(f"{module}: the change is not inside a function")
    names = [name for name in before if _shape(before[name]) != _shape(after[name])]
    functions = [(find_function(loaded, name), after[name]) for name in names]
    kept = [function.__code__ for function, _ in functions]
    try:
        for function, code in functions:
            set_code(function, code)
        yield
    finally:
        for (function, _), code in zip(functions, kept, strict=True):
            function.__code__ = code


def set_code(function: FunctionType, code: CodeType) -> None:
    try:
        function.__code__ = code
    except ValueError as error:
        raise PatchError(f"{function.__qualname__}: {error}") from None


def collect_functions(code: CodeType) -> dict[str, CodeType]:
    """The code of every function that is not inside another, by qualified name."""
    found: dict[str, CodeType] = {}
    for constant in code.co_consts:
        if not isinstance(constant, CodeType) or constant.co_name.startswith("<"):
            continue
        if constant.co_flags & inspect.CO_OPTIMIZED:
            found[constant.co_qualname] = constant
        else:  # a class body
            found |= collect_functions(constant)
    return found


def find_function(module: ModuleType, name: str) -> FunctionType:
    """The function object behind a qualified name, below properties, caches and the like."""
    place: Any = module
    for part in name.split("."):
        if part not in vars(place):
            raise PatchError(f"{module.__name__}.{name} does not exist")
        place = vars(place)[part]
    for attribute in ("fget", "__func__", "func", "__wrapped__"):
        place = getattr(place, attribute, None) or place
    if not isinstance(place, FunctionType):
        raise PatchError(f"{module.__name__}.{name} is no function")
    return place


def _shape(code: CodeType, outside: bool = False) -> tuple[Any, ...]:
    """What a code object does, without its lines; `outside`: without the functions inside it."""
    constants: Sequence[Any] = [
        (OUTSIDE if outside and constant.co_flags & inspect.CO_OPTIMIZED else _shape(constant, outside))
        if isinstance(constant, CodeType)
        else (type(constant), constant)
        for constant in code.co_consts
    ]
    return code.co_code, code.co_names, code.co_varnames, code.co_freevars, tuple(constants)
