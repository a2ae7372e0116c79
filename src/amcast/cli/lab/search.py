"""Commands that search for trouble and tell it: fuzz, explore, replay, shrink."""

import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from multiprocessing import get_context
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from amcast.cli.data.pipeline import MasterOption
from amcast.cli.extras import require_extra
from amcast.cli.lab.plan_options import (
    ClientsOption,
    DestinationsOption,
    FaultsOption,
    GroupsOption,
    MessagesOption,
    OrderOption,
    OutstandingOption,
    PlanOption,
    ProtocolOption,
    ReplicasOption,
    lay,
    planned,
)
from amcast.cli.lab.service_search import (
    InvariantOption,
    LoadOption,
    SearchedOption,
    fuzz_service,
    refuse_service_options,
)
from amcast.cli.output import EXIT_CODES, JsonFlag, colour_verdict, err, out, print_json, show_progress
from amcast.cli.panels import SEARCH
from amcast.kernel.errors import UsageError
from amcast.lab.exhaustive_search import (
    PartOfSearch,
    RunCalls,
    SearchResult,
    list_audits,
    list_patterns,
    search_patterns,
)
from amcast.lab.failure_scripts import make_script, prepare_script
from amcast.lab.fuzz_campaign import Campaigner, FixedRuns, SwarmRuns, run_campaign, run_feedback_campaign
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.runs import PreparedRun, make_judge, prepare_run
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.fuzz import FuzzOutcome
from amcast.simulation.schedulers.replay import narrate
from amcast.simulation.schedulers.replay import replay as play
from amcast.simulation.schedulers.scope import Budget, Exploration
from amcast.simulation.schedulers.script import Script, read_script
from amcast.simulation.schedulers.shrink import shrink as make_small

MOST_EVENTS: Final = 10_000
"""More crashes, timers or the like on one path than any search gets to."""

ScriptArgument = Annotated[Path, typer.Argument(help="A script that fuzz, explore or shrink wrote.")]
FeedbackFlag = Annotated[
    bool, typer.Option("--feedback", help="Runs that reach new states breed others, which repeat them up to there.")
]
ScriptOption = Annotated[Path | None, typer.Option("--script", help="The file for the script of a failure.")]


def register(app: typer.Typer) -> None:
    """Adds these commands."""
    app.command(rich_help_panel=SEARCH)(fuzz)
    app.command(rich_help_panel=SEARCH)(explore)
    app.command(rich_help_panel=SEARCH)(replay)
    app.command(rich_help_panel=SEARCH)(shrink)


def fuzz(
    protocol_name: ProtocolOption = None,
    seeds: Annotated[str, typer.Option("--seeds", help="A range A..B, B included, or one seed.")] = "0..99",
    groups: GroupsOption = None,
    replicas: ReplicasOption = None,
    destinations: DestinationsOption = None,
    messages: MessagesOption = None,
    clients: ClientsOption = None,
    outstanding: OutstandingOption = None,
    plan: PlanOption = None,
    faults: FaultsOption = None,
    order: OrderOption = None,
    script: ScriptOption = None,
    swarm: Annotated[
        bool | None,
        typer.Option(
            help="Each seed draws sizes, options, features and faults that plan and options leave open. Default: unless"
            " there is a --plan."
        ),
    ] = None,
    feedback: FeedbackFlag = False,
    keep_going: Annotated[bool, typer.Option(help="Continue after a failure.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Processes to use; 0: one per core.")] = 0,
    service: SearchedOption = None,
    load: LoadOption = None,
    invariant: InvariantOption = None,
    json: JsonFlag = False,
) -> None:
    """Run many seeds, each with its own shape, schedule and faults; check safety, then liveness after healing.

    Without a plan each seed also draws how many groups, replicas, clients and messages there are, which of the claimed
    faults happen, gateways, a change of members and the protocol's options with small limits (a swarm). Options given
    here, and the fields of a --plan, are the same for all seeds. The script of a failure carries what its seed drew.

    With --service a class of yours runs on the simulated nodes (docs/services.md).

    Examples: amcast fuzz --protocol skeen --seeds 0..5000   |   amcast fuzz -p primcast --replicas 5 --faults recovery
    |   amcast fuzz --service bank:Bank --invariant bank:total_is_constant
    """
    first, last = parse_seeds(seeds)
    if service is not None:
        span = range(first, last + 1)
        fuzz_service(service, load, invariant or (), span, protocol_name, faults, groups, keep_going, json)
    refuse_service_options(load, invariant)
    values = planned(plan, protocol_name, groups, replicas, destinations, messages, clients, outstanding, None)
    where = f"plan {plan}" if plan else "flags"
    is_swarm = plan is None if swarm is None else swarm
    lay(values, "faults.profile", faults)
    lay(values, "order", order)
    runs = _make_runs(values, where, is_swarm, faults)
    prepared = runs.prepare(first)
    with show_progress("seeds", last - first + 1) as show:
        run = run_feedback_campaign if feedback else run_campaign
        found = run(runs, range(first, last + 1), jobs or os.cpu_count() or 1, keep_going, show)
    failures = found.failures
    goals = prepared.spec.goals + (prepared.spec.recovery_goals if is_swarm and not faults else ())
    missed = found.list_missed_goals(goals)
    kinds = find_protocol(values["protocol"]).claims.faults if is_swarm and not faults else prepared.kinds
    data: dict[str, Any] = {
        "protocol": prepared.spec.name,
        "verdict": "violated" if failures else "unknown" if missed else "holds",
        "seeds": [first, last],
        "swarm": is_swarm,
        "feedback": feedback,
        "faults": sorted(kinds),
        "runs": found.runs,
        **found.tally,
        "goals": {goal: found.notes.get(goal, 0) for goal in goals},
        "goals_missed": missed,
        "failures": _list_failures(failures),
    }
    if failures:
        name = f"{prepared.spec.name}-fuzz-{failures[0].seed}"
        kept = _write_script(make_script(runs.prepare(failures[0].seed), failures[0]), script, name)
        data["script"] = str(kept)
    if json:
        print_json(data)
    else:
        _print_fuzz(data, failures)
    raise typer.Exit(EXIT_CODES[data["verdict"]])


def _list_failures(failures: list[FuzzOutcome]) -> list[dict[str, Any]]:
    return [
        {"seed": one.seed, "turns": one.turns, "status": one.status, "story": one.story, "steps": one.steps}
        for one in failures
    ]


def _make_runs(values: dict[str, Any], where: str, is_swarm: bool, faults: str | None) -> Campaigner:
    if is_swarm:
        return SwarmRuns(values, where)
    _fuzz_defaults(values, faults)
    return FixedRuns(parse_plan(values, where))


def _fuzz_defaults(values: dict[str, Any], faults: str | None) -> None:
    """Sets defaults for fuzzing: small runs, all claimed faults, the weakest claimed links."""
    spec = find_protocol(values["protocol"])
    claims = spec.claims
    _set_default(values, "workload", "messages", 12)
    _set_default(values, "workload", "outstanding", 3)
    if _set_default(values, "topology", "replicas", 1 if claims.single_replica else 3) == 1:
        claims = spec.unreplicated or claims
    groups = _set_default(values, "topology", "groups", 3)
    if isinstance(groups, int) and "name" not in values["workload"]:
        _set_default(values, "workload", "destinations", [1, max(1, min(3, groups))])
    _set_default(values, "network", "links", claims.links)
    _set_default(values, "faults", "profile", "all")
    lay(values, "faults.profile", faults)


def _set_default(values: dict[str, Any], table: str, field: str, value: object) -> object:
    """Sets a field of a plan's table if it is unset; returns its value."""
    inner = values.setdefault(table, {})
    if not isinstance(inner, dict):
        raise UsageError(f"plan: {table} = {inner!r}; expected a table")
    return inner.setdefault(field, value)


def parse_seeds(text: str) -> tuple[int, int]:
    """Parses A..B, both included, or one seed."""
    found = re.fullmatch(r"(-?\d+)(?:\.\.(-?\d+))?", text)
    if not found:
        raise UsageError(f"--seeds {text!r}; expected a range such as 0..99, or one seed")
    first = int(found[1])
    last = first if found[2] is None else int(found[2])
    if last < first:
        raise UsageError(f"--seeds {text!r} is upside down; expected the smaller seed first: {last}..{first}")
    return first, last


def _write_script(script: Script, target: Path | None, name: str) -> Path:
    target = target or Path("runs") / f"{name.replace(':', '-')}.script"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        script.write(target)
    except OSError as error:
        raise UsageError(f"--script {target}: cannot be written: {error.strerror}") from None
    return target


def _print_fuzz(data: dict[str, Any], failures: list[FuzzOutcome]) -> None:
    faults = ", ".join(data["faults"]) or "none"
    seeds = f"seeds {data['seeds'][0]}..{data['seeds'][1]}"
    out.print(f"{data['protocol']}: {data['runs']} runs, {seeds}, faults: {'some of ' * data['swarm']}{faults}")
    out.print(f"{data['holds']} hold, {data['violated']} violated, {data['stuck']} stuck")
    for goal in data["goals_missed"]:
        err.print(f"goal {goal!r} was never reached: these runs are too tame to trust")
    for failure in failures[:5]:
        anew = "".join(f", from step {step} on that of {seed}" for step, seed in failure.turns)
        out.print(
            f"seed {failure.seed}{anew} {failure.status} after {failure.steps} steps: {failure.story}", markup=False
        )
    _print_next(data)


def _print_next(data: dict[str, Any]) -> None:
    if "script" in data:
        out.print(f"replay it:  amcast replay {data['script']}", markup=False)
        out.print(f"shrink it:  amcast shrink {data['script']}", markup=False)


def explore(
    protocol_name: ProtocolOption = None,
    groups: GroupsOption = 2,
    replicas: ReplicasOption = 1,
    messages: Annotated[int, typer.Option("--messages", min=1, max=8, help="How many, each from its own client.")] = 2,
    destinations: Annotated[
        str | None, typer.Option("--destinations", help="One pattern, such as 0,1/1,2; all patterns if not given.")
    ] = None,
    crashes: Annotated[int, typer.Option(min=0, max=MOST_EVENTS, help="Most crashes on one path.")] = 0,
    recoveries: Annotated[int, typer.Option(min=0, max=MOST_EVENTS, help="Most restarts on one path.")] = 0,
    suggestions: Annotated[
        int, typer.Option(min=0, max=MOST_EVENTS, help="Most suggestions of a leader on one path.")
    ] = 0,
    renewals: Annotated[int, typer.Option(min=0, max=MOST_EVENTS, help="Most link resets on one path.")] = 0,
    drops: Annotated[int, typer.Option(min=0, max=MOST_EVENTS, help="Most lost packets on one path (raw links).")] = 0,
    timers: Annotated[int, typer.Option(min=0, max=MOST_EVENTS, help="Most timers that fire on one path.")] = 0,
    max_states: Annotated[int, typer.Option(min=1, help="Most states; a search that reaches it is unknown.")] = 300_000,
    most_each: Annotated[
        int | None, typer.Option("--most-each", min=1, help="Most states of one pattern; a larger one is abandoned.")
    ] = None,
    plan: PlanOption = None,
    links: Annotated[
        str | None, typer.Option(help="fifo, reordering or raw; the weakest claimed if not given.")
    ] = None,
    order: OrderOption = None,
    full: Annotated[bool, typer.Option("--full", help="Every state and every move, nothing reduced.")] = False,
    workers: Annotated[
        int, typer.Option("--workers", min=1, help="Processes that search parts of a scope side by side.")
    ] = 1,
    master: MasterOption = None,
    script: ScriptOption = None,
    json: JsonFlag = False,
) -> None:
    """Visit every interleaving of a small scope: every pattern of destinations, every order of events.

    With --order real-time the first two messages are those of an auditor, who multicasts the second when the first is
    answered, and real-time order (P9) is judged.

    Examples: amcast explore -p skeen   |   amcast explore -p skeen --groups 3 --destinations 0,1/1,2/0,2

    States that differ in the names of replicas or clients alone are one, and moves that commute are tried in one order
    (docs/search.md). A budget of crashes and suggestions is split into parts. With --workers or Spark
    (--master) they are searched side by side, and each may reach --max-states.

    Example, real-time order: amcast explore -p flexcast --order real-time --messages 3

    Example, a change of leaders: amcast explore -p primcast --groups 1 --replicas 3 --messages 1 --suggestions 1
    """
    audits = order == "real-time"
    if audits and messages < 2:
        raise UsageError(f"--messages {messages} with --order real-time; expected 2 or more: an auditor sends two")
    values = planned(plan, protocol_name, groups, replicas, None, None, messages - audits, None, None)
    spec = find_protocol(values["protocol"])
    claims = spec.unreplicated if replicas == 1 and spec.unreplicated else spec.claims
    lay(values, "network.links", links or claims.links)
    # After a crash somebody must ask again, and only clients of nodes do.
    retries = crashes > 0 and "crash" in claims.faults
    lay(values, "nodes", retries or audits)
    lay(values, "heartbeats", not retries and not audits)
    lay(values, "order", order)
    prepared = prepare_run(parse_plan(values, f"plan {plan}" if plan else "flags"))
    budget = Budget(timers, crashes, recoveries, drops, 0, renewals, suggestions)
    every = (list_audits if audits else list_patterns)(prepared.topology.groups, messages)
    chosen = [_parse_pattern(destinations, prepared, messages)] if destinations else list(every)
    with show_progress("states", max_states) as show, _open_runner(workers, master) as run_calls:
        found = search_patterns(prepared, chosen, budget, max_states, not full, show, most_each, audits, run_calls)
    data = _describe_search(prepared, found)
    if found.counterexample is not None:
        case = found.counterexample
        outcome = FuzzOutcome(0, case.status, case.story, list(case.script))
        kept = _write_script(make_script(prepared, outcome, tick_ns=0), script, f"{prepared.spec.name}-explore")
        data["script"] = str(kept)
    if json:
        print_json(data)
    else:
        _print_explored(prepared, found, data)
    raise typer.Exit(EXIT_CODES[found.verdict])


@contextmanager
def _open_runner(workers: int, master: str | None) -> Iterator[RunCalls | None]:
    """Opens what searches parts elsewhere: worker processes, Spark, or (None) nothing."""
    if master is not None:
        require_extra("spark")
        from amcast.pipeline.spark.session import open_session
        from amcast.pipeline.spark.tasks import make_spark_runner

        with open_session(master, brief=True) as spark:
            yield make_spark_runner(spark)
    elif workers > 1:
        with ProcessPoolExecutor(workers, get_context("spawn")) as pool:
            try:
                yield lambda calls: pool.map(_make_call, calls)
            finally:
                pool.shutdown(cancel_futures=True)
    else:
        yield None


def _make_call(call: tuple[Callable[[PartOfSearch], Exploration], tuple[PartOfSearch]]) -> Exploration:
    function, arguments = call
    return function(*arguments)


def _parse_pattern(text: str, prepared: PreparedRun, messages: int) -> tuple[tuple[int, ...], ...]:
    if not re.fullmatch(r"\d+(,\d+)*(/\d+(,\d+)*)*", text):
        raise UsageError(f"--destinations {text!r}; expected groups such as 0,1/1,2 for two messages")
    pattern = tuple(
        prepared.topology.check_destinations(int(group) for group in part.split(",")) for part in text.split("/")
    )
    if len(pattern) != messages:
        raise UsageError(f"--destinations {text!r} is for {len(pattern)} messages; expected --messages {len(pattern)}")
    return pattern


def _describe_search(prepared: PreparedRun, found: SearchResult) -> dict[str, Any]:
    return {
        "protocol": prepared.spec.name,
        "verdict": found.verdict,
        "links": prepared.network.links,
        "patterns_chosen": found.chosen,
        "patterns": found.patterns,
        "patterns_exhausted": found.exhausted,
        "states": found.states,
        "transitions": found.transitions,
        "deepest": found.deepest,
        "endings": found.endings,
        "goals": found.goals,
        "limits": found.limits,
        "terminal_states_with_timers_left": found.unspent,
        "parts": found.parts,
        "parts_that_are_symmetric_to_others": found.mapped_parts,
        "symmetries": found.symmetries,
        "states_where_some_moves_stood_for_all": found.chosen_states,
        "states_expanded_again": found.expanded_again,
        "steps_of_single_processes": found.steps,
        "probability_of_omission": found.omission,
        "failed_pattern": found.failed,
        "story": found.counterexample.story if found.counterexample else None,
        "steps": len(found.counterexample.script) if found.counterexample else None,
    }


def _print_explored(prepared: PreparedRun, found: SearchResult, data: dict[str, Any]) -> None:
    out.print(
        f"{data['protocol']} on {data['links']} links: {colour_verdict(found.verdict)}; {found.exhausted} of"
        f" {found.chosen} patterns exhausted ({found.share:.1%}), {found.states} states, {found.transitions}"
        f" transitions, {found.deepest} steps deep, {found.endings} different endings"
    )
    reduction = f"{found.chosen_states} states tried some moves for all, {found.expanded_again} of them again with more"
    mapped = f", {found.mapped_parts} more are symmetric to these" if found.mapped_parts else ""
    out.print(
        f"{found.parts} parts{mapped}; {found.symmetries} symmetries; {reduction};"
        f" a state was overlooked with a probability of at most {found.omission:.0e}",
        highlight=False,
    )
    shown = found.limits if len(found.limits) <= 5 else [*found.limits[:4], found.limits[-1]]
    for limit in shown:
        out.print(limit, markup=False)
    if found.unspent:
        out.print(f"{found.unspent} end states had timers left that the budget (--timers) did not let run out")
    for goal in found.missed_goals:
        out.print(f"goal {goal!r} was never reached: this scope is too small to trust")
    if found.counterexample is not None:
        out.print(f"{found.counterexample.status} after {data['steps']} steps:", markup=False)
        kept = read_script(data["script"])
        judged = make_judge(prepared, 0)
        for line in narrate(
            kept, prepared.make, prepared.spec.claims, judged, prepared.node_bodies, prepared.monitoring
        ):
            out.print(f"  {line}", markup=False)
    _print_next(data)


def replay(
    script: ScriptArgument,
    quiet: Annotated[bool, typer.Option("--quiet", help="Print only the verdict.")] = False,
    json: JsonFlag = False,
) -> None:
    """Replay a script step by step, and narrate it.

    Example: amcast replay runs/skeen-fuzz-17.script
    """
    kept = read_script(script)
    prepared = prepare_script(kept, str(script))
    tell = None if quiet or json else lambda line: out.print(line, markup=False)
    result = play(
        kept,
        prepared.make,
        prepared.spec.claims,
        make_judge(prepared, kept.seed or 0),
        tell=tell,
        node_bodies=prepared.node_bodies,
        monitoring=prepared.monitoring,
    )
    verdict = "holds" if result.status == "holds" else "violated"
    if json:
        data = {"verdict": verdict, "status": result.status, "story": result.story, "steps": len(result.actions)}
        print_json({"protocol": kept.protocol, **data, "expected": kept.status})
    elif quiet:
        out.print(f"{result.status}: {result.story}" if result.story else result.status, markup=False)
    raise typer.Exit(EXIT_CODES[verdict])


def shrink(
    script: ScriptArgument,
    target: Annotated[Path | None, typer.Option("--out", help="The file for the shrunk script.")] = None,
    json: JsonFlag = False,
) -> None:
    """Shrink a failing script to a minimal one that fails in the same way.

    Example: amcast shrink runs/skeen-fuzz-17.script
    """
    kept = read_script(script)
    prepared = prepare_script(kept, str(script))
    with show_progress("runs") as show:
        small = make_small(
            kept,
            prepared.make,
            prepared.spec.claims,
            make_judge(prepared, kept.seed or 0),
            lambda runs, steps: show(runs),
            node_bodies=prepared.node_bodies,
            monitoring=prepared.monitoring,
        )
    target = _write_script(small.script, target or script.with_suffix(".small.script"), "")
    data = {
        "protocol": kept.protocol,
        "status": small.script.status,
        "story": small.script.story,
        "steps_before": len(kept.actions),
        "steps": len(small.script.actions),
        "runs": small.runs,
        "limit": small.limit,
        "script": str(target),
    }
    if json:
        print_json(data)
        return
    out.print(f"{data['steps_before']} steps became {data['steps']} in {small.runs} runs; the small one is in {target}")
    if small.limit:
        out.print(small.limit, markup=False)
    judged = make_judge(prepared, kept.seed or 0)
    for line in narrate(
        small.script, prepared.make, prepared.spec.claims, judged, prepared.node_bodies, prepared.monitoring
    ):
        out.print(f"  {line}", markup=False)
    out.print(f"replay it:  amcast replay {target}", markup=False)
