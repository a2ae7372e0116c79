"""The committed record of tortures: one line of JSON for each run, which `docs/evidence.md` is made of."""

from collections import Counter
from pathlib import Path

import msgspec

from amcast.check.verdict import Verdict
from amcast.lab.campaign_row import find_commit
from amcast.lab.torture.campaign import TortureResult


class TortureRecord(msgspec.Struct, frozen=True):
    """One run in the record."""

    protocol: str
    minutes: float
    """How long faults struck."""
    groups: int
    replicas: int
    seed: int
    network: str
    durability: str
    faults: dict[str, int]
    """How often each kind struck."""
    acknowledged: int
    unanswered: int
    executed: int
    observed: int
    verdict: Verdict
    commit: str
    """The commit that the run was made with; a plus sign: with changes that were not committed."""


def append_record(file: Path, result: TortureResult) -> TortureRecord:
    """Appends a run to a record; creates it if there is none."""
    plan = result.plan
    record = TortureRecord(
        protocol=plan["protocol"],
        minutes=round(result.struck_s / 60, 2),
        groups=plan["groups"],
        replicas=plan["replicas"],
        seed=plan["seed"],
        network=result.network,
        durability=plan["durability"],
        faults=dict(sorted(Counter(strike.kind for strike in result.strikes).items())),
        acknowledged=result.acknowledged,
        unanswered=result.unanswered,
        executed=result.executed,
        observed=result.observed,
        verdict=result.verdict,
        commit=find_commit(),
    )
    file.parent.mkdir(parents=True, exist_ok=True)
    with file.open("ab") as out:
        out.write(msgspec.json.encode(record) + b"\n")
    return record


def read_records(file: Path) -> list[TortureRecord]:
    """All runs of a record."""
    return [msgspec.json.decode(line, type=TortureRecord) for line in file.read_bytes().splitlines()]
