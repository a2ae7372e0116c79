"""One plan, simulated and live over emulated lines, has the same latencies."""

from pathlib import Path

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.simulated_vs_live import Latencies, compare_worlds
from amcast.simulation.inputs.plan import parse_plan, read_plan
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


def test_incomparable_plan_is_refused(tmp_path: Path) -> None:
    for text, expected in (
        ({"network": {"links": "reordering"}, "protocol": "skeen"}, "live links are in order"),
        ({"faults": {"profile": "crash"}, "protocol": "primcast"}, "a comparison has none"),
        ({"network": {"distribution": "exponential"}, "protocol": "primcast"}, "expected constant or normal"),
    ):
        with pytest.raises(UsageError, match=expected):
            compare_worlds(parse_plan({"workload": {"name": "micro", "messages": 4}, **text}), tmp_path)
