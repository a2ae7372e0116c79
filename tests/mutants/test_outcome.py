"""A mutant that raises an error of its own is not caught: it no longer fits its protocol."""

from dataclasses import replace

import pytest

from amcast.kernel.message import Message
from amcast.lab.runs import fuzz_seed, prepare_run
from amcast.protocols.primcast.process import SPEC, PrimCast
from amcast.simulation.inputs.plan import parse_plan
from amcast.simulation.schedulers.fuzz import FuzzOutcome
from tests.mutants.outcome import is_caught


class OutOfDate(PrimCast):
    """Calls a method with an argument too many."""

    def on_request(self, message: Message) -> None:
        super().on_request(message, None)  # type: ignore[call-arg]


class ViolatesAssertion(PrimCast):
    """Violates an assertion, as the protocol's own would be."""

    def on_request(self, message: Message) -> None:
        raise AssertionError("planted")


def fuzz(kind: type[PrimCast]) -> FuzzOutcome:
    plan = {"protocol": "primcast", "topology": {"groups": 1, "replicas": 1, "clients": 1}, "workload": {"messages": 2}}
    return fuzz_seed(prepare_run(parse_plan(plan), replace(SPEC, process=kind)), 0)


def test_mutant_that_raises_a_type_error_is_refused() -> None:
    with pytest.raises(AssertionError, match=r"raises instead of misbehaving: .*TypeError"):
        is_caught(fuzz(OutOfDate))


def test_violated_assertion_counts() -> None:
    assert is_caught(fuzz(ViolatesAssertion))
    assert not is_caught(fuzz(PrimCast))
