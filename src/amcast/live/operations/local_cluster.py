"""A local cluster of real operating-system processes: start, wait until ready, stop, kill.

    with LocalCluster(cluster, command) as running:
        running.kill("orders/1")            # SIGKILL
        running.start("orders/1")

`command` starts one node; the cluster.toml and the name of the node are appended to it.
"""

import asyncio
import fcntl
import os
import platform
import random
import select
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import TracebackType
from typing import Any, Final

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.live.config.cluster import Cluster, format_toml, read_cluster
from amcast.live.private_files import open_private
from amcast.live.rpc.client import RpcClient
from amcast.live.server.node import READY, WAITING
from amcast.trace.recorder import Recorder

FIRST_PORT: Final = 20_000
LAST_PORT: Final = 32_000
"""Below the ephemeral ports of the system, which could otherwise take the port of a stopped node."""

SETTLE_POLL_S: Final = 0.2


def find_free_ports(count: int, host: str = "127.0.0.1") -> list[int]:
    """Ports without a listener, which no other process gets from here while this one lives: not even the port of a node
    that is down for a moment."""
    rng = random.Random()
    ports: list[int] = []
    tried = 0
    while len(ports) < count:
        tried += 1
        if tried > 1000 + 10 * count:
            raise UsageError(f"no {count} free ports between {FIRST_PORT} and {LAST_PORT}")
        port = rng.randint(FIRST_PORT, LAST_PORT)
        with socket.socket() as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind((host, port))
            except OSError:
                continue
        if port not in ports and _reserve(port):
            ports.append(port)
    return ports


@cache
def _open_reservations() -> int:
    """Opens the file whose byte n is locked by whoever uses port n; one for each user of the machine."""
    path = Path(tempfile.gettempdir()) / f"amcast-ports-{os.getuid()}"
    return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)


def _reserve(port: int) -> bool:
    """Reserves a port against other processes, until this one ends."""
    reservations = _open_reservations()
    try:
        fcntl.lockf(reservations, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, port)
    except BlockingIOError:
        return False
    return True


def format_local_config(groups: Mapping[str, int], **fields: Any) -> str:
    """Formats a cluster.toml on loopback: group name -> number of replicas, and any other fields."""
    ports = iter(find_free_ports(sum(groups.values())))
    tables = {name: {"replicas": [f"127.0.0.1:{next(ports)}" for _ in range(n)]} for name, n in groups.items()}
    return format_toml({"name": "local", "security": {"mode": "plain"}, **fields, "groups": tables})


class LocalCluster:
    """Runs the nodes of one cluster as child processes."""

    def __init__(
        self,
        cluster: Cluster,
        command: Sequence[str],
        logs: Path | None = None,
        prefix: Callable[[ProcessId], Sequence[str]] = lambda process: (),
    ) -> None:
        """`prefix` is put before the command of a node, such as one that runs it in a network namespace."""
        self.cluster = cluster
        self._prefix = prefix
        self.logs = logs or cluster.data / "logs"
        self._command = list(command)
        self._children: dict[str, subprocess.Popen[str]] = {}
        self.waiting: dict[str, str] = {}
        """Nodes that were started and do not take part yet, and why."""
        self._died: dict[str, tuple[ProcessId, GroupId | None, str, int]] = {}
        """Nodes that were killed or died: process, group, region, and time."""

    def __enter__(self) -> "LocalCluster":
        try:
            self.start(*self.cluster.nodes())
        except BaseException:
            self.kill(*self._children)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop(*self._children)

    def start(self, *nodes: str, ready_s: float = 60.0) -> None:
        """Starts some nodes and waits until each prints that it is ready, or that it waits and why (`waiting`)."""
        for folder in (self.cluster.data, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        for node in nodes:
            process = self.cluster.process_of(node)
            if node in self._children:
                raise UsageError(f"node {node} is running already")
            self._died.pop(node, None)
            self.waiting.pop(node, None)
            with os.fdopen(open_private(self._log(node)), "a") as log:
                command = [*self._prefix(process), *self._command, str(self.cluster.file), node]
                self._children[node] = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
        deadline = time.monotonic() + ready_s
        for node in nodes:
            self._await_ready(node, deadline)

    def follow(self, file: Path) -> None:
        """Uses another cluster.toml for nodes that are started from now on."""
        self.cluster = read_cluster(file)

    def is_running(self, node: str) -> bool:
        """Whether a node was started, and neither stopped nor reported as exited since."""
        return node in self._children

    def pid(self, node: str) -> int:
        """The operating-system process id of a node."""
        return self._children[node].pid

    def cpu_s(self, node: str) -> float:
        """CPU seconds used by a node, user and system, in nanosecond precision where the system counts that way."""
        try:
            return sum(int(file.read_text().split()[0]) for file in self._tasks(node)) / 1e9
        except (OSError, ValueError):
            pass
        fields = Path(f"/proc/{self.pid(node)}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def _tasks(self, node: str) -> list[Path]:
        files = list(Path(f"/proc/{self.pid(node)}/task").glob("*/schedstat"))
        if not files:
            raise OSError("the system has no schedstat")
        return files

    def signal(self, node: str, number: signal.Signals) -> None:
        """Sends a signal such as SIGSTOP or SIGCONT."""
        self._children[node].send_signal(number)

    def kill(self, *nodes: str) -> None:
        """Kills nodes with SIGKILL."""
        for node in list(nodes):
            self._children[node].kill()
        for node in list(nodes):
            self._record_death(node)
            self._reap(node, 10.0)

    def _record_death(self, node: str) -> None:
        process, topology = self.cluster.process_of(node), self.cluster.topology
        self._died[node] = (process, topology.group_of(process), topology.region(process), time.time_ns())

    def check(self) -> None:
        """Raises an error if a node exited by itself."""
        for node, child in self._children.items():
            if child.poll() is not None:
                raise CannotTellError(f"node {node} exited with code {child.returncode}: {self.last_log_line(node)}")

    def take_exited(self) -> dict[str, int]:
        """Removes nodes that exited by themselves; returns their exit codes."""
        codes = {node: code for node, child in self._children.items() if (code := child.poll()) is not None}
        return {node: self.wait_for_exit(node, 0.0) for node in codes}

    def wait_for_exit(self, node: str, timeout_s: float) -> int:
        """Waits until a node exits by itself; returns its exit code."""
        try:
            code = self._children[node].wait(timeout_s)
        except subprocess.TimeoutExpired:
            raise CannotTellError(f"node {node} is still running after {timeout_s} s") from None
        if code:
            self._record_death(node)
        self._reap(node, 0.0)
        return code

    def record_dead(self, recorder: Recorder) -> None:
        """Records the facts of nodes that died and were not restarted, which they cannot record themselves."""
        for process, group, region, died_ns in self._died.values():
            recorder.record_process(process, group, region, died_ns, platform.node())

    def stop(self, *nodes: str, timeout_s: float = 10.0) -> None:
        """Stops nodes gracefully; a node that exits with an error is reported with the end of its log."""
        stopping = list(nodes)
        for node in stopping:
            self._children[node].send_signal(signal.SIGCONT)
            self._children[node].terminate()
        failed = {node: code for node in stopping if (code := self._reap(node, timeout_s)) != 0}
        if failed:
            raise CannotTellError(
                "; ".join(
                    f"node {node} exited with code {code}: {self.last_log_line(node)}" for node, code in failed.items()
                )
            )

    def wait_until_settled(self, timeout_s: float = 60.0) -> None:
        """Waits until the running nodes have caught up and the members of each group are at the same position.

        Without new multicasts this means that every message is delivered everywhere.
        """
        if self._children:
            asyncio.run(self._settle(timeout_s))

    async def _settle(self, timeout_s: float) -> None:
        cluster = self.cluster
        running = {cluster.process_of(node): node for node in self._children}
        transport = cluster.node_transport(next(iter(running.values())))
        rpc = RpcClient(cluster.name, cluster.addresses, cluster.limits, transport)
        deadline = time.monotonic() + timeout_s
        before: dict[ProcessId, int] = {}
        while True:
            progress = await rpc.fetch_progress(running)
            now = {process: one.next for process, one in progress.items()}
            is_level = all(
                len({now[member] for member in cluster.topology.members(group) if member in now}) <= 1
                for group in cluster.topology.groups
            )
            if (
                is_level
                and now == before
                and len(now) == len(running)
                and all(one.caught_up for one in progress.values())
            ):
                return
            if time.monotonic() > deadline:
                positions = ", ".join(f"{node} at {now.get(process, 'no answer')}" for process, node in running.items())
                state = "still delivering" if now != before else "idle"
                raise CannotTellError(
                    f"the nodes are not at the same position after {timeout_s} s, and {state}: {positions}"
                )
            before = now
            await asyncio.sleep(SETTLE_POLL_S)

    def last_log_line(self, node: str) -> str:
        """The last line that a node logged."""
        lines = self._log(node).read_text().strip().splitlines()
        return lines[-1] if lines else f"it logged nothing ({self._log(node)})"

    def _log(self, node: str) -> Path:
        return self.logs / f"{node.replace('/', '-')}.log"

    def _reap(self, node: str, timeout_s: float) -> int:
        child = self._children.pop(node)
        try:
            code = child.wait(timeout_s)
        except subprocess.TimeoutExpired:
            child.kill()
            code = child.wait()
        if child.stdout is not None:
            child.stdout.close()
        return code

    def _await_ready(self, node: str, deadline: float) -> None:
        out = self._children[node].stdout
        assert out is not None
        while True:
            ready, _, _ = select.select([out], [], [], max(0.0, deadline - time.monotonic()))
            line = out.readline() if ready else ""
            if line.strip() == READY:
                return
            if line.startswith(WAITING):
                self.waiting[node] = line.removeprefix(WAITING).strip(" :\n")
                return
            if not line:
                self._children[node].kill()
                self._record_death(node)
                code = self._reap(node, 10.0)
                raise CannotTellError(
                    f"node {node} did not become ready (exit code {code}): {self.last_log_line(node)}"
                )
