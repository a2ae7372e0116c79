"""Scripts of failing runs. The first line of a script carries the plan, from which the same processes are built
again."""

from amcast.kernel.errors import UsageError
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.plan import describe_plan, parse_plan
from amcast.simulation.schedulers.fuzz import FuzzOutcome
from amcast.simulation.schedulers.pending_actions import TICK_NS
from amcast.simulation.schedulers.script import Script


def make_script(prepared: PreparedRun, outcome: FuzzOutcome, tick_ns: int = TICK_NS) -> Script:
    """The script of a fuzzed run of this plan."""
    return Script(
        protocol=prepared.plan.protocol,
        topology=prepared.whole_topology,
        absent=tuple(sorted(prepared.absent)),
        operator=prepared.operator,
        actions=outcome.script,
        plan=describe_plan(prepared.plan),
        links=prepared.network.links,
        tick_ns=tick_ns,
        seed=outcome.seed,
        status=outcome.status,
        story=outcome.story,
        storage=outcome.storage,
    )


def prepare_script(script: Script, where: str) -> PreparedRun:
    """Prepares the plan that a script was made from."""
    values = script.plan or {"protocol": script.protocol, "options": script.options}
    prepared = prepare_run(parse_plan(values, f"{where}: plan"))
    if script.plan and prepared.whole_topology != script.topology:
        raise UsageError(f"{where}: topology differs from the one of its plan; expected the same")
    return prepared
