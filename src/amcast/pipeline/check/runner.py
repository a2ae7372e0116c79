"""Runners: who makes the calls of one step of an examination, which are independent of each other."""

from collections.abc import Callable
from typing import Any

Call = tuple[Callable[..., Any], tuple[Any, ...]]
Runner = Callable[[list[Call]], list[Any]]
"""Makes some calls, in any order or in parallel, and returns their answers in the order of the calls."""


def run_sequentially(calls: list[Call]) -> list[Any]:
    """Makes the calls one after the other, in this process: the runner of a small run."""
    return [function(*arguments) for function, arguments in calls]
