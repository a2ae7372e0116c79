"""Searches for runs in which a user's service goes wrong: every seed draws groups, schedule and faults.

The nodes are those of live clusters, in real-time order; the service is the class of the user; what goes wrong is told
in sentences, with the seed that repeats it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random
from typing import Any, Final

from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.schedulers.fuzz import FuzzOutcome
from amcast.simulation.services.fuzzer import Invariant, ServiceFuzzer
from amcast.simulation.services.run import Main

CALLERS: Final = 3
REPLICAS: Final = 3
PROTOCOL: Final = "primcast"
CHANGE_RATE: Final = 0.3
"""How often members change during a run, if nothing but the service restricts the faults."""
MESSAGES: Final = 40
"""About the number of messages of a run: decides how long faults go on."""


def _draw_changes(groups: int, clients: int, random: Random) -> list[dict[str, Any]]:
    """A replica joins a group, and one of the first ones is removed, in any order, or one of both happens."""
    group = random.randrange(groups)
    joining = groups * REPLICAS + clients + 1  # behind the clients and the operator
    leaving = group * REPLICAS + random.randrange(REPLICAS)
    join = {"at_ns": 0, "do": "change", "group": group, "add": joining}
    leave = {"at_ns": 0, "do": "change", "group": group, "remove": leaving}
    return random.choice(([join], [leave], [join, leave], [join, leave], [leave, join]))


@dataclass(frozen=True)
class ServiceSearch:
    """What is searched: a load on a service, and the faults that it must survive."""

    main: Main
    invariants: Sequence[Invariant] = ()
    faults: str = "all"
    protocol: str = PROTOCOL
    groups: int | None = None
    """None: each seed draws 1 to 3."""
    callers: int = CALLERS

    def prepare(self, seed: int) -> PreparedRun:
        """The nodes and faults of a seed."""
        random = make_stream(seed, "service plan")
        groups = self.groups or random.choice((1, 2, 2, 3))
        spec = find_protocol(self.protocol)
        plan: dict[str, Any] = {
            "protocol": self.protocol,
            "topology": {"groups": groups, "replicas": REPLICAS, "clients": self.callers + groups},
            "workload": {"messages": MESSAGES, "destinations": 1},
            "network": {"links": spec.claims.links},
            "faults": {"profile": self.faults},
            "gateways": bool(spec.open_bundle) and random.random() < 0.5,
            "order": "real-time",
        }
        if spec.claims.members and self.faults == "all" and random.random() < CHANGE_RATE:
            plan["faults"]["events"] = _draw_changes(groups, self.callers + groups, random)
        return prepare_run(parse_plan(plan, "service search"))

    def run_seed(self, seed: int) -> FuzzOutcome:
        """Runs one seed."""
        case = replace(
            self.prepare(seed).make_case(), monitoring=None, is_audited=False
        )  # calls decide what is multicast
        try:
            return ServiceFuzzer(case, seed, self.main, self.callers, self.invariants).search()
        except Exception as error:
            error.add_note(f"while seed {seed} of a service was searched")
            raise

    def run(
        self, seeds: range, progress: Callable[[int], None] = lambda done: None, keep_going: bool = False
    ) -> list[FuzzOutcome]:
        """Runs seeds in order, up to the first failure unless `keep_going`."""
        outcomes: list[FuzzOutcome] = []
        for seed in seeds:
            outcomes.append(self.run_seed(seed))
            progress(len(outcomes))
            if outcomes[-1].status != "holds" and not keep_going:
                break
        return outcomes
