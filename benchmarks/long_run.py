"""How long do simulated minutes take? CPU time of a run with many clients on a wide-area network.

    .venv/bin/python benchmarks/long_run.py [--protocol primcast] [--groups 8] [--clients 1536] [--seconds 60]

Clients in three regions (`wan-3`) with one message to two groups of three outstanding each; nothing is recorded.
"""

import argparse
import gc
import time

from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.simulate import Simulation


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--protocol", default="primcast")
    parser.add_argument("--groups", type=int, default=8)
    parser.add_argument("--clients", type=int, default=1536)
    parser.add_argument("--seconds", type=float, default=60.0, help="simulated")
    parser.add_argument("--environment", default="wan-3")
    arguments = parser.parse_args()
    plan = {
        "protocol": arguments.protocol,
        "topology": {
            "environment": arguments.environment,
            "groups": arguments.groups,
            "replicas": 3,
            "clients": arguments.clients,
        },
        "workload": {"destinations": 2, "seconds": arguments.seconds, "outstanding": 1},
        "nodes": False,
    }
    setup = prepare_run(parse_plan(plan)).make_setup()
    simulation = Simulation(setup)
    gc.collect()
    start = time.process_time()
    summary = simulation.run()
    cpu_s = time.process_time() - start
    minute_s = cpu_s / summary.simulated_ns * 6e10
    print(f"{arguments.protocol}, {arguments.groups} groups of 3, {arguments.clients} clients, {arguments.environment}")
    print(
        f"{summary.simulated_ns / 1e9:.1f} simulated seconds, {summary.multicasts} messages, {summary.packets} packets"
    )
    print(f"{cpu_s:.1f} s of CPU, {summary.packets / cpu_s:,.0f} packets/s, {minute_s:.0f} s for each simulated minute")


if __name__ == "__main__":
    main()
