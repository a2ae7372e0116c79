"""The read index: a read waits for everything that a majority of the group has accepted."""

from amcast.kernel.effects import Effect, ReadReady, Send
from amcast.kernel.ids import MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.kernel.process import Accepted, Process
from amcast.kernel.topology import Topology
from amcast.parts.node.messages import AcceptedReport, AcceptedRequest
from amcast.parts.node.read_index import ReadIndex

MEMBERS = (0, 1, 2)


class Member(Process):
    """A member of a group of three whose deliveries the test sets."""

    def __init__(self) -> None:
        super().__init__(0, Topology.grid(1, 3))
        self.statement: Accepted | None = Accepted(0, 0, (), 0)
        self.done: set[MessageId] = set()
        self.index = ReadIndex(self, (1, 1), lambda: self.statement, self.done.__contains__)

    def finish(self) -> list[Effect]:
        """The effects of a step, without timers."""
        effects, self._outbox = self._outbox + self.index.finish_step(MEMBERS, 2), []
        return [effect for effect in effects if isinstance(effect, Send | ReadReady)]

    def report(
        self, sender: ProcessId, round: int, position: int, *messages: MessageId, configuration: int = 0
    ) -> None:
        self.index.handle_report(sender, AcceptedReport(round, configuration, position, messages))

    def on_request(self, message: Message) -> None:
        raise AssertionError

    def on_receive(self, sender: ProcessId, body: Body) -> None:
        raise AssertionError

    def snapshot(self) -> State:
        raise AssertionError

    def restore(self, state: State) -> None:
        raise AssertionError


def ask(round: int) -> Send:
    return Send((1, 2), AcceptedRequest(round))


def test_a_read_waits_for_what_another_member_has_accepted_and_delivered() -> None:
    member = Member()
    member.index.add(5)
    assert member.finish() == [ask(1)]
    assert member.finish() == [], "one member is no majority"
    member.report(2, 1, 1, 70, 80)
    assert member.finish() == []
    member.done.update((70, 80))
    assert member.finish() == [], "another message was delivered before"
    member.statement = Accepted(0, 1, (), 1)
    assert member.finish() == [ReadReady(5)]
    assert not member.index.is_active


def test_reads_that_come_while_a_round_asks_are_served_by_the_next() -> None:
    member = Member()
    member.index.add(1)
    assert member.finish() == [ask(1)]
    member.index.add(2)
    assert member.finish() == [], "what answers the first read may have been said before the second began"
    member.report(1, 1, 0)
    assert member.finish() == [ask(2), ReadReady(1)]
    member.report(1, 1, 0)
    assert member.finish() == [], "a report of an earlier round"
    member.report(1, 2, 0)
    assert member.finish() == [ReadReady(2)]


def test_members_of_another_configuration_and_without_state_do_not_count() -> None:
    member = Member()
    member.index.add(1)
    member.finish()
    member.report(1, 1, 0, configuration=1)
    assert member.finish() == []
    member.statement = None
    member.report(2, 1, 0)
    assert member.finish() == []
    member.index.handle_request(1, AcceptedRequest(3))
    assert member.finish() == [], "it states nothing"


def test_a_read_that_waits_for_a_message_that_was_lost_asks_anew() -> None:
    member = Member()
    member.index.add(1)
    member.finish()
    member.report(1, 1, 0, 70)
    assert member.finish() == []
    member.index.expire_timer()
    assert member.finish() == [ask(2)]
    member.report(1, 2, 0)
    assert member.finish() == [ReadReady(1)]


def test_a_lagging_member_does_not_take_what_its_group_has_for_its_own() -> None:
    member = Member()
    member.statement = Accepted(0, 4, (), 2)
    member.index.add(1)
    member.finish()
    member.report(1, 1, 3)
    assert member.finish() == [], "the group is at position 4, this member at 2"
    member.statement = Accepted(0, 4, (), 4)
    assert member.finish() == [ReadReady(1)]
