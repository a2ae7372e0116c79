"""Network namespaces: every node has an address and a network stack of its own on this machine, and links that can be
cut in one direction without any process noticing it.

    hub (the process that tortures): bridge 10.199.0.254/24
      |-- veth -- namespace of node 0: 10.199.0.1
      |-- veth -- namespace of node 1: 10.199.0.2 ...

A cut from a to b gives the neighbour b, in the namespace of a, a hardware address that nobody has: packets vanish, as
they do behind a broken switch. Nothing is reachable from outside the hub, whose namespace is anonymous. This needs root
and the command `ip`.
"""

import ctypes
import os
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from typing import Final

from amcast.kernel.errors import UsageError
from amcast.kernel.ids import ProcessId
from amcast.live.torture.cuts import NodeAddress

_CLONE_NEWNET: Final = 0x4000_0000
_NOBODY: Final = "02:00:00:00:00:01"
_PREFIX: Final = "10.199.0"
NODE_PORT: Final = 7000
MAX_NODES: Final = 250


def are_namespaces_available() -> bool:
    """Whether this process may create network namespaces."""
    if os.geteuid() != 0 or shutil.which("ip") is None:
        return False
    probe = f"amcast-probe-{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", probe], capture_output=True, check=False).returncode != 0:
        return False
    _run("netns", "del", probe)
    return True


class NodeNamespaces:
    """A namespace per node, connected by a bridge in a namespace that this process enters."""

    name = "namespaces"
    corrupts = False

    def __init__(self) -> None:
        self._names: dict[int, str] = {}
        self._cut: set[tuple[int, int]] = set()

    def __enter__(self) -> "NodeNamespaces":
        enter_new_namespace()
        _run("link", "set", "lo", "up")
        _run("link", "add", "hub", "type", "bridge")
        _run("addr", "add", f"{_PREFIX}.254/24", "dev", "hub")
        _run("link", "set", "hub", "up")
        return self

    def add_node(self, process: ProcessId) -> NodeAddress:
        """Makes the namespace of a node."""
        if not 0 <= process < MAX_NODES:
            raise UsageError(f"process {process} in a network namespace; expected 0 to {MAX_NODES - 1}")
        name = self._names[process] = f"amcast-{os.getpid()}-{process}"
        _run("netns", "add", name)
        _run("link", "add", f"node{process}", "type", "veth", "peer", "name", "eth0", "netns", name)
        _run("link", "set", f"node{process}", "master", "hub", "up")
        _run("-n", name, "addr", "add", f"{self.address(process)}/24", "dev", "eth0")
        _run("-n", name, "link", "set", "eth0", "up")
        _run("-n", name, "link", "set", "lo", "up")
        place = (self.address(process), NODE_PORT)
        return NodeAddress(place, place)

    def __exit__(self, *error: object) -> None:
        for name in self._names.values():
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)

    def address(self, number: int) -> str:
        """The address of a node."""
        return f"{_PREFIX}.{number + 1}"

    def prefix(self, number: int) -> Sequence[str]:
        """The beginning of a command that runs in the namespace of a node."""
        return ("ip", "netns", "exec", self._names[number])

    def cut(self, directions: Iterable[tuple[int, int]]) -> None:
        """Loses all packets in these directions, by source and target."""
        for source, target in directions:
            self._cut.add((source, target))
            self._neighbour(source, "replace", target, "lladdr", _NOBODY, "nud", "permanent")

    def corrupt(self, directions: Iterable[tuple[int, int]], seed: int) -> None:
        raise UsageError("--network namespaces flips no bits; expected --network proxy for the fault corrupt")

    def heal(self) -> None:
        """Ends all cuts."""
        for source, target in sorted(self._cut):
            self._neighbour(source, "del", target)
        self._cut.clear()

    def _neighbour(self, source: int, verb: str, target: int, *rest: str) -> None:
        _run("-n", self._names[source], "neigh", verb, self.address(target), "dev", "eth0", *rest)


def enter_new_namespace() -> None:
    """Moves the calling thread, and all threads and processes that it starts later, to an empty network namespace."""
    library = ctypes.CDLL(None, use_errno=True)
    if library.unshare(_CLONE_NEWNET) != 0:
        code = ctypes.get_errno()
        raise UsageError(f"no network namespace: {os.strerror(code)}; expected root, or --network proxy")


def _run(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise UsageError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")
