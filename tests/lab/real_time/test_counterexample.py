"""Every protocol that does not claim real-time order has a counterexample in docs/real-time, which replays."""

from pathlib import Path

import pytest

from amcast.kernel.errors import UsageError
from amcast.lab.real_time.counterexample import draw_cycle, read_counterexample, tell_cycle
from amcast.protocols.catalogue import CATALOGUE
from tests import ROOT

FOLDER = ROOT / "docs" / "real-time"
SEARCHED = frozenset({"ring"})
"""Protocols for which fuzzing under faults broke real-time order, and no schedule of delays is known that does."""
LACKING = sorted(name for name, spec in CATALOGUE.items() if not spec.claims.real_time and name not in SEARCHED)


def test_every_protocol_without_real_time_order_has_a_counterexample() -> None:
    assert sorted(file.stem for file in FOLDER.glob("*.json")) == LACKING


@pytest.mark.parametrize("name", LACKING)
def test_counterexample_breaks_real_time_order_and_nothing_else(name: str) -> None:
    run, report = read_counterexample(FOLDER / f"{name}.json").judge()
    violated = {property for property, finding in report.properties.items() if finding.verdict == "violated"}
    claimed = {property for property in violated if report.properties[property].claimed}
    assert claimed == {"P9"}, list(report.story())
    assert violated <= {"P6", "P6'", "P9"}
    assert report.meta.claims.complete
    assert (FOLDER / f"{name}.txt").read_text().splitlines() == list(tell_cycle(run, report))
    assert (FOLDER / f"{name}.svg").read_text() == draw_cycle(run, report)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (None, "No such file or directory; expected a file that amcast worst --real-time wrote"),
        ("{", "no schedule; expected a file that amcast worst --real-time wrote"),
        ("[]", "no schedule; expected a file that amcast worst --real-time wrote"),
        ('{"protocol": "skeen", "groups": 2}', "no schedule; expected a file that amcast worst --real-time wrote"),
        ('{"protocol": "paxos"}', "protocol 'paxos'"),
    ],
)
def test_file_that_is_no_schedule_is_refused(tmp_path: Path, content: str | None, sentence: str) -> None:
    file = tmp_path / "schedule.json"
    if content is not None:
        file.write_text(content)
    with pytest.raises(UsageError, match=sentence):
        read_counterexample(file)
