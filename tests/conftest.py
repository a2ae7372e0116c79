"""Settings of every test process."""

import gc
from pathlib import Path

import pytest

ROOT = Path(__file__).parent
FOLDERS = (
    *("pipeline", "figures", "protocols", "kernel", "workloads"),
    *("live", "lab", "services", "testing", "docs", "cli", "external", "mutation", "parts", "simulation"),
    *("conformance", "mutants", "check", "storage", "coverage", "tidy", "trace", "transcripts"),
)
"""The order of tests. Workers begin with equal shares of it and take from the ends of others when they have no more.
One line is about one of three shares: the first needs Spark, the second mostly waits, the third mostly computes."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Lets three workers on two cores wait and compute at the same time, and only one of them start Spark."""
    places = {name: place for place, name in enumerate(FOLDERS)}
    items.sort(key=lambda item: places.get(item.path.relative_to(ROOT).parts[0], len(places)))


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes garbage collections rare and short: thousands of tests and modules live to the end, and simulations make
    many objects that reference counting frees."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
