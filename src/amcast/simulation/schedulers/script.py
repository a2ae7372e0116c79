"""A script file: one run, action by action, as JSON lines that people can read, edit and share.

    {"script": 1, "protocol": "skeen", "topology": {...}, "links": "reordering", "status": "violated", "story": "..."}
    {"do": "multicast", "sender": 2, "message": 2000000000, "destinations": [0, 1]}
    {"do": "arrive", "target": 0, "packets": [[2, 0]]}

The first line says what runs and which result is expected; each further line is one action
(`simulation/world/actions.py`). Empty lines are allowed.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec

from amcast.kernel.config import describe_error
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import GroupId, ProcessId
from amcast.kernel.spec import Links
from amcast.kernel.topology import Topology
from amcast.simulation.schedulers.fuzz import Status
from amcast.simulation.schedulers.pending_actions import TICK_NS
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    BeginRead,
    Block,
    Change,
    Collect,
    Crash,
    Differ,
    DiskFault,
    Drop,
    ExpectRefusal,
    Fire,
    Heal,
    Leave,
    Multicast,
    Pause,
    Recover,
    Renew,
    Repeat,
    Restore,
    Resume,
    Skew,
    Slow,
    Suggest,
    Suspicion,
    Sync,
    Unreachable,
    encode_actions,
    parse_action,
)

FORMAT: Final = 1
MAX_LINES: Final = 10_000_000


class ScriptHeader(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a script."""

    script: int
    """The version of the format."""
    protocol: str
    topology: dict[str, Any]
    options: dict[str, Any] = {}
    """The protocol's options."""
    plan: dict[str, Any] = {}
    """The plan of the run, from which the same processes are built."""
    links: Links = "fifo"
    tick_ns: int = TICK_NS
    """How long each action takes; 0 in scripts of an exhaustive search."""
    seed: int | None = None
    """The seed of the run, if it was fuzzed."""
    status: Status = "holds"
    """The expected result."""
    story: str = ""
    absent: tuple[ProcessId, ...] = ()
    """Processes that are no members at first, and may join."""
    operator: ProcessId | None = None
    """The client that requests changes of members."""
    storage: int = 0
    """The segment size of the logs in which servers keep their records; 0: in lists."""


@dataclass(frozen=True)
class Script:
    """A run to replay."""

    protocol: str
    topology: Topology
    actions: Sequence[AnyAction]
    options: dict[str, Any] = field(default_factory=dict)
    plan: dict[str, Any] = field(default_factory=dict)
    links: Links = "fifo"
    tick_ns: int = TICK_NS
    seed: int | None = None
    status: Status = "holds"
    story: str = ""
    absent: tuple[ProcessId, ...] = ()
    operator: ProcessId | None = None
    storage: int = 0
    lines: Sequence[int] = ()
    """The line of each action in its file; empty if the script was not read from one."""

    def make_header(self) -> ScriptHeader:
        return ScriptHeader(
            script=FORMAT,
            protocol=self.protocol,
            topology=self.topology.describe(),
            options=self.options,
            plan=self.plan,
            links=self.links,
            tick_ns=self.tick_ns,
            seed=self.seed,
            status=self.status,
            story=self.story,
            absent=self.absent,
            operator=self.operator,
            storage=self.storage,
        )

    def encode(self) -> str:
        return msgspec.json.encode(self.make_header()).decode() + "\n" + encode_actions(self.actions)

    def write(self, file: Path | str) -> None:
        """Writes the file, whole or not at all. A device, such as /dev/null, is written and never replaced."""
        file = Path(file)
        if file.exists() and not file.is_file():
            file.write_text(self.encode(), encoding="utf-8")
            return
        partial = file.with_name(f".{file.name}")
        partial.write_text(self.encode(), encoding="utf-8")
        partial.replace(file)

    def locate(self, place: int) -> str:
        """Names an action in an error."""
        return f"line {self.lines[place]}" if self.lines else f"action {place + 1}"


def read_script(file: Path | str) -> Script:
    """Reads a script file; errors name file, line and field."""
    file = Path(file)
    if not file.is_file():
        raise UsageError(f"{file}: no such file; expected a script")
    try:
        text = file.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise UsageError(f"{file}: not text ({error.reason} at byte {error.start}); expected JSON lines") from None
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    if not lines:
        raise UsageError(f"{file}: empty; expected a header line and actions")
    if len(lines) > MAX_LINES:
        raise UsageError(f"{file}: {len(lines)} lines; expected at most {MAX_LINES}")
    where = f"{file}, line {lines[0][0]}"
    header = _header(lines[0][1], where)
    topology = Topology.from_dict(header.topology, f"{where}: topology")
    actions = []
    for number, line in lines[1:]:
        action = parse_action(line, f"{file}, line {number}")
        check_action(action, topology, f"{file}, line {number}")
        actions.append(action)
    return Script(
        protocol=header.protocol,
        topology=topology,
        actions=actions,
        options=header.options,
        plan=header.plan,
        links=header.links,
        tick_ns=header.tick_ns,
        seed=header.seed,
        status=header.status,
        story=header.story,
        absent=header.absent,
        operator=header.operator,
        storage=header.storage,
        lines=[number for number, _ in lines[1:]],
    )


def _header(line: str, where: str) -> ScriptHeader:
    try:
        header = msgspec.json.decode(line, type=ScriptHeader)
    except msgspec.DecodeError as error:
        raise UsageError(
            f"{where}: {describe_error(error, ScriptHeader)}; expected the header of a script of fuzz, explore or"
            " shrink (`amcast worst --schedule FILE` runs a schedule of worst)"
        ) from None
    if header.script != FORMAT:
        raise UsageError(f"{where}: script = {header.script}; expected format {FORMAT}")
    if header.tick_ns < 0:
        raise UsageError(f"{where}: tick_ns = {header.tick_ns}; expected 0 or more")
    return header


def check_action(action: AnyAction, topology: Topology, where: str) -> None:
    """Rejects an action about a process or group that does not exist."""
    match action:
        case Multicast(sender, _, destinations):
            _check_groups(destinations, topology, where)
            named: tuple[ProcessId, ...] = (sender,)
        case Arrive(target, packets):
            named = (target, *(source for source, _ in packets))
        case Drop(source, target) | Repeat(source, target) | Renew(source, target) | Unreachable(source, target):
            named = (source, target)
        case Block(pairs) | Heal(pairs):
            named = tuple(process for pair in pairs for process in pair)
        case Change(group, add, remove):
            _check_groups((group,), topology, where)
            named = tuple(process for process in (add, remove) if process is not None)
        case Suggest(process, group) | Suspicion(process, group):
            _check_groups((group,), topology, where)
            named = (process,)
        case (
            Fire(process) | Sync(process) | Crash(process) | Recover(process)
            | Pause(process) | Resume(process) | Slow(process) | Skew(process) | Leave(process) | Collect(process)
            | Restore(process) | BeginRead(process) | Differ(process) | ExpectRefusal(process)
            | DiskFault(process)
        ):  # fmt: skip
            named = (process,)
        case _:
            named = ()
    for process in named:
        if process not in topology.processes:
            raise UsageError(f"{where}: process {process} does not exist; expected one of {list(topology.processes)}")


def _check_groups(groups: tuple[GroupId, ...], topology: Topology, where: str) -> None:
    try:
        checked = topology.check_destinations(groups)
    except UsageError as error:
        raise UsageError(f"{where}: {error}") from None
    if checked != groups:
        raise UsageError(f"{where}: destinations {list(groups)}; expected sorted and without repetition")
