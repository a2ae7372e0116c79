"""Every planted bug of the gate."""

from typing import Final

from tests.mutants.gate import admission, comparison, leader_groups, membership, paxos, reads, real_time, storage
from tests.mutants.gate.bug import Bug

BUGS: Final[dict[str, Bug]] = {
    bug.name: bug
    for bug in (
        *paxos.BUGS,
        *leader_groups.BUGS,
        *storage.BUGS,
        *admission.BUGS,
        *comparison.BUGS,
        *membership.BUGS,
        *reads.BUGS,
        *real_time.BUGS,
    )
}
