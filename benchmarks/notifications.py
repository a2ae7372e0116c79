"""What FlexCast's notifications cost: packets and message delays per multicast, by the number of groups.

    .venv/bin/python benchmarks/notifications.py
    .venv/bin/python benchmarks/notifications.py --groups 16 --replicas 3 --rules all next --messages 500

Every message goes to two groups drawn at random, which is what FlexCast is worst at: groups between the two have got
messages, so they must be asked what they know. 4 clients, 8 messages outstanding each; every link takes one unit, the
disk nothing. Three rules:

    printed   the paper's: whoever got any message of the history is asked, and asks on, every time that it is asked
    all       notify = "all": asked only where it can matter, and asks on only if it has learned something since
    next      notify = "next": one group is asked, and asks the next

The printed rule is ours but for what it says about notifications; the mistakes of the printed text are corrected.
"""

import argparse
from collections import Counter
from dataclasses import replace
from random import Random
from statistics import mean
from typing import Any

from amcast.assembly import assemble_bare
from amcast.kernel.ids import GroupId, MessageId
from amcast.kernel.topology import Topology
from amcast.lab.protocol_lookup import find_protocol
from amcast.parts.groups.replicated import replicate
from amcast.protocols.flexcast.messages import Ack, FlexCastState, FlushRequest, Msg, Notif
from amcast.protocols.flexcast.process import FlexCast, _Notification
from amcast.simulation.inputs.network import NetworkConfig
from amcast.simulation.simulate import Simulation, SimulationSetup
from amcast.trace.recorder import Recorder

CLIENTS, OUTSTANDING, UNIT_NS = 4, 8, 1_000_000
RULES = ("printed", "all", "next")


class Printed(FlexCast):
    """Algorithm 3, lines 31 to 40: nothing is remembered about whom was asked, or why."""

    def _groups_to_notify(self, destinations: tuple[GroupId, ...], higher: tuple[GroupId, ...]) -> list[GroupId]:
        known = self.history._to
        between = self.order.between(self.home, higher[-1]) if higher else ()
        return [group for group in between if group not in destinations and known.get(group, 0)]

    def _acknowledge(self, message: MessageId, notification: _Notification) -> None:
        for token in notification.tokens:
            one = _Notification(notification.destinations)
            one.tokens.append(token)
            self._notified_versions.pop(message, None)
            super()._acknowledge(message, one)


def run(rule: str, groups: int, replicas: int, messages: int, flush_every: int) -> dict[str, Any]:
    topology = Topology.grid(groups, replicas, CLIENTS)
    spec = find_protocol("flexcast").for_topology(topology)
    if rule == "printed":
        spec = replace(spec, process=replicate(Printed, (Msg, Ack, Notif, FlushRequest), FlexCastState))
    options = {"notify": "next" if rule == "next" else "all", "flush_every": flush_every}
    assembly = assemble_bare(spec, spec.configure(options))
    random = Random(1)

    def draw(client: int) -> tuple[tuple[int, ...], int, int]:
        return tuple(sorted(random.sample(range(groups), 2))), 64, 0

    setup = SimulationSetup(
        topology=topology,
        make=lambda process: assembly.make(process, topology),
        draw=draw,
        claims=spec.claims,
        network=NetworkConfig(delay_ns=UNIT_NS),
        seed=1,
        messages=messages,
        outstanding=OUTSTANDING,
    )
    recorder = Recorder()
    summary = Simulation(setup, recorder).run()
    assert summary.end == "delivered", summary
    notified = sum(row[2] == "notified" for row in recorder.notes) / replicas
    bodies = Counter(str(row[1]) for row in recorder.packets)
    delays = sorted((row[4] - row[7]) / UNIT_NS for row in recorder.deliveries)  # type: ignore[operator]
    return {
        "groups": groups,
        "rule": rule,
        "packets": len(recorder.packets) / messages,
        "Notif": notified / messages,
        "Ack": bodies["Ack"] / messages,
        "bytes": sum(int(row[4]) for row in recorder.packets) / messages,  # type: ignore[call-overload]
        "delays": mean(delays),
        "p99": delays[len(delays) * 99 // 100],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--groups", type=int, nargs="+", default=[4, 8, 12, 16])
    parser.add_argument("--replicas", type=int, default=1, help="with more than one, Ack bodies travel inside others")
    parser.add_argument("--messages", type=int, default=500)
    parser.add_argument("--flush-every", type=int, default=256)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=list(RULES))
    given = parser.parse_args()
    head = ("groups", "rule", "packets", "Notif", "Ack", "bytes", "delays", "p99")
    print("".join(f"{name:>10}" for name in head))
    for groups in given.groups:
        for rule in given.rules:
            row = run(rule, groups, given.replicas, given.messages, given.flush_every)
            print("".join(f"{v:>10.2f}" if isinstance(v, float) else f"{v:>10}" for v in row.values()), flush=True)


if __name__ == "__main__":
    main()
