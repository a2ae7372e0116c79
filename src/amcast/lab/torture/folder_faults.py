"""Faults of disks and of operators who handle data folders: rot, power cuts, older copies, emptied folders, full and
slow disks."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from amcast.kernel.errors import CannotTellError
from amcast.lab.torture.faults import Blow, Stage
from amcast.lab.torture.ledger import disk_control_file
from amcast.lab.torture.target import TorturedCluster
from amcast.live.operations.cluster_status import fetch_statuses
from amcast.live.torture.folders import Rot, choose_rot, copy_folder, put_back, tear_log

NOBODY: Final = Blow("nobody is left", lambda: None, Stage.LINKS)
COPIES: Final = "copies"
"""The folder of copies of data folders, beside cluster.toml."""
FULL_BYTES: Final = 50_000
FULL_S: Final = 15.0
"""A node that writes to a full disk stops within this time."""
SLOW_S: Final = (0.002, 0.05)


class FolderFaults:
    """Damages data folders and disks, and heals them."""

    def __init__(self, target: TorturedCluster) -> None:
        self._target = target
        self._rng = target.rng

    # Power cuts

    def tear(self) -> Blow:
        """Kills nodes and leaves a torn commit behind each log. They must start again without an operator."""
        target = self._target
        nodes = target.choose_nodes(target.draw_count())
        target.running.kill(*nodes)
        sectors = [tear_log(target.data_folder(node), self._rng) for node in nodes]
        detail = ", ".join(f"{node} ({count} sectors)" for node, count in zip(nodes, sectors, strict=True))
        return Blow(detail or NOBODY.detail, lambda: self._restart_torn(nodes), Stage.NODES)

    def _restart_torn(self, nodes: Sequence[str]) -> None:
        target = self._target
        target.start(nodes)
        for node in nodes:
            if "doubtful" in (why := target.running.waiting.get(node, "")):
                target.violations.append(f"node {node} doubts a log with nothing but a torn tail: {why}")

    # Rot

    def rot(self) -> Blow:
        """Damages the log of one node, or of a majority of a group."""
        target = self._target
        if not target.spoilt and not target.impaired and self._rng.random() < 1 / 3:
            return self._rot_majority()
        node = target.choose_folder()
        if node is None:
            return NOBODY
        target.running.kill(node)
        rot = choose_rot(target.data_folder(node), self._rng)
        rot.flip()
        return Blow(f"{node}, {rot}", lambda: self._restart_rotten(node, rot), Stage.FOLDERS)

    def _restart_rotten(self, node: str, rot: Rot) -> None:
        """The group gives the node its state again; the damaged files are put aside."""
        self._target.start([node])
        self._target.require_ready([node], f"after its start with rot ({rot})")
        is_log = rot.file.suffix == ".log"
        if is_log and not list(rot.file.parent.glob("*.log.damaged-*")):
            self._target.violations.append(f"node {node} has not noticed rot ({rot})")

    def _rot_majority(self) -> Blow:
        target = self._target
        group = self._rng.choice(target.cluster.topology.groups)
        nodes = target.choose_nodes(target.cluster.topology.quorum(group), target.members(group))
        target.spoilt.add(group)
        target.running.kill(*nodes)
        damage = {}
        for node in nodes:
            damage[node] = self._choose_log_rot(target.data_folder(node))
            damage[node].flip()
        return Blow(f"a majority: {', '.join(nodes)}", lambda: self._repair_majority(damage), Stage.FOLDERS)

    def _choose_log_rot(self, folder: Path) -> Rot:
        while True:
            rot = choose_rot(folder, self._rng)
            if rot.file.parent == folder and rot.file.suffix == ".log":
                return rot

    def _repair_majority(self, damage: dict[str, Rot]) -> None:
        """Too few members are left that could tell what was decided: the nodes must say so and wait. The disks are
        repaired, and an operator lets the nodes use their records."""
        target, nodes = self._target, list(damage)
        target.start(nodes)
        answers = fetch_statuses(target.cluster, None)
        for node in nodes:
            status = answers[node]
            admission = status.get("protocol_status", {}).get("admission", status.get("error"))
            if admission != "doubtful" or not any("--accept-loss" in line for line in status["advice"]):
                target.violations.append(
                    f"a majority of its group has damaged logs, and node {node} does not wait and say so:"
                    f" {admission}, {status.get('not_ready_reasons')}, {status.get('advice')}"
                )
        target.stop(nodes)
        for node, rot in damage.items():
            rot.flip()
            self._require_command("replace", "--config", str(target.cluster.file), "--node", node, "--accept-loss")
        target.start(nodes)
        target.require_ready(nodes, "after an operator accepted their records")

    def _require_command(self, *arguments: str) -> None:
        code, text = self._target.command(*arguments)
        if code != 0:
            self._target.violations.append(f"amcast {' '.join(arguments)}: exit code {code}: {text}")

    # Older copies and emptied folders

    def roll_back(self) -> Blow:
        """Copies a folder, lets the node run on with it, and puts the copy back."""
        target = self._target
        node = target.choose_folder()
        if node is None:
            return NOBODY
        copy = target.folder / COPIES / node.replace("/", "-")
        target.running.kill(node)
        copy_folder(target.data_folder(node), copy)
        target.start([node])
        return Blow(node, lambda: self._put_back(node, copy), Stage.FOLDERS)

    def _put_back(self, node: str, copy: Path) -> None:
        target = self._target
        target.running.kill(node)
        folder = target.data_folder(node)
        put_back(copy, folder)
        before = set(folder.glob("*.log.damaged-*"))
        target.start([node])
        target.require_ready([node], "after its start with an older copy of its folder")
        if set(folder.glob("*.log.damaged-*")) == before:
            target.violations.append(f"node {node} has not noticed that its folder is an older copy")

    def empty(self) -> Blow:
        """Removes a folder. The node is refused when it starts, and admitted after `amcast replace`."""
        target = self._target
        node = target.choose_folder()
        if node is None:
            return NOBODY
        target.running.kill(node)
        shutil.rmtree(target.data_folder(node))
        return Blow(node, lambda: self._replace(node), Stage.FOLDERS)

    def _replace(self, node: str) -> None:
        target = self._target
        target.start([node])
        why = target.running.waiting.get(node, "")
        if "remembers data folder" not in why:
            target.violations.append(
                f"node {node} was started with an emptied folder and not refused: {why or 'ready'}"
            )
        target.stop([node])
        self._require_command("replace", "--config", str(target.cluster.file), "--node", node)
        target.start([node])
        target.require_ready([node], "after its replacement")

    # Full and slow disks

    def fill(self) -> Blow:
        """Fills the disk of a running node: it stops before it acknowledges what it cannot write."""
        nodes = self._target.choose_nodes(1)
        if not nodes:
            return NOBODY
        left = self._rng.randrange(FULL_BYTES)
        self._control(nodes, f"full {left}")
        return Blow(f"{nodes[0]}, after {left} bytes", lambda: self._make_space(nodes[0]), Stage.NODES)

    def _make_space(self, node: str) -> None:
        running = self._target.running
        try:
            code = running.wait_for_exit(node, FULL_S)
        except CannotTellError:
            self._control([node], "")  # it had nothing to write
            return
        why = running.last_log_line(node)
        if code != 1 or "No space left on device" not in why:
            self._target.violations.append(f"node {node} with a full disk exited with code {code}: {why}")
        self._control([node], "")
        self._target.start([node])
        self._target.require_ready([node], "after its disk has space again")

    def slow(self) -> Blow:
        """Makes disks slow."""
        nodes = self._target.choose_nodes(self._target.draw_count())
        delay_s = self._rng.uniform(*SLOW_S)
        self._control(nodes, f"slow {delay_s:.4f}")
        detail = f"{', '.join(nodes)}, {1000 * delay_s:.0f} ms"
        return Blow(detail, lambda: self._control(nodes, ""), Stage.LINKS)

    def _control(self, nodes: Sequence[str], text: str) -> None:
        for node in nodes:
            file = disk_control_file(self._target.folder, node)
            file.parent.mkdir(exist_ok=True)
            # In one step: the node must not read half of it.
            temporary = file.with_suffix(".new")
            temporary.write_text(text)
            temporary.replace(file)
