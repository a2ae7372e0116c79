"""Judges one run: every property, in plain Python."""

from collections.abc import Sequence

from amcast.check.evidence import collect_evidence
from amcast.check.genuineness import check_genuineness
from amcast.check.integrity import check_agreement, check_integrity, check_validity
from amcast.check.order import check_order
from amcast.check.sessions import check_sessions
from amcast.check.verdict import Finding, Report
from amcast.trace.meta import Meta
from amcast.trace.run import Run

__all__ = ["Report", "build_report", "judge"]


def judge(run: Run) -> Report:
    """Judges every property of one run."""
    evidence = collect_evidence(run)
    findings = [check_integrity(evidence), check_validity(evidence), check_agreement(evidence)]
    prefix, acyclic, real_time = check_order(evidence)
    findings += [prefix, acyclic, *check_genuineness(evidence), *check_sessions(evidence), real_time]
    return build_report(run.meta, findings)


def build_report(meta: Meta, findings: Sequence[Finding]) -> Report:
    """Builds the report of a run. P1 to P5 define atomic multicast; P6 to P9 decide only where the run claims them."""
    claims = meta.claims
    unclaimed = {
        "P6": claims.genuine == "no",
        "P6'": claims.genuine != "strict",
        "P7": not claims.fifo,
        "P8": not claims.exactly_once,
        "P9": not claims.real_time,
    }
    for finding in findings:
        finding.claimed = not unclaimed.get(finding.property, False)
    return Report(meta, {finding.property: finding for finding in findings})
