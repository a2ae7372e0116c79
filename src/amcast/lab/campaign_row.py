"""One seed of a campaign: a fuzzed run of a protocol under a fault class becomes one row of results.

A fault class is what `amcast fuzz --faults` takes (`none`, `all`, one kind, several joined by +), or `drawn`: each seed
draws its own subset of the claimed kinds. Everything in a row but its CPU time follows from protocol, class, seed and
the sources, which a digest names: two machines that run a seed get the same row.
"""

import subprocess
import time
from collections import Counter
from collections.abc import Iterable
from functools import cache
from hashlib import blake2b
from pathlib import Path
from typing import Any, Final

import amcast
from amcast.kernel.errors import UsageError
from amcast.kernel.spec import FAULTS
from amcast.lab.fuzz_campaign import SwarmRuns, fuzz_chunk
from amcast.lab.protocol_lookup import find_protocol
from amcast.simulation.world.actions import (
    AnyAction,
    Arrive,
    BeginRead,
    Change,
    Collect,
    Crash,
    DiskFault,
    ExpectRefusal,
    Fire,
    Heal,
    Lossy,
    Multicast,
    Recover,
    Resume,
    Slow,
    Sync,
)

DRAWN: Final = "drawn"
"""The fault class in which each seed draws its kinds of faults."""
_IRRELEVANT: Final = ("cli", "figures", "live", "pipeline")
"""Packages that no simulated run executes."""


def run_seed(item: tuple[str, str, int]) -> dict[str, Any]:
    """Runs one seed, given as (protocol, fault class, seed). The row is plain data."""
    protocol, faults, seed = item
    runs = _make_runs(protocol, faults)
    plan = runs.prepare(seed).plan
    begun = time.process_time()
    (outcome,) = fuzz_chunk(runs, range(seed, seed + 1))
    cpu_s = time.process_time() - begun
    return {
        "status": outcome.status,
        "story": outcome.story.split("\n")[0],
        "steps": outcome.steps,
        "messages": plan.messages,
        "fired": count_faults(outcome.script),
        "reached": dict(sorted(outcome.notes.items())),
        "real_log": outcome.storage > 0,
        "cpu_s": round(cpu_s, 6),
    }


@cache
def _make_runs(protocol: str, faults: str) -> SwarmRuns:
    values: dict[str, Any] = {"protocol": protocol}
    if faults != DRAWN:
        values["faults"] = {"profile": faults}
    return SwarmRuns(values, f"protocol {protocol}")


def count_faults(script: Iterable[AnyAction]) -> dict[str, int]:
    """How often each kind of fault happened in a run. What ends a fault is none, and a restart is counted as such."""
    counted = Counter(name for action in script if (name := _name_fault(action)) is not None)
    return dict(sorted(counted.items()))


def _name_fault(action: AnyAction) -> str | None:
    match action:
        case Multicast() | Arrive() | Fire() | Sync() | Resume() | Heal() | Collect() | BeginRead() | Change():
            return None
        case ExpectRefusal():
            return None
        case Slow(extra_ns=0) | Lossy(loss=0.0) | DiskFault(kind="space" | "copy"):
            return None
        case Crash(torn=torn):
            return "crash with a power cut" if torn else "crash"
        case Recover(amnesia=True):
            return "restart without records"
        case Recover(emptied=True):
            return "restart with an emptied folder"
        case Recover(rolled_back=lost):
            return "restart with an older folder" if lost else "restart"
        case DiskFault(kind=kind):
            return f"disk {kind}"
        case _:
            return type(action).__name__.lower()


def check_class(protocol: str, faults: str) -> bool:
    """Whether a protocol claims to survive a fault class; raises UsageError for one that does not exist."""
    for kind in faults.split("+"):
        if kind not in (DRAWN, "none", "all", *FAULTS) or ("+" in faults and kind not in FAULTS):
            known = ", ".join(FAULTS)
            raise UsageError(
                f"--faults {faults!r}: no kind {kind!r}; expected {DRAWN}, none, all, or kinds joined by +: {known}"
            )
    if faults == DRAWN:
        return True
    claimed = find_protocol(protocol).claims.faults
    if "amnesia" in claimed:
        claimed |= {"emptied", "rollback"}  # nodes notice such a folder
    return faults in ("none", "all") or claimed.issuperset(faults.split("+"))


def list_goals(protocol: str, faults: str) -> tuple[str, ...]:
    """The notes that a campaign of this class must have seen before its verdict counts."""
    spec = find_protocol(protocol)
    return spec.goals + (spec.recovery_goals if faults == DRAWN else ())


def digest_sources() -> str:
    """A digest of all sources that a simulated run executes: equal digests, equal rows."""
    root = Path(amcast.__file__).parent
    digest = blake2b(digest_size=8)
    for file in sorted(root.rglob("*.py")):
        path = file.relative_to(root)
        if path.parts[0] not in _IRRELEVANT:
            digest.update(f"{path.as_posix()}\n".encode() + file.read_bytes() + b"\0")
    return digest.hexdigest()


def find_commit() -> str:
    """The commit of the sources, with + if files differ from it; the version of the package outside of a repository."""
    root = Path(amcast.__file__).parent
    try:
        commit = _ask_git(root, "rev-parse", "--short=10", "HEAD")
        changed = _ask_git(root, "status", "--porcelain", "--untracked-files=no", "--", str(root))
    except (OSError, subprocess.CalledProcessError):
        return f"version {amcast.__version__}"
    return commit + ("+" if changed else "")


def _ask_git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=folder, capture_output=True, check=True, text=True)
    return done.stdout.strip()
