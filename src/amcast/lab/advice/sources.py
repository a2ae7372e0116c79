"""Requests to the adviser from its three sources: flags, a plan, and the trace of a recorded run."""

from collections import Counter
from pathlib import Path

from amcast.kernel.errors import UsageError
from amcast.lab.advice.request import (
    DEFAULT_ENVIRONMENT,
    AdviceRequest,
    Counts,
    count_plan,
    count_run,
    find_homes,
    format_counts,
    halve,
    number_mix,
    parse_groups,
    parse_names,
    read_environment_latencies,
)
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.latencies import Latencies, read_latencies
from amcast.simulation.inputs.plan import parse_plan, read_plan
from amcast.trace.run import read_run
from amcast.workloads.base import site_of_region
from amcast.workloads.mix import parse_mix

PAYLOAD = 64


def ask_directly(
    regions: str,
    groups: str | None,
    mix: str,
    clients: str | None,
    latencies: Path | None,
    replicas: int = 3,
    payload: int | None = None,
    rate: float = 2.0,
) -> AdviceRequest:
    """A request from flags."""
    chosen = parse_names("--regions", regions)
    homes, names = parse_groups(groups, chosen)
    numbered = number_mix(mix, names)
    try:
        parse_mix(numbered, "--mix")
    except ValueError as error:
        raise UsageError(str(error)) from None
    return AdviceRequest(
        latencies=_choose_latencies(latencies),
        regions=chosen,
        homes=homes,
        names=names,
        clients=chosen if clients is None else parse_names("--clients", clients),
        mix=numbered,
        by_region={},
        payload=PAYLOAD if payload is None else payload,
        replicas=replicas,
        rate_per_s=rate,
    )


def ask_from_plan(
    file: Path, regions: str | None, latencies: Path | None, replicas: int | None, payload: int | None, rate: float
) -> AdviceRequest:
    """A request with the regions, groups and traffic of a plan; its protocol and placement are not asked for."""
    prepared = prepare_run(parse_plan({"protocol": "primcast", **read_plan(file)}, f"plan {file}"))
    topology = prepared.topology
    if not prepared.network.matrix_ns:
        raise UsageError(f"plan {file}: topology.environment is missing; expected one with regions")
    table = _choose_latencies(latencies) if latencies is not None else _read_matrix(prepared)
    sizes = [prepared.make_draw(prepared.plan.seed)(client)[1] for client in topology.clients]
    counts = count_plan(prepared)
    homes = prepared.plan.workload.get("homes") or find_homes(counts, topology.groups)
    return _make_counted(
        counts,
        table,
        {region: tuple(found) for region, found in homes.items()},
        parse_names("--regions", regions) if regions else None,
        len(topology.members(topology.groups[0])) if replicas is None else replicas,
        round(sum(sizes) / len(sizes)) if payload is None else payload,
        rate,
        {group: topology.names.get(group, f"g{group}") for group in topology.groups},
    )


def ask_from_trace(
    folder: Path, regions: str | None, latencies: Path | None, replicas: int | None, payload: int | None, rate: float
) -> AdviceRequest:
    """A request with the regions, groups and traffic of a recorded run."""
    run = read_run(folder)
    counts, size = count_run(run)
    sizes = Counter(group for group in run.processes["group"] if group is not None)
    if sorted(sizes) != list(range(len(sizes))):
        raise UsageError(f"--trace {folder}: groups {sorted(sizes)}; expected 0, 1, 2 ...")
    return _make_counted(
        counts,
        _choose_latencies(latencies),
        find_homes(counts, sorted(sizes)),
        parse_names("--regions", regions) if regions else None,
        max(sizes.values()) if replicas is None else replicas,
        size if payload is None else payload,
        rate,
        {group: f"g{group}" for group in sizes},
    )


def _make_counted(
    counts: Counts,
    table: Latencies,
    homes: dict[str, tuple[int, ...]],
    regions: tuple[str, ...] | None,
    replicas: int,
    payload: int,
    rate: float,
    names: dict[int, str],
) -> AdviceRequest:
    mixes = {region: format_counts(found) for region, found in sorted(counts.items())}
    used = tuple(sorted({*homes, *mixes}))
    return AdviceRequest(
        latencies=table,
        regions=regions or used,
        homes=homes,
        names=names,
        clients=tuple(mixes),
        mix=next(iter(mixes.values())),
        by_region=mixes,
        payload=payload,
        replicas=replicas,
        rate_per_s=rate,
    )


def _choose_latencies(file: Path | None) -> Latencies:
    return read_environment_latencies(DEFAULT_ENVIRONMENT) if file is None else halve(read_latencies(file))


def _read_matrix(prepared: PreparedRun) -> Latencies:
    """The latencies of a plan by site, in milliseconds one way."""
    found: Latencies = {}
    for source, row in prepared.network.matrix_ns.items():
        if site_of_region(source) == source:
            found[source] = {target: ns / 1e6 for target, ns in row.items() if site_of_region(target) == target}
    return found
