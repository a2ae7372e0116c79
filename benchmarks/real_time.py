"""What real-time order costs: both settings under the same load, simulated and live.

    python benchmarks/real_time.py simulated         LAN, a replica per region (wan-3), a group per region (srds-2)
    python benchmarks/real_time.py live              this machine: lone and loaded, in turns; latency and CPU

Simulated: 4 groups of 3 with gateways, 24 clients with 8 messages in flight each; a share of the messages goes to two
groups at random, the others to one: the client's own, or ("any group") one at random. Throughput and latency are those
of answers, in the middle of the run; "held" is the mean time from the moment at which every destination has delivered a
message to the client's answer. The simulator counts packets and charges no CPU: that is what `live` measures.
"""

import argparse
import statistics
from collections.abc import Callable
from dataclasses import dataclass, replace
from random import Random
from typing import Any

from amcast.lab.live_benchmark import BenchmarkPlan, run_benchmark
from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder

GROUPS, REPLICAS, CLIENTS, OUTSTANDING = 4, 3, 24, 8
WORLDS = {"lan": 12_000, "wan-3": 6000, "srds-2": 20_000, "srds-2, any group": 10_000}
"""Environments, with the number of messages of a run: enough for many times the latency of an answer. (3,000 messages
with a group per region are answered in 0.25 s, and ratios of such runs differ by a quarter.)"""
SHARES = (0.1, 0.5)
ORDERS = ("acyclic", "real-time")


@dataclass(frozen=True)
class Measured:
    """One run, or the means of several."""

    per_s: float
    local_ms: float
    global_ms: float
    packets: float
    """Packets for each message, all of them."""
    local_held_ms: float
    global_held_ms: float
    """From the last destination's first delivery to the answer, on average."""


def simulate(protocol: str, world: str, share: float, order: str, seed: int, messages: int) -> Measured:
    """One simulated run."""
    environment = world.partition(",")[0]
    plan = parse_plan(
        {
            "protocol": protocol,
            "seed": seed,
            "topology": {
                "groups": GROUPS,
                "replicas": REPLICAS,
                "clients": CLIENTS,
                "environment": environment,
            },
            "workload": {"messages": messages, "outstanding": OUTSTANDING},
            "gateways": True,
            "order": order,
        }
    )
    prepared = prepare_run(plan)
    setup = replace(prepared.make_setup(), draw=make_draw(share, "any" in world, make_stream(seed, "real-time", world)))
    recorder = Recorder()
    summary = Simulation(setup, recorder).run()
    assert summary.end == "delivered", f"{protocol}, {world}, {order}, seed {seed}: {summary.end}"
    sent: dict[Any, tuple[Any, bool]] = {row[0]: (row[3], len(row[2]) > 1) for row in recorder.multicasts}  # type: ignore[arg-type]
    answers: list[tuple[Any, Any]] = sorted((row[1], row[0]) for row in recorder.answers)
    middle = answers[len(answers) // 5 : 4 * len(answers) // 5]
    delivered = find_deliveries(recorder)
    latencies: dict[bool, list[float]] = {False: [0.0], True: [0.0]}
    held: dict[bool, list[float]] = {False: [0.0], True: [0.0]}
    for at_ns, message in middle:
        since_ns, is_global = sent[message]
        latencies[is_global].append((at_ns - since_ns) / 1e6)
        held[is_global].append((at_ns - delivered[message]) / 1e6)
    seconds = (middle[-1][0] - middle[0][0]) / 1e9
    return Measured(
        (len(middle) - 1) / seconds,
        statistics.median(latencies[False]),
        statistics.median(latencies[True]),
        summary.packets / summary.multicasts,
        statistics.mean(held[False]),
        statistics.mean(held[True]),
    )


def find_deliveries(recorder: Recorder) -> dict[Any, Any]:
    """By message: when the last of its destinations had a process that had delivered it."""
    first: dict[tuple[Any, Any], Any] = {}
    for _, group, _, message, at_ns, *_ in recorder.deliveries:
        place = (message, group)
        first[place] = min(at_ns, first.get(place, at_ns))  # type: ignore[type-var]
    last: dict[Any, Any] = {}
    for (message, _), at_ns in first.items():
        last[message] = max(at_ns, last.get(message, at_ns))
    return last


def make_draw(share: float, is_any: bool, random: Random) -> Callable[[int], tuple[tuple[int, ...], int, int]]:
    """Draws destinations: two groups, or one: the client's own, or any."""

    def draw(client: int) -> tuple[tuple[int, ...], int, int]:
        if random.random() < share:
            return tuple(sorted(random.sample(range(GROUPS), 2))), 64, 0
        return (random.randrange(GROUPS) if is_any else client % GROUPS,), 64, 0

    return draw


def average(runs: list[Measured]) -> Measured:
    names = Measured.__dataclass_fields__
    return Measured(**{name: statistics.mean(getattr(run, name) for run in runs) for name in names})


def compare_simulated(protocol: str, seeds: int) -> None:
    print(
        "| world, global | throughput | per s | global ms | local ms | global held | local held | packets/message |\n"
        "|---|---|---|---|---|---|---|---|"
    )
    for world, messages in WORLDS.items():
        for share in SHARES:
            plain, timed = (
                average([simulate(protocol, world, share, order, seed, messages) for seed in range(seeds)])
                for order in ORDERS
            )
            print(
                f"| {world}, {share:.0%} | x{timed.per_s / plain.per_s:.2f} | {plain.per_s:,.0f}, {timed.per_s:,.0f}"
                f" | {plain.global_ms:.2f}, {timed.global_ms:.2f} | {plain.local_ms:.2f}, {timed.local_ms:.2f}"
                f" | {plain.global_held_ms:.2f}, {timed.global_held_ms:.2f}"
                f" | {plain.local_held_ms:.2f}, {timed.local_held_ms:.2f}"
                f" | {plain.packets:.1f}, {timed.packets:.1f} |",
                flush=True,
            )


LIVE = {
    "lone, 2 destinations": {"connections": 1, "outstanding": 1},
    "lone, 1 destination": {"connections": 1, "outstanding": 1, "destinations": 1},
    "6 x 170, 2 destinations": {"connections": 6, "outstanding": 170},
    "6 x 170, 1 destination": {"connections": 6, "outstanding": 170, "destinations": 1},
}


def compare_live(protocol: str, seconds: float, turns: int) -> None:
    print(
        "| load | throughput | per s | latency p50 us | CPU of replicas, us per multicast | CPU |\n"
        "|---|---|---|---|---|---|"
    )
    for name, load in LIVE.items():
        found: dict[str, list[dict[str, Any]]] = {order: [] for order in ORDERS}
        for _ in range(turns):
            for order in ORDERS:
                plan = BenchmarkPlan(protocol=protocol, seconds=seconds, order=order, **load)  # type: ignore[arg-type]
                result = run_benchmark(plan, lambda line: None)
                assert result["verdict"] == "holds", result["story"]
                found[order].append(result)
        plain, timed = (
            {key: statistics.median(run[key] for run in found[order]) for key in NUMBERS} for order in ORDERS
        )
        print(
            f"| {name} | x{timed['throughput_per_s'] / plain['throughput_per_s']:.2f}"
            f" | {plain['throughput_per_s']:,}, {timed['throughput_per_s']:,}"
            f" | {plain['latency_us_p50']}, {timed['latency_us_p50']}"
            f" | {plain['replica_cpu_us']}, {timed['replica_cpu_us']}"
            f" | x{timed['replica_cpu_us'] / plain['replica_cpu_us']:.2f} |",
            flush=True,
        )


NUMBERS = ("throughput_per_s", "latency_us_p50", "replica_cpu_us")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("where", choices=("simulated", "live"))
    parser.add_argument("--protocol", default="primcast")
    parser.add_argument("--seeds", type=int, default=6, help="simulated runs of each case")
    parser.add_argument("--seconds", type=float, default=2.0, help="live: of each run")
    parser.add_argument("--turns", type=int, default=3, help="live: runs of each setting, in turns")
    given = parser.parse_args()
    if given.where == "simulated":
        compare_simulated(given.protocol, given.seeds)
    else:
        compare_live(given.protocol, given.seconds, given.turns)


if __name__ == "__main__":
    main()
