"""PrimCast with `records = false`: nothing is persisted, and a restarted process has lost its memory."""

import pytest

from amcast.kernel.effects import Persist, Send
from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.simulation.inputs.plan import parse_plan
from tests.protocols.gateway_stage import GatewayStage


@pytest.mark.parametrize("seed", range(40))
def test_crashes_are_survived_without_records(seed: int) -> None:
    plan = {
        "protocol": "primcast",
        "options": {"records": False, "keep": 3},
        "gateways": bool(seed % 2),
        "nodes": True,
        "topology": {"groups": 2, "replicas": 3, "clients": 4},
        "workload": {"messages": 16, "outstanding": 2},
        "faults": {"profile": "crash"},
    }
    outcome = fuzz_seed(prepare_run(parse_plan(plan)), seed)
    assert outcome.status == "holds", f"seed {seed}: {outcome.story}"


def test_own_acknowledgement_counts_in_the_same_step_without_records() -> None:
    stage = GatewayStage(records=False)
    first = stage.multicast(1, 0, 1)
    stage.finish()
    stage.check()
    assert first in stage.world.history[5]
    assert not any(isinstance(effect, Persist) for _, effect in stage.effects)
    assert not any(process in effect.targets for process, effect in stage.effects if isinstance(effect, Send))


def test_restarted_process_joins_again_without_records() -> None:
    stage = GatewayStage(records=False)
    stage.multicast(1, 0, 1)
    stage.finish()
    stage.crash(1)
    stage.recover(1)
    stage.multicast(0, 0, 1)
    stage.finish()
    stage.check()
    stage.step_until(lambda: len(stage.world.history[1]) == 2, limit=2000)
