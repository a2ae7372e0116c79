"""Every workload by its name."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from amcast.kernel.config import parse_config
from amcast.kernel.errors import UsageError
from amcast.kernel.topology import Topology
from amcast.workloads.base import Workload, WorkloadConfig
from amcast.workloads.gtpcc import Gtpcc, GtpccConfig, GtpccText, GtpccTextConfig
from amcast.workloads.micro import Convoy, ConvoyConfig, Micro, MicroConfig
from amcast.workloads.mix import Distance, Mix, MixConfig
from amcast.workloads.social import Social, SocialConfig
from amcast.workloads.thesis import Thesis, ThesisConfig
from amcast.workloads.tpcc import Tpcc, TpccConfig


@dataclass(frozen=True)
class WorkloadSpec:
    """A workload as data."""

    name: str
    summary: str
    source: str
    build: Callable[[Topology, int, Any], Workload]
    config: type[WorkloadConfig]
    groups: int | None = None
    """The number of groups that the topology must have; None: any number."""


_SPECS: Final = (
    WorkloadSpec("micro", "groups chosen at random", "003 5.1, 002 7.2", Micro, MicroConfig),
    WorkloadSpec("convoy", "two groups, several messages in flight", "002 Fig. 5", Convoy, ConvoyConfig),
    WorkloadSpec("tpcc", "mostly the home group, else nearly always one more", "001 7.1", Tpcc, TpccConfig),
    WorkloadSpec("gtpcc", "home and near groups, as the authors measured", "000 5.3, code", Gtpcc, GtpccConfig, 12),
    WorkloadSpec("gtpcc-text", "home and near groups, as the text says", "000 5.3", GtpccText, GtpccTextConfig, 12),
    WorkloadSpec("social", "posts to the followers' partitions", "003 5.3", Social, SocialConfig, 16),
    WorkloadSpec("thesis", "sets of groups of a binary tree", "004 5.2, 5.3", Thesis, ThesisConfig, 7),
    WorkloadSpec("mix", "home, near and other groups, by your own weights", "-", Mix, MixConfig),
)

WORKLOADS: Final[dict[str, WorkloadSpec]] = {spec.name: spec for spec in _SPECS}


def build_workload(
    name: str,
    topology: Topology,
    seed: int,
    options: Mapping[str, Any] | None = None,
    distance: Distance | None = None,
) -> Workload:
    """Builds the workload of this name on a topology; UsageError says what was expected. `distance` of regions is what
    near groups are ranked by where the workload itself does not say it."""
    if name not in WORKLOADS:
        raise UsageError(f"workload {name!r} does not exist; `amcast workloads` lists them: {', '.join(WORKLOADS)}")
    spec = WORKLOADS[name]
    if spec.groups is not None and len(topology.groups) != spec.groups:
        raise UsageError(f"workload {name}: the topology has {len(topology.groups)} groups; expected {spec.groups}")
    config = parse_config(spec.config, dict(options or {}), f"options of workload {name}")
    if isinstance(config, MixConfig):
        return Mix(topology, seed, config, distance)
    return spec.build(topology, seed, config)
