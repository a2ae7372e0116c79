"""The search for faults of judges: random traces and histories, whose answers follow from the definitions by force.

A seed makes a small trace as some writer might have left it (`tests/pipeline/check/trace_generator.py`), a trace of
messages between neighbours, whose orders close long cycles, and small histories of calls
(`tests/check/histories/random_histories.py`). The checkers judge them, and so does the brute force, which has nothing
in common with them. They must agree on verdicts, on how much was judged, and on the length of a story's cycle.
"""

import argparse
import json
import shutil
import tempfile
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from amcast.check import judge
from amcast.check.incremental import check_chains
from amcast.kernel.errors import UsageError
from amcast.trace.run import read_run
from tests.check.histories.random_histories import find_difference
from tests.check.oracle import Oracle
from tests.mutants.planted import Trace
from tests.pipeline.check.brute_force import BruteForce, RefusedError, find_shortest_cycle
from tests.pipeline.check.trace_generator import TIMED, WrittenTrace, make_trace, strip_omitted

REFUSED = "refused"
COUNTED = ("messages", "blocked", "answers", "deliveries", "sessions")
"""What a finding counts, and the brute force can count."""


def judge_seed(seed: int) -> tuple[str, str]:
    """Judges what a seed makes; returns "holds", or how the judges differ from the definitions and a sentence."""
    trace = make_trace(seed if seed % 4 else TIMED + seed)
    sentence = _compare_trace(trace) or _compare_incremental(trace) or _compare_ring(seed) or find_difference(seed)
    return ("violated", sentence) if sentence else ("holds", "")


def _compare_trace(trace: WrittenTrace) -> str:
    found = _judge(trace)
    try:
        if trace.is_damaged():
            raise RefusedError
        force = BruteForce(strip_omitted(trace), trace.claims, trace.clock_bound_ns)
        wanted = force.verdicts()
    except RefusedError:
        return "" if found == REFUSED else "the checker reads a trace that contradicts itself"
    if found == REFUSED:
        return "the checker refuses a sound trace"
    properties = found["properties"]
    for name, verdict in wanted.items():
        if properties[name]["verdict"] != verdict:
            return f"{name} is {verdict}; the checker says {properties[name]['verdict']}"
    length = find_shortest_cycle(force.edges())
    witness = properties["P5"]["witness"]
    if length is not None and len(witness) != length:
        return f"the shortest cycle has {length} messages; the checker tells one of {len(witness)}"
    for name, counts in force.counts().items():
        checked = {key: count for key, count in properties[name]["checked"].items() if key in COUNTED}
        if checked != counts:
            return f"{name} judges {counts}; the checker says {checked}"
    return ""


def _judge(trace: WrittenTrace) -> Any:
    folder = Path(tempfile.mkdtemp(prefix="amcast-judges-"))
    try:
        return judge(read_run(trace.write(folder / "run"))).as_dict()
    except UsageError:
        return REFUSED
    finally:
        shutil.rmtree(folder)


def _compare_incremental(trace: WrittenTrace) -> str:
    """The checker of searches sees deliveries alone, in the order of their rows."""
    if trace.is_damaged():
        return ""
    destinations = {row["message"]: tuple(row["destinations"] or ()) for row in trace.tables["multicasts"]}
    group_of = {row["process"]: row["group"] for row in trace.tables["processes"]}
    delivered: dict[int, list[int]] = {}
    for row in trace.tables["deliveries"]:
        delivered.setdefault(row["process"], []).append(row["message"])
    if any(not groups or not set(groups) <= set(group_of.values()) for groups in destinations.values()):
        return ""
    sentence = check_chains(delivered, destinations, group_of)
    is_wrong = _is_unsafe(delivered, destinations, group_of)
    return "" if (sentence is not None) == is_wrong else f"safety is violated: {is_wrong}; check_chains: {sentence}"


def _is_unsafe(
    delivered: dict[int, list[int]], destinations: dict[int, tuple[int, ...]], group_of: dict[int, int | None]
) -> bool:
    edges: dict[int, set[int]] = {message: set() for message in destinations}
    for process, messages in delivered.items():
        group = group_of.get(process)
        mine = {message for message, groups in destinations.items() if group in groups}
        if group is None or len(set(messages)) < len(messages) or not mine.issuperset(messages):
            return True
        for place, message in enumerate(messages):
            edges[message] |= mine.difference(messages[: place + 1])
    return find_shortest_cycle(edges) is not None


def _compare_ring(seed: int) -> str:
    """Groups in a ring, messages to two neighbours, and orders that a few groups changed."""
    random = Random(f"ring {seed}")
    count = random.randint(3, 5)
    trace = Trace({group: [group] for group in range(count)}, [90])
    for message in range(1, random.randint(count, 9) + 1):
        group = random.randrange(count) if message > count else message - 1
        trace.multicast(message, *sorted((group, (group + 1) % count)), sender=90)
    order = sorted(trace.multicasts, key=lambda message: random.random())
    for group in range(count):
        mine = [message for message in order if group in trace.multicasts[message]["destinations"]]
        if random.random() < 0.6:
            random.shuffle(mine)
        trace.order(group, *mine[: random.randint(len(mine) // 2, len(mine))])
    properties = judge(trace.run()).as_dict()["properties"]
    length = Oracle(trace).shortest_cycle()
    found = len(properties["P5"]["witness"]) or None
    if found != length:
        return f"the shortest cycle has {length} messages; the checker tells one of {found}: {trace.sequences}"
    if (properties["P4"]["verdict"] == "violated") != (length == 2):
        return f"P4 is {properties['P4']['verdict']}; the shortest cycle has {length} messages"
    return ""


def main(arguments: Sequence[str]) -> int:
    """Judges a range of seeds; prints the first failure in the form of `amcast fuzz --json`."""
    parser = argparse.ArgumentParser(prog="judges")
    parser.add_argument("--seeds", required=True)
    first, _, last = parser.parse_known_args(arguments)[0].seeds.partition("..")
    for seed in range(int(first), int(last) + 1):
        status, story = judge_seed(seed)
        if status != "holds":
            print(json.dumps({"failures": [{"seed": seed, "status": status, "story": story}]}))
            return 1
    return 0
