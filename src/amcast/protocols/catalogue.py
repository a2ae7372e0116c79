"""Every protocol by its name."""

from typing import Final

from amcast.kernel.errors import UsageError
from amcast.kernel.spec import Spec
from amcast.protocols.a_ge import process as a_ge
from amcast.protocols.basecast import process as basecast
from amcast.protocols.fastcast import process as fastcast
from amcast.protocols.flexcast import process as flexcast
from amcast.protocols.multipaxos import process as multipaxos
from amcast.protocols.primcast import process as primcast
from amcast.protocols.ring import process as ring
from amcast.protocols.rounds import a_dt, a_ng
from amcast.protocols.skeen import process as skeen
from amcast.protocols.treecast import process as treecast
from amcast.protocols.whitebox import process as whitebox

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
        a_ge.SPEC,
        a_ge.STAR,
        a_ng.SPEC,
        a_dt.SPEC,
        flexcast.SPEC,
        treecast.SPEC,
        ring.SPEC,
    )
}


def get_protocol(name: str) -> Spec:
    """The protocol of this name; an error lists the names that exist."""
    if name not in CATALOGUE:
        raise UsageError(f"protocol {name!r} does not exist; expected one of: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
