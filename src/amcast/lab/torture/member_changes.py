"""Changes of members during a torture, by the commands of operators, while other faults strike."""

import threading
import time
import tomllib
from typing import Final

from amcast.kernel.errors import CannotTellError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.lab.torture.faults import Blow, Stage
from amcast.lab.torture.target import COMMAND_S, TorturedCluster
from amcast.live.config.cluster import format_toml
from amcast.live.torture.cuts import NodeAddress
from amcast.storage.client_ids import STRIDE

CHANGE_S: Final = 30
"""How long one change may take before its command gives up."""
LEAVE_S: Final = 90.0
"""Within this time a removed node exits by itself."""
FOLLOW_S: Final = 60.0


class MemberChanges:
    """Adds and removes members; a group has at most one more than it began with."""

    def __init__(self, target: TorturedCluster) -> None:
        self._target = target
        self._rng = target.rng
        self._listens: dict[str, str] = {}
        """Where added nodes listen, if that is not their address."""
        self._places: dict[ProcessId, NodeAddress] = {}
        """The places of added nodes; one whose change was not done leaves its place to the next."""
        self._own: set[str] = set()
        """Nodes that the change of this round kills or adds."""
        self._numbers = {
            group: max(int(node.rpartition("/")[2]) for node in target.members(group))
            for group in target.cluster.topology.groups
        }
        """By group: the highest number that a node ever had."""

    def strike(self) -> Blow:
        """Begins a change, which goes on while other faults strike."""
        target = self._target
        group = self._rng.choice(target.cluster.topology.groups)
        self._own.clear()
        steps: list[tuple[str, str]] = []
        words: list[str] = []
        if len(target.members(group)) <= target.replicas:
            if target.cluster.topology.next_process >= STRIDE:
                return Blow("no more client ids for new members", lambda: None, Stage.LINKS)
            node, address = self._prepare(group)
            steps.append(("--add", f"{node}={address}"))
            words.append(f"add {node}")
        if not steps or self._rng.random() < 0.5:
            victims = target.choose_nodes(1, target.members(group))
            if victims and self._rng.random() < 0.4:
                target.running.kill(*victims)
                self._own.update(victims)
                words.append("kill " + victims[0])
            steps += [("--remove", victim) for victim in victims]
            words += [f"remove {victim}" for victim in victims]
        changing = threading.Thread(target=self._change, args=(steps,), name="change of members")
        changing.start()
        return Blow(", ".join(words) or "nobody is left", lambda: self._finish(changing), Stage.MEMBERS)

    def _prepare(self, group: GroupId) -> tuple[str, str]:
        """The name and address of a new node."""
        target = self._target
        self._numbers[group] += 1
        node = f"{target.cluster.topology.names[group]}/{self._numbers[group]}"
        self._own.add(node)
        process = target.cluster.topology.next_process
        if process not in self._places:
            self._places[process] = target.network.add_node(process)
        place = self._places[process].describe()
        if "listen" in place:
            self._listens[node] = place["listen"]
        return node, place["address"]

    def _change(self, steps: list[tuple[str, str]]) -> None:
        """Makes one change after the other, until one is not done. Nodes are started with the next file."""
        target = self._target
        for option, value in steps:
            file = str(target.cluster.file)
            code, text = target.command("change", "--config", file, option, value, "--timeout", str(CHANGE_S))
            if code != 0:
                target.say(f"amcast change {option} {value}: exit code {code}: {text}")
                if code not in (1, 2, 64):
                    target.violations.append(f"amcast change {option} {value}: exit code {code}: {text}")
                return
            self._follow()

    def _follow(self) -> None:
        """Uses the next file, starts nodes that were added, and knows those that were removed."""
        target = self._target
        before = {node: target.group_of(node) for node in target.cluster.nodes()}
        file = target.cluster.file
        values = tomllib.loads(file.read_text())
        for table in values["groups"].values():
            for replica in table["replicas"]:
                if replica["name"] in self._listens:
                    replica["listen"] = self._listens[replica["name"]]
        file.write_text(format_toml(values))
        target.running.follow(file)
        after = target.cluster.nodes()
        for node, group in before.items():
            if node not in after:
                target.removed.add(node)
                target.former.setdefault(group, set()).add(node)
        target.start([node for node in after if node not in before])

    def _finish(self, changing: threading.Thread) -> None:
        """Waits for the change, and finds out what became of it where its command could not tell."""
        target = self._target
        changing.join(3 * COMMAND_S)
        if changing.is_alive():
            target.violations.append("a change of members did not end")
            return
        deadline = time.monotonic() + FOLLOW_S
        while (done := target.command("change", "--config", str(target.cluster.file), "--follow"))[0] != 0:
            if time.monotonic() > deadline:
                target.violations.append(f"amcast change --follow: exit code {done[0]}: {done[1]}")
                return
        self._follow()
        down = [node for node in target.cluster.nodes() if not target.running.is_running(node)]
        target.start([node for node in down if node in self._own])

    def await_leavers(self) -> None:
        """Waits until all removed nodes have exited by themselves."""
        target = self._target
        for node in sorted(target.removed):
            if not target.running.is_running(node):
                continue
            try:
                code = target.running.wait_for_exit(node, LEAVE_S)
            except CannotTellError:
                target.violations.append(f"node {node} was removed and still runs after {LEAVE_S:.0f} s")
                continue
            if code != 0:
                why = target.running.last_log_line(node)
                target.violations.append(f"node {node} was removed and exited with code {code}: {why}")
