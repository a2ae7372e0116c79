"""The whole judgement of one run."""

from amcast.check.evidence import evidence_of
from amcast.check.genuineness import genuineness
from amcast.check.integrity import agreement, integrity, validity
from amcast.check.order import order
from amcast.check.sessions import sessions
from amcast.check.verdict import Report
from amcast.trace.run import Run

__all__ = ["Report", "judge"]


def judge(run: Run) -> Report:
    """Every property's verdict. P1 to P5 are what atomic multicast is; the rest counts where the run claims it."""
    evidence = evidence_of(run)
    findings = [integrity(evidence), validity(evidence), agreement(evidence)]
    findings += [*order(evidence), *genuineness(evidence), *sessions(evidence)]
    claims = run.meta.claims
    unclaimed = {
        "P6": claims.genuine == "no",
        "P6'": claims.genuine != "strict",
        "P7": not claims.fifo,
        "P8": not claims.exactly_once,
    }
    for finding in findings:
        finding.claimed = not unclaimed.get(finding.property, False)
    return Report(run.meta, {finding.property: finding for finding in findings})
