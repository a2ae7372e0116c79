"""A run measured in buckets by many calls has the tables of the same run measured whole."""

from pathlib import Path

import pytest

from amcast.kernel.errors import UsageError
from amcast.pipeline.measure.small_run import MeasureSetting
from tests.pipeline.check.other_ways import find_different_measures, measure_both
from tests.pipeline.check.trace_generator import make_trace


@pytest.mark.parametrize("setting", [MeasureSetting(0.1, None, True), MeasureSetting(0.0, [3, 0, 6], False)])
def test_buckets_add_up_to_the_whole_run(setting: MeasureSetting, tmp_path: Path) -> None:
    """Of generated traces: well formed, damaged, absurd, with repeated rows and lost ones."""
    compared = 0
    for seed in range(14):
        make_trace(seed).write(tmp_path / str(seed))
        try:
            whole, large = measure_both(tmp_path / str(seed), setting)
        except UsageError:
            continue
        compared += 1
        assert find_different_measures(whole, large) is None, seed
    assert compared > 7
