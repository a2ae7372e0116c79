"""Ring Paxos: the same log, but proposals travel round a ring of members and collect votes on the way.

    leader -> next -> next -> ... -> leader         Pass, with the value, until everybody has it;
                                                    who holds it with a majority of votes knows that it is decided,
    and says so further round the ring              Pass without value, for those that voted before the majority

Source: Marandi, Primi, Schiper, Pedone, "Ring Paxos" (2010), as used by paper 004 (URingPaxos, section 3.3).

Each process sends each value once, so no link carries more than another: made for throughput, not for latency. A ring
breaks with any of its members. Then nothing comes back in time, and the leader falls back to plain Paxos for what is
open (the timer of `Paxos` proposes it again to everybody): a broken ring costs time, never safety. Everything else
(ballots, promises, recovery, teaching) is inherited.
"""

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import RingAccept, Value, Voted
from amcast.parts.consensus.paxos import Paxos, message_ids


class RingPaxos(Paxos):
    """One member's share in a group's log, over a ring in the order of the group's members."""

    def receive(self, sender: ProcessId, body: Body) -> Decided:
        if type(body) is RingAccept:
            return self._pass(body)
        return super().receive(sender, body)

    def _propose(self, instance: int, value: Value) -> None:
        slot = self._slot(instance)
        slot.ballot = self.ballot
        slot.value = value
        self.owner.send(
            self.owner.me, RingAccept(self.ballot, instance, value, 0, len(self.members)), message_ids((value,))
        )

    def _pass(self, body: RingAccept) -> Decided:
        """Vote, learn, hand on. A member that refuses or has no vote hands on what it got: it is still a link."""
        votes = body.votes
        if (
            self._voting()
            and body.ballot >= self.promised
            and body.instance >= self.log.decided_until
            and body.remaining > 0
        ):
            self._promise_to(body.ballot)
            self._votes[body.instance] = (body.ballot, body.value)
            self.owner.persist(Voted(body.ballot, body.instance, body.value))
            votes |= 1 << self.place
        decided: Decided = []
        if not self.log.is_decided(body.instance):
            slot = self._slot(body.instance)
            if body.remaining > 0 and body.ballot >= slot.ballot:
                slot.ballot = body.ballot
                slot.value = body.value
            for place in range(len(self.members)):
                if votes >> place & 1:
                    slot.tally.count(body.ballot, place)
            decided = self._judge(body.instance, slot)
        self._hand_on(body, votes)
        return decided

    def _hand_on(self, body: RingAccept, votes: int) -> None:
        """To the next member: the value on the first lap, the votes alone on the second, until all know them."""
        left = body.remaining - 1
        if left <= -len(self.members) + 1:
            return
        value = body.value if left > 0 else ()
        target = self.members[(self.place + 1) % len(self.members)]
        self.owner.send(target, RingAccept(body.ballot, body.instance, value, votes, left), message_ids((body.value,)))
