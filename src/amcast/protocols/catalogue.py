"""Every protocol by its name."""

from typing import Final

from amcast.kernel.errors import WrongUse
from amcast.kernel.spec import Spec
from amcast.protocols import (
    basecast,
    fastcast,
    flexcast,
    genuine,
    multipaxos,
    primcast,
    ring,
    rounds_dt,
    rounds_ng,
    skeen,
    treecast,
    whitebox,
)

CATALOGUE: Final[dict[str, Spec]] = {
    spec.name: spec
    for spec in (
        skeen.SPEC,
        basecast.SPEC,
        fastcast.SPEC,
        multipaxos.SPEC,
        primcast.SPEC,
        primcast.HYBRID,
        whitebox.SPEC,
        genuine.SPEC,
        genuine.STAR,
        rounds_ng.SPEC,
        rounds_dt.SPEC,
        flexcast.SPEC,
        treecast.SPEC,
        ring.SPEC,
    )
}


def protocol(name: str) -> Spec:
    """The protocol of this name, or a refusal that lists the names there are."""
    if name not in CATALOGUE:
        raise WrongUse(f"protocol {name!r} does not exist; expected one of: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
