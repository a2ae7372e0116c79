"""Every planted violation is found, in the right properties and in no other."""

import json

import pytest

from amcast.check import judge
from amcast.check.verdict import PROPERTY_NAMES
from tests.mutants.planted import HEALTHY, MUTANTS, UNKNOWN, Planted, make_trace


def names(case: Planted) -> str:
    return case.name


def found(case: Planted, verdict: str) -> set[str]:
    report = judge(make_trace(case).run())
    return {name for name, finding in report.properties.items() if finding.verdict == verdict}


def test_every_property_has_a_mutant_and_an_unknown_case() -> None:
    assert {name for case in MUTANTS for name in case.properties} == set(PROPERTY_NAMES)
    assert {name for case in UNKNOWN for name in case.properties} == set(PROPERTY_NAMES)
    assert len(MUTANTS) >= 16


@pytest.mark.parametrize("case", MUTANTS, ids=names)
def test_mutant_violates_the_named_properties_only(case: Planted) -> None:
    report = judge(make_trace(case).run())
    violated = {name for name, finding in report.properties.items() if finding.verdict == "violated"}
    assert violated == case.properties, list(report.story())
    assert report.verdict == "violated"
    assert report.exit_code == 1
    for name in violated:
        finding = report.properties[name]
        assert finding.story
        assert finding.witness
        assert finding.checked["violated"] >= 1


@pytest.mark.parametrize("case", UNKNOWN, ids=names)
def test_incomplete_evidence_is_unknown(case: Planted) -> None:
    report = judge(make_trace(case).run())
    unknown = {name for name, finding in report.properties.items() if finding.verdict == "unknown"}
    assert unknown == case.properties, list(report.story())
    assert "violated" not in {finding.verdict for finding in report.properties.values()}
    assert report.verdict == "unknown"
    assert report.exit_code == 2
    assert all(report.properties[name].story for name in unknown)


@pytest.mark.parametrize("case", HEALTHY, ids=names)
def test_healthy_trace_holds(case: Planted) -> None:
    report = judge(make_trace(case).run())
    assert report.verdict == "holds", list(report.story())
    assert report.exit_code == 0
    for finding in report.properties.values():
        assert finding.verdict == "holds" or not finding.claimed


@pytest.mark.parametrize("case", [*MUTANTS, *UNKNOWN, *HEALTHY], ids=names)
def test_report_is_json(case: Planted) -> None:
    report = judge(make_trace(case).run())
    plain = json.loads(json.dumps(report.as_dict()))
    assert plain["verdict"] == report.verdict
    assert list(plain["properties"]) == list(PROPERTY_NAMES)
    assert {found["verdict"] for found in plain["properties"].values()} <= {"holds", "violated", "unknown"}
