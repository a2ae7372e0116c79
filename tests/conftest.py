"""Settings of every test process."""

import gc

import pytest


def pytest_collection_finish(session: pytest.Session) -> None:
    """Makes garbage collections rare and short: thousands of tests and modules live to the end, and simulations make
    many objects that reference counting frees."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
