"""Scripts of failing runs: everything that is needed to build the same processes again travels in the first line."""

from amcast.kernel.errors import UsageError
from amcast.lab.runs import Prepared, prepare
from amcast.simulation.inputs.plan import described, plan_of
from amcast.simulation.schedulers.fuzz import Outcome
from amcast.simulation.schedulers.pending_actions import TICK_NS
from amcast.simulation.schedulers.script import Script


def script_of(prepared: Prepared, outcome: Outcome, tick_ns: int = TICK_NS) -> Script:
    """The script of an outcome of this plan."""
    return Script(
        protocol=prepared.plan.protocol,
        topology=prepared.everybody,
        absent=tuple(sorted(prepared.absent)),
        operator=prepared.operator,
        actions=outcome.script,
        plan=described(prepared.plan),
        links=prepared.network.links,
        tick_ns=tick_ns,
        seed=outcome.seed,
        status=outcome.status,
        story=outcome.story,
    )


def prepared_for(script: Script, where: str) -> Prepared:
    """The plan that a script was made from, prepared anew."""
    values = script.plan or {"protocol": script.protocol, "options": script.options}
    prepared = prepare(plan_of(values, f"{where}: plan"))
    if script.plan and prepared.everybody != script.topology:
        raise UsageError(f"{where}: topology differs from the one of its plan; expected the same")
    return prepared
