"""The convoy effect of every protocol: how much of a local message's latency is waiting for global ones.

    .venv/bin/python benchmarks/convoys.py
    .venv/bin/python benchmarks/convoys.py a-ge a-ge-star --outstanding 1 8 32

Paper 001, section 7.2, in its wide-area network (`srds-2`: a region per group, 20 ms between them): 4 groups of 3, 12
clients with some messages outstanding each, to their own group and half of the time to another one, too. The
share is the sum of the notes `convoy` over the sum of the latencies of local deliveries, as `amcast measure` has it.
"""

import argparse
from typing import Any

from amcast.lab.runs import prepare_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder

KAPPAS: dict[str, dict[str, Any]] = {
    "a-ng": {"kappa": 1},
    "a-ng kappa 20": {"kappa": 20},
    "a-dt": {"kappa": 1},
    "a-dt kappa 40": {"kappa": 40},
}
"""Instances that fit into an exchange of bundles: one millisecond apart, one delay of 20 ms, or two."""


def run(name: str, outstanding: int, messages: int) -> tuple[float, float, float]:
    """Mean latency of local deliveries and of global ones in milliseconds, and the share of convoys."""
    plan = {
        "protocol": name.partition(" ")[0],
        "options": KAPPAS.get(name, {}),
        "seed": 1,
        "topology": {"environment": "srds-2", "groups": 4, "replicas": 3, "clients": 12},
        "workload": {"messages": messages, "outstanding": outstanding, "destinations": [1, 2], "home": True},
    }
    recorder = Recorder()
    recorder.wants_packets = False
    summary = Simulation(prepare_run(parse_plan(plan)).make_setup(), recorder).run()
    assert summary.end == "delivered", summary
    latencies: dict[bool, list[float]] = {True: [], False: []}
    for row in recorder.deliveries:
        latencies[len(row[9]) == 1].append((row[4] - row[7]) / 1e6)  # type: ignore[arg-type,operator]
    waited = sum(float(row[4]) for row in recorder.notes if row[2] == "convoy")  # type: ignore[arg-type]
    local, others = latencies[True], latencies[False]
    return sum(local) / len(local), sum(others) / len(others), waited / 1e6 / sum(local)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    known = [*(name for name in CATALOGUE if name not in KAPPAS), *KAPPAS]
    parser.add_argument("names", nargs="*", help="protocols; all if none is named")
    parser.add_argument("--outstanding", type=int, nargs="+", default=[1, 8])
    parser.add_argument("--messages", type=int, default=600)
    given = parser.parse_args()
    print(f"{'protocol':<16}{'outstanding':>12}{'local ms':>10}{'global ms':>10}{'convoy':>9}")
    for name in given.names or known:
        for outstanding in given.outstanding:
            local, others, share = run(name, outstanding, given.messages)
            print(f"{name:<16}{outstanding:>12}{local:>10.2f}{others:>10.2f}{share:>9.1%}", flush=True)


if __name__ == "__main__":
    main()
