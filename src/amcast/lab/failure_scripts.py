"""Scripts of failing runs: everything that is needed to build the same processes again travels in the first line."""

from amcast.kernel.errors import UsageError
from amcast.lab.runs import PreparedRun, prepare_run
from amcast.simulation.inputs.plan import describe_plan, parse_plan
from amcast.simulation.schedulers.fuzz import FuzzOutcome
from amcast.simulation.schedulers.pending_actions import TICK_NS
from amcast.simulation.schedulers.script import Script


def make_script(prepared: PreparedRun, outcome: FuzzOutcome, tick_ns: int = TICK_NS) -> Script:
    """The script of an outcome of this plan."""
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
    )


def prepare_script(script: Script, where: str) -> PreparedRun:
    """The plan that a script was made from, prepared anew."""
    values = script.plan or {"protocol": script.protocol, "options": script.options}
    prepared = prepare_run(parse_plan(values, f"{where}: plan"))
    if script.plan and prepared.whole_topology != script.topology:
        raise UsageError(f"{where}: topology differs from the one of its plan; expected the same")
    return prepared
