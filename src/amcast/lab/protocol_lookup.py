"""A protocol by name: one of the catalogue, or a Spec of your own as `package.module:NAME`."""

import sys
from importlib import import_module
from pathlib import Path

from amcast.kernel.errors import UsageError
from amcast.kernel.spec import Spec
from amcast.protocols.catalogue import get_protocol


def find_protocol(name: str) -> Spec:
    """The Spec of this name. `module:NAME` is imported; `module:TABLE.key` takes it out of a dictionary."""
    if ":" not in name:
        return get_protocol(name)
    module_name, _, path = name.partition(":")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: object = import_module(module_name)
    except ImportError as error:
        raise UsageError(f"protocol {name!r}: {error}; expected module:NAME of a module that can be imported") from None
    attribute, _, key = path.partition(".")
    found = getattr(found, attribute, None)
    if key and isinstance(found, dict):
        found = found.get(key)
    if not isinstance(found, Spec):
        raise UsageError(f"protocol {name!r}: {path!r} is {type(found).__name__}; expected a Spec")
    return found
