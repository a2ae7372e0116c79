"""Coverage by fuzzing alone: runs seeds of every protocol and lists the lines that none of them executed.

    python -m tests.coverage                      100 seeds of each protocol
    python -m tests.coverage --seeds 100..399     more seeds, added to what the file has for the same sources
    python -m tests.coverage --protocols ring

The result is docs/evidence/coverage.json. Lines that are not reached for a reason are in reasons.toml; the others are
open. Exit code 0: every line was reached or has a reason; 2: some are open; 64: wrong use.
"""

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any, Final

from amcast.kernel.errors import UsageError
from amcast.lab.campaign_row import digest_sources, find_commit
from amcast.lab.fuzz_campaign import SwarmRuns, fuzz_chunk
from amcast.lab.protocol_lookup import find_protocol
from amcast.pipeline.campaign.aggregate import format_ranges
from amcast.protocols.catalogue import NAMES
from tests.coverage.lines import LineTracer, find_lines, list_modules
from tests.coverage.reasons import find_reason, read_reasons

RESULT: Final = Path(__file__).parents[2] / "docs" / "evidence" / "coverage.json"


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.coverage", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--seeds", default="0..99", help="seeds of each protocol")
    parser.add_argument("--protocols", default=",".join(NAMES))
    parser.add_argument("--minutes", type=float, default=600.0, help="begin no seed after this time")
    parser.add_argument("--out", type=Path, default=RESULT)
    options = parser.parse_args()
    try:
        first, _, last = options.seeds.partition("..")
        seeds = range(int(first), int(last or first) + 1)
        protocols = [find_protocol(name).name for name in options.protocols.split(",")]
    except (ValueError, UsageError) as error:
        print(f"--seeds {options.seeds!r}, --protocols {options.protocols!r}: {error}", file=sys.stderr)
        return 64
    data = measure(protocols, seeds, read_known(options.out), time.monotonic() + 60 * options.minutes)
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(data, indent=1, ensure_ascii=False) + "\n")
    reasons = read_reasons()
    still_open = [line for line in data["missed"] if find_reason(reasons, *line) is None]
    missed = len(data["missed"])
    print(f"{data['reached']} of {data['lines']} statements reached, {missed} missed, {len(still_open)} of them open")
    for line in still_open:
        print("  " + "  ".join(line))
    return 2 if still_open else 0


def read_known(file: Path) -> dict[str, Any] | None:
    """The earlier result, if it is of the same sources."""
    known: dict[str, Any] | None = json.loads(file.read_text()) if file.is_file() else None
    return known if known is not None and known["source"] == digest_sources() else None


def measure(protocols: list[str], seeds: range, known: dict[str, Any] | None, until: float) -> dict[str, Any]:
    """Runs the seeds, and adds what they reached to an earlier result."""
    files = list_modules()
    lines = {str(file): find_lines(file) for file in files}
    done = {name: parse_ranges(known["seeds"].get(name, "")) for name in protocols} if known else {}
    ran: dict[str, set[int]] = {name: set() for name in protocols}
    tracer = LineTracer(files)
    if known:
        missed_before = {tuple(line) for line in known["missed"]}
        for name, own in lines.items():
            tracer.reached[name].update(*(numbers for line, numbers in own.items() if line not in missed_before))
    for seed in seeds:
        for name in protocols:
            if seed in done.get(name, ()) or time.monotonic() >= until:
                continue
            with tracer:
                fuzz_chunk(_make_runs(name), range(seed, seed + 1))
            ran[name].add(seed)
    missed = [
        list(line)
        for name in sorted(lines)
        for line, numbers in lines[name].items()
        if not numbers & tracer.reached[name]
    ]
    for name, before in known["seeds"].items() if known else ():
        ran.setdefault(name, set()).update(parse_ranges(before))
    total = sum(map(len, lines.values()))
    return {
        "commit": find_commit(),
        "source": digest_sources(),
        "seeds": {name: format_ranges(own) for name, own in sorted(ran.items())},
        "lines": total,
        "reached": total - len(missed),
        "missed": missed,
    }


_runs: dict[str, SwarmRuns] = {}


def _make_runs(name: str) -> SwarmRuns:
    return _runs.setdefault(name, SwarmRuns({"protocol": name}))


def parse_ranges(text: str) -> set[int]:
    """The inverse of `format_ranges`."""
    found: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("..")
        found.update(range(int(first), int(last or first) + 1))
    return found


if __name__ == "__main__":
    sys.exit(main())
