"""A plan that ships with amcast runs to its end and holds."""

from amcast.lab.runs import prepare_run
from amcast.simulation.inputs.plan import parse_plan, read_plan
from tests import ROOT
from tests.conformance.test_worlds import hold


def test_plan_of_live_events_holds() -> None:
    hold(prepare_run(parse_plan(read_plan(ROOT / "plans" / "live-events.toml"))))
