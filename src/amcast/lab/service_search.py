"""Searches for runs in which a user's service goes wrong: every seed draws groups, schedule and faults.

The nodes are those of live clusters, in real-time order; the service is the class of the user; what goes wrong is told
in sentences, with the seed that repeats it.

All replicas of a simulation are in one process, where `hash` and the order of a set of strings are the same for them.
What depends on these is found only by another process, in which the states of a seed must be the same:

    python -m amcast.lab.service_search bank:Bank LOAD PROTOCOL FAULTS GROUPS SEED...      ("-": none)
"""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from random import Random
from typing import Any, Final

from amcast.kernel.errors import CannotTellError
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.services.loader import load_name, load_service
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.schedulers.fuzz import FuzzOutcome
from amcast.simulation.services.drawn_calls import make_client_load, make_load
from amcast.simulation.services.fuzzer import Invariant, ServiceFuzzer
from amcast.simulation.services.run import Main

CALLERS: Final = 3
REPLICAS: Final = 3
PROTOCOL: Final = "primcast"
CHANGE_RATE: Final = 0.3
"""How often members change during a run, if nothing but the service restricts the faults."""
TWIN_SEEDS: Final = 2
"""So many seeds are run in another process."""
NONE: Final = "-"
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
        return self._run(seed)[0]

    def digest_seed(self, seed: int) -> str:
        """Runs one seed; returns a digest of all states that replicas had."""
        return self._run(seed)[1]

    def _run(self, seed: int) -> tuple[FuzzOutcome, str]:
        case = replace(
            self.prepare(seed).make_case(), monitoring=None, is_audited=False
        )  # calls decide what is multicast
        try:
            fuzzer = ServiceFuzzer(case, seed, self.main, self.callers, self.invariants)
            return fuzzer.search(), fuzzer.services.digest()
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


def compare_with_twin(
    search: ServiceSearch, service: str, load: str | None, faults: str | None, seeds: Sequence[int]
) -> str:
    """How the states of some seeds differ in another process, as a sentence; "" if they do not."""
    given = [service, load or NONE, search.protocol, faults or NONE, str(search.groups or NONE), *map(str, seeds)]
    hash_seed = "1" if os.environ.get("PYTHONHASHSEED") != "1" else "2"
    path = os.pathsep.join([str(Path.cwd()), *filter(None, sys.path)])
    environment = {**os.environ, "PYTHONHASHSEED": hash_seed, "PYTHONPATH": path, "TZ": "Asia/Kathmandu"}
    done = subprocess.run(
        [sys.executable, "-m", "amcast.lab.service_search", *given],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        raise CannotTellError(f"the seeds could not be repeated in another process: {done.stderr.strip()[-500:]}")
    for seed, digest in zip(seeds, json.loads(done.stdout), strict=True):
        if digest != search.digest_seed(seed):
            return (
                f"seed {seed} leads to other states in another process: the service, or the load, depends on `hash`, on"
                f" the order of a set, or on the environment (PYTHONHASHSEED={hash_seed} there)"
            )
    return ""


def main(arguments: Sequence[str]) -> None:
    """Prints digests of the states of each seed."""
    service, load, protocol, faults, groups, *seeds = arguments
    run = make_load(load_service(service)) if load == NONE else make_client_load(load_name(load, "load"))
    search = ServiceSearch(
        run, (), "all" if faults == NONE else faults, protocol or PROTOCOL, None if groups == NONE else int(groups)
    )
    print(json.dumps([search.digest_seed(int(seed)) for seed in seeds]))


if __name__ == "__main__":
    main(sys.argv[1:])
