"""Finds the services and functions that a command line names: `bank:Bank`, `shop.money.bank:Bank`."""

import importlib
import sys
from pathlib import Path
from typing import Any

from amcast.kernel.errors import UsageError
from amcast.services.declaration import Description, describe_service


def load_name(reference: str, option: str) -> Any:
    """The object that MODULE:NAME names; modules are also searched in the current folder."""
    module, _, name = reference.partition(":")
    if not module or not name:
        raise UsageError(f"{option} = {reference!r}; expected MODULE:NAME, such as bank:Bank")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        loaded = importlib.import_module(module)
    except ImportError as error:
        raise UsageError(
            f"{option} = {reference!r}: module {module} cannot be imported ({error}); expected a module in this folder"
            f" or one that is installed"
        ) from None
    if not hasattr(loaded, name):
        raise UsageError(f"{option} = {reference!r}: {module} has no {name}; expected a name that it defines")
    return getattr(loaded, name)


def load_service(reference: str) -> Description:
    """The service that MODULE:CLASS names."""
    return describe_service(load_name(reference, "service"))
