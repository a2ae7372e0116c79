"""Ring Paxos: the same log, with proposals that travel round a ring of members and collect votes on the way.

    leader -> next -> next -> ... -> leader         RingAccept with the value, until every member has it; a member
                                                    that sees a majority of votes knows that the value is decided
           -> next -> ... -> last                   RingAccept without the value, for members that voted before that

Source: Marandi, Primi, Schiper, Pedone, "Ring Paxos" (2010), as used by paper 004 (URingPaxos, section 3.3).

Each process sends each value once, so no link carries more than another: made for throughput, not for latency. A ring
breaks with any of its members. Then the votes do not come back in time, and the leader falls back to plain Paxos for
the undecided instances (the timer of `Paxos` proposes them again to every member): a broken ring costs time, never
safety. If a member before the break teaches the leader instead, the leader does not propose again, and members that the
ring did not reach know nothing of the instance: it tells them how far it is. Ballots, promises, recovery and catching
up are inherited.
"""

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body
from amcast.parts.consensus.log import Decided
from amcast.parts.consensus.messages import Install, Learn, RingAccept, Value, Voted
from amcast.parts.consensus.paxos import Paxos, message_ids


class RingPaxos(Paxos):
    """One member's part in a group's log, over a ring in the order of the group's members."""

    def receive(self, sender: ProcessId, body: Body) -> Decided:
        if type(body) is RingAccept:
            return self._handle_ring_accept(body)
        decided = super().receive(sender, body)
        if decided and self.role == "leading" and type(body) in (Learn, Install):
            for member in self.catch_up_peers:
                self.log.send_status(member)
        return decided

    def _propose(self, instance: int, value: Value) -> None:
        slot = self._slot(instance)
        slot.ballot = self.ballot
        slot.value = value
        self.owner.send(
            self.owner.me, RingAccept(self.ballot, instance, value, 0, len(self.members)), message_ids((value,))
        )

    def _handle_ring_accept(self, body: RingAccept) -> Decided:
        """Votes, learns and forwards. A member that refuses or has no vote forwards too, as part of the ring."""
        votes = body.votes
        if (
            self._can_vote()
            and body.ballot >= self.promised
            and body.instance >= self.log.decided_until
            and body.remaining > 0
        ):
            self._raise_promise(body.ballot)
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
            decided = self._decide_if_quorum(body.instance, slot)
        self._forward(body, votes)
        return decided

    def _forward(self, body: RingAccept, votes: int) -> None:
        """Sends the value on the first lap, and the votes alone on the second, until every member has them."""
        left = body.remaining - 1
        if left <= -len(self.members) + 1:
            return
        value = body.value if left > 0 else ()
        target = self.members[(self.place + 1) % len(self.members)]
        self.owner.send(target, RingAccept(body.ballot, body.instance, value, votes, left), message_ids((body.value,)))
