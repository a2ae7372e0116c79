"""A node with planted bugs, each of which another judge of a torture must find.

GROUP/1 executes some neighbouring deliveries in the wrong order
all nodes answer some requests of clients without ordering them
all nodes give a reader an earlier delivery in the place of another, once
"""

import sys
from collections.abc import Sequence
from pathlib import Path

from amcast.kernel.effects import Effect, Send
from amcast.kernel.events import Event, Requests
from amcast.kernel.message import Message
from amcast.lab.torture import ledger
from amcast.live.host.recent_deliveries import RecentDeliveries
from amcast.live.server.application import Application
from amcast.parts.client.messages import Done
from amcast.parts.node.node import Node

EVERY = 20


def execute_in_wrong_order() -> None:
    call, held = Application._call_application, []  # type: ignore[var-annotated]

    def call_in_wrong_order(self: Application, position: int, message: Message) -> None:
        if position % EVERY == 0:
            held.append((position, message))
            return
        call(self, position, message)
        while held:
            call(self, *held.pop())

    Application._call_application = call_in_wrong_order  # type: ignore[method-assign]


def answer_without_ordering() -> None:
    step = Node.step

    def answer(self: Node, events: Sequence[Event], now: int) -> list[Effect]:
        lies: list[Effect] = []
        ordered: list[Event] = []
        for event in events:
            if isinstance(event, Requests):
                drawn = [message for message in event.messages if message.id % EVERY == 0]
                lies += [Send((message.sender,), Done((message.id,)), message.id) for message in drawn]
                event = Requests([message for message in event.messages if message not in drawn])
            ordered.append(event)
        return lies + step(self, ordered, now)

    Node.step = answer  # type: ignore[method-assign]


def repeat_to_readers() -> None:
    read, done = RecentDeliveries.read_from, []  # type: ignore[var-annotated]

    def read_and_repeat(
        self: RecentDeliveries, position: int, limit_bytes: int, end: int | None = None
    ) -> list[Message]:
        messages = read(self, position, limit_bytes, end)
        if messages and position > self.first and not done:
            done.append(position)
            messages[0] = read(self, position - 1, limit_bytes, end)[0]
        return messages

    RecentDeliveries.read_from = read_and_repeat  # type: ignore[method-assign]


if __name__ == "__main__":
    answer_without_ordering()
    repeat_to_readers()
    if sys.argv[2].endswith("/1"):
        execute_in_wrong_order()
    sys.exit(ledger.main(Path(sys.argv[1]), sys.argv[2]))
