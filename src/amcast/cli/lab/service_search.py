"""The command `amcast fuzz --service`: a user's service in the simulator."""

import shlex
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from amcast.cli.output import EXIT_CODES, colour_verdict, err, out, print_json, show_progress
from amcast.kernel.errors import UsageError
from amcast.lab.service_search import PROTOCOL, TWIN_SEEDS, ServiceSearch, compare_with_twin
from amcast.services.loader import load_name, load_service
from amcast.simulation.services.drawn_calls import make_client_load, make_load

SearchedOption = Annotated[
    str | None, typer.Option("--service", help="A service to search instead of a protocol: MODULE:CLASS.")
]
LoadOption = Annotated[
    str | None,
    typer.Option("--load", help="With --service: an `async def` that each client runs. Default: random calls."),
]
InvariantOption = Annotated[
    list[str] | None,
    typer.Option("--invariant", help="With --service: a function that judges the services at the end."),
]


def refuse_service_options(load: str | None, invariants: Sequence[str] | None) -> None:
    """Refuses options that are for services only, where there is none."""
    for flag, value in (("--load", load), ("--invariant", ", ".join(invariants or ()))):
        if value:
            raise UsageError(f"{flag} {value!r} without --service; expected both, such as --service bank:Bank")


def fuzz_service(
    service: str,
    load: str | None,
    invariants: Sequence[str],
    seeds: range,
    protocol: str | None,
    faults: str | None,
    groups: int | None,
    keep_going: bool,
    json: bool,
) -> None:
    """Runs seeds of a service, and prints the verdict; the exit code says it, too."""
    description = load_service(service)
    main = make_load(description) if load is None else make_client_load(load_name(load, "load"))
    judges = [load_name(one, "invariant") for one in invariants]
    search = ServiceSearch(main, judges, faults or "all", protocol or PROTOCOL, groups)
    search.prepare(seeds[0])
    with show_progress("seeds", len(seeds)) as show:
        outcomes = search.run(seeds, show, keep_going)
    failures = [one for one in outcomes if one.status != "holds"]
    difference = "" if failures else compare_with_twin(search, service, load, faults, seeds[:TWIN_SEEDS])
    flags = ["--service", service, *(["--load", load] if load else [])]
    for one in invariants:
        flags += ["--invariant", one]
    for flag, value in (("--protocol", protocol), ("--faults", faults), ("--groups", groups)):
        flags += [] if value is None else [flag, str(value)]
    verdict = "violated" if failures or difference else "holds"
    data: dict[str, Any] = {
        "service": description.name,
        "verdict": verdict,
        "seeds": [seeds[0], seeds[-1]],
        "runs": len(outcomes),
        "steps": sum(one.steps for one in outcomes),
        "difference": difference,
        "failures": [
            {
                "seed": one.seed,
                "status": one.status,
                "story": one.story,
                "replay": shlex.join(["amcast", "fuzz", *flags, "--seeds", str(one.seed)]),
            }
            for one in failures
        ],
    }
    if json:
        print_json(data)
    else:
        out.print(f"{colour_verdict(verdict)}: {description.name}, {len(outcomes)} seeds, {data['steps']} steps")
        for failure in data["failures"]:
            err.print(f"seed {failure['seed']}, {failure['status']}: {failure['story']}", markup=False)
            err.print(f"to repeat it: {failure['replay']}", markup=False)
        if difference:
            err.print(difference, markup=False)
            err.print(f"to repeat it: {shlex.join(['amcast', 'fuzz', *flags, '--seeds', str(seeds[0])])}", markup=False)
    raise typer.Exit(EXIT_CODES[verdict])
