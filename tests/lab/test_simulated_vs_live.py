"""One plan, simulated and live over emulated lines, has the same latencies."""

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.runs import prepare_run
from amcast.lab.simulated_vs_live import Latencies, compare_worlds
from amcast.simulation.inputs.plan import parse_plan, read_plan
from amcast.simulation.simulate import Simulation
from amcast.trace.recorder import Recorder
from tests import ROOT

MS = 1_000_000


@pytest.mark.live
@pytest.mark.slow
def test_simulated_and_live_latencies_agree(tmp_path: Path) -> None:
    """Medians agree within 5 %. Other programs may disturb a run, so one of three suffices."""
    values = read_plan(ROOT / "plans" / "wan-compare.toml")
    values["topology"] = {"groups": 2, "replicas": 3, "clients": 2}
    values["network"] = {"delay_ns": 200 * MS}
    values["workload"]["messages"] = 8
    attempts: list[tuple[Latencies, Latencies]] = []
    for attempt in range(3):
        both = compare_worlds(parse_plan(values), tmp_path / str(attempt))
        attempts.append((both.simulated, both.live))
        assert both.live.messages == both.simulated.messages == 8
        if both.agrees(0.05):
            return
    pytest.fail(f"no agreement: {attempts}")


def test_clients_have_equal_shares_however_long_they_wait() -> None:
    """The client beside the leaders is answered three times as soon; it sends no more than the others."""
    values = read_plan(ROOT / "plans" / "wan-compare.toml")
    prepared = prepare_run(parse_plan({**values, "workload": {"name": "micro", "messages": 32}}))
    counts = []
    for setup in (prepared.make_setup(), replace(prepared.make_setup(), equal_shares=True)):
        recorder = Recorder()
        Simulation(setup, recorder).run()
        counts.append(sorted(Counter(row[1] for row in recorder.multicasts).values()))
    assert counts[0][0] < 10 < counts[0][-1]
    assert counts[1] == [10, 11, 11]


def test_incomparable_plan_is_refused(tmp_path: Path) -> None:
    for text, expected in (
        ({"network": {"links": "reordering"}, "protocol": "skeen"}, "live links are in order"),
        ({"faults": {"profile": "crash"}, "protocol": "primcast"}, "a comparison has none"),
        ({"network": {"distribution": "exponential"}, "protocol": "primcast"}, "expected constant or normal"),
    ):
        with pytest.raises(UsageError, match=expected):
            compare_worlds(parse_plan({"workload": {"name": "micro", "messages": 4}, **text}), tmp_path)
