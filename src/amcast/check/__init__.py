"""The properties of atomic multicast, checked in plain Python on one run: a verdict for each, and a story for a
violation.

`judge(run)` checks a whole run; `check_chains(...)` is for searches that check after every step. docs/MODEL.md has the
definitions and the proofs.
"""

from amcast.check.incremental import check_chains
from amcast.check.judge import judge
from amcast.check.verdict import Finding, Report, Verdict

__all__ = ["Finding", "Report", "Verdict", "check_chains", "judge"]
