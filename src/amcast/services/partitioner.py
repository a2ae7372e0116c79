"""Who owns a key: the partitioner of a cluster.

By default it is a hash of the key over the groups (`Service.partition`). A class may place its keys itself, or
cluster.toml may name a function for all services of the cluster:

    partitioner = "placement:by_region"

    def by_region(key: str, groups: Sequence[str]) -> str:
        return key.partition(":")[0]

Nodes and callers must place keys alike: a caller that places a key elsewhere would ask the wrong group. So the name of
the function, and where it places some keys among the groups of the cluster, are part of the digest of the service.
Nodes compare it when they meet, and replicas compare it with that of each call.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.services.declaration import SAMPLE_KEYS, Description, Service
from amcast.services.loader import load_name

HASH: Final = "hash"
"""The partitioner of a cluster that names none."""


def apply_partitioner(description: Description, reference: str, groups: Sequence[str]) -> Description:
    """The service as it is in a cluster of these groups whose cluster.toml names a partitioner."""
    if reference == description.partitioner:
        return description
    name = description.name
    own: Any = description.service.partition
    if own.__func__ is not Service.partition.__func__:  # type: ignore[attr-defined]
        raise UsageError(
            f"partitioner = {reference!r}: {name} places its keys itself; expected {HASH!r} in cluster.toml, or a class"
            f" without `partition`"
        )
    function: Callable[[str, Sequence[str]], str] = load_name(reference, "partitioner")
    if not callable(function):
        raise UsageError(f"partitioner = {reference!r}; expected a function (key, groups) that returns a group")
    placed = [_describe_place(function, key, groups) for key in SAMPLE_KEYS]
    text = "\n".join([description.digest, reference, *groups, *placed])
    digest = blake2b(text.encode(), digest_size=8).hexdigest()
    return replace(description, digest=digest, partition=function, partitioner=reference)


def _describe_place(function: Callable[[str, Sequence[str]], str], key: str, groups: Sequence[str]) -> str:
    try:
        return str(function(key, groups))
    except Exception as error:  # it may refuse keys that are none of its own
        return type(error).__name__
