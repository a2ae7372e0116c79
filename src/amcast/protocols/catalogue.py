"""Every protocol by its name. A protocol is imported when it is first looked up: most programs run one."""

from collections.abc import Iterator, Mapping
from typing import Final

from amcast.kernel.errors import UsageError
from amcast.kernel.spec import Spec

NAMES: Final = (
    "skeen", "basecast", "fastcast", "multipaxos", "primcast", "primcast-hc", "whitebox", "a-ge", "a-ge-star", "a-ng",
    "a-dt", "flexcast", "treecast", "ring",
)  # fmt: skip


def _load(name: str) -> Spec:
    match name:
        case "skeen":
            from amcast.protocols.skeen import process as skeen

            return skeen.SPEC
        case "basecast":
            from amcast.protocols.basecast import process as basecast

            return basecast.SPEC
        case "fastcast":
            from amcast.protocols.fastcast import process as fastcast

            return fastcast.SPEC
        case "multipaxos":
            from amcast.protocols.multipaxos import process as multipaxos

            return multipaxos.SPEC
        case "primcast" | "primcast-hc":
            from amcast.protocols.primcast import process as primcast

            return primcast.SPEC if name == "primcast" else primcast.HYBRID
        case "whitebox":
            from amcast.protocols.whitebox import process as whitebox

            return whitebox.SPEC
        case "a-ge" | "a-ge-star":
            from amcast.protocols.a_ge import process as a_ge

            return a_ge.SPEC if name == "a-ge" else a_ge.STAR
        case "a-ng":
            from amcast.protocols.rounds import a_ng

            return a_ng.SPEC
        case "a-dt":
            from amcast.protocols.rounds import a_dt

            return a_dt.SPEC
        case "flexcast":
            from amcast.protocols.flexcast import process as flexcast

            return flexcast.SPEC
        case "treecast":
            from amcast.protocols.treecast import process as treecast

            return treecast.SPEC
        case "ring":
            from amcast.protocols.ring import process as ring

            return ring.SPEC
        case _:
            raise KeyError(name)


class _Catalogue(Mapping[str, Spec]):
    def __getitem__(self, name: str) -> Spec:
        return _load(name)

    def __iter__(self) -> Iterator[str]:
        return iter(NAMES)

    def __len__(self) -> int:
        return len(NAMES)


CATALOGUE: Final[Mapping[str, Spec]] = _Catalogue()


def get_protocol(name: str) -> Spec:
    """The protocol of this name; an error lists the names that exist."""
    if name not in CATALOGUE:
        raise UsageError(f"protocol {name!r} does not exist; expected one of: {', '.join(CATALOGUE)}")
    return CATALOGUE[name]
