"""Small plans that every protocol is tried with."""

from amcast.kernel.spec import Spec
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.protocols.catalogue import CATALOGUE
from amcast.simulation.inputs.plan import parse_plan


def sizes_of(spec: Spec) -> list[int]:
    """Replicas per group that a protocol is tried with."""
    return [1] if spec.claims.single_replica else [1, 3]


def planned(name: str, seed: int = 0, **tables: dict[str, object]) -> PreparedRun:
    """A small run of a protocol on the weakest links and the largest groups that it is tried with."""
    spec = CATALOGUE[name]
    topology = {"groups": 3, "replicas": sizes_of(spec)[-1], "clients": 3, **tables.pop("topology", {})}
    workload = {"messages": 30, "outstanding": 3, "destinations": [1, 3], **tables.pop("workload", {})}
    network = {"links": spec.claims.links, **tables.pop("network", {})}
    values = {"protocol": name, "seed": seed, "topology": topology, "workload": workload, "network": network, **tables}
    return prepare_run(parse_plan(values))
