"""Random plays of one application on one replica: deliveries, snapshots in their place, states of other members that
are ahead of the replica, states of its own, crashes between any two of them. Behind any state it receives each position
once, in order, and the message that the group ordered there."""

import asyncio
import random
import shutil
from contextlib import suppress
from pathlib import Path

import pytest

from amcast.kernel.effects import Deliver
from amcast.kernel.errors import CannotTellError
from amcast.kernel.message import Message
from amcast.kernel.topology import Topology
from amcast.live.client_batch import Delivery, encode_batch
from amcast.live.server.application import Application
from amcast.live.server.journal import Journal
from amcast.live.server.state_schedule import StateSchedule
from amcast.live.storage.state_files import StateFile, write_state
from tests.live.cluster import run

GROUP = Topology.grid(1, 3)


def copy_folder(source: Path, target: Path) -> None:
    """Copies the files of one moment, although a thread may rename and remove some meanwhile."""
    while True:
        with suppress(OSError):
            files = sorted(source.rglob("*"))
            shutil.copytree(source, target)
            if sorted(source.rglob("*")) == files:
                return
        shutil.rmtree(target, ignore_errors=True)


class Program:
    """Counts its deliveries, and fails when one is not the message of its position."""

    def __init__(self) -> None:
        self.count = 0

    def enter(self, delivery: Delivery) -> None:
        found = (delivery.position, delivery.payload)
        assert found == (self.count, b"%d" % self.count), f"after {self.count} deliveries came {found}"
        self.count += 1

    def take(self) -> bytes:
        return b"%d" % self.count

    def install(self, state: bytes, position: int) -> None:
        assert state == b"%d" % position, f"the state of position {position} contains {state!r}"
        self.count = position


class Play:
    """The group has ordered message i at position i. The replica has delivered `delivered`; its log repeats deliveries
    from `log_first` on after a crash. It takes the part of the host, the follower and the RPC client."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.only_closed = self.random.random() < 0.3
        self.topology = GROUP
        self.delivered = self.log_first = self.closed = 0
        self.ordered = 0
        """How many messages the furthest other member has delivered."""
        self.failures: list[Exception] = []
        self._folder = folder
        self._starts = 0
        self._start()

    # What an application calls

    def fail(self, error: Exception) -> None:
        self.failures.append(error)

    def enqueue(self, event: object) -> None:
        raise AssertionError(f"{event}; nothing is compared in plays")

    def other_members(self) -> list[int]:
        return [1, 2]

    def follow_topology(self, topology: Topology) -> None:
        pass

    async def fetch_state(self, members: list[int], position: int, folder: Path, syncs: bool) -> StateFile:
        for _ in range(self.random.randrange(4)):
            await asyncio.sleep(0)
        if self.random.random() < 0.2:
            raise CannotTellError("nobody answers")
        reached = self.random.randint(position, max(position, self.ordered))
        return write_state(folder, reached, b"%d" % reached, syncs, lambda: False)

    # What happens to it

    def _start(self) -> None:
        self._starts += 1
        self.program = Program()
        self.journal = Journal(self._folder / str(self._starts), "os")
        self.application = Application(
            self.program.enter,
            GROUP,
            take=self.program.take,
            install=self.program.install,
            only_closed=self.only_closed,
            journal=self.journal,
            schedule=StateSchedule(deliveries=self.random.choice([3, 10, 1000])),
        )
        self.application.serve(self, self, self)  # type: ignore[arg-type]

    def deliver(self) -> None:
        message = Message(self.delivered, 0, (0,), encode_batch([b"%d" % self.delivered]))
        self.application.deliver(Deliver(message, self.delivered))
        self.delivered += 1
        self.ordered = max(self.ordered, self.delivered)

    def install_snapshot(self) -> None:
        """Of the protocol: the log of the replica begins with it."""
        self.ordered += self.random.randrange(4)
        self.delivered = self.log_first = self.random.randint(self.delivered, self.ordered)
        self.application.skip_to(self.delivered)

    def truncate(self) -> None:
        self.application.save()
        self.log_first = self.random.randint(self.log_first, self.delivered)

    def close_some(self) -> None:
        self.closed = max(self.closed, self.random.randint(0, self.delivered))
        self.application.close_until(self.closed)

    async def crash(self) -> None:
        """What was written stays; the log repeats what it has."""
        copy_folder(self._folder / str(self._starts), self._folder / str(self._starts + 1))
        await self.application.close()
        self._start()
        reached, self.delivered = self.delivered, self.log_first
        self.application.skip_to(self.log_first)
        while self.delivered < self.random.randint(self.log_first, reached):
            self.deliver()

    async def act(self) -> None:
        kind = self.random.choices(
            ["deliver", "snapshot", "ahead", "truncate", "close", "crash", "rest"], [40, 4, 5, 10, 10, 5, 20]
        )[0]
        match kind:
            case "deliver":
                self.deliver()
            case "snapshot":
                self.install_snapshot()
            case "ahead":
                self.ordered += self.random.randrange(6)
            case "truncate":
                self.truncate()
            case "close":
                self.close_some()
            case "crash":
                await self.crash()
            case _:
                await asyncio.sleep(self.random.choice([0, 0, 0.001]))

    async def finish(self) -> None:
        while self.delivered < self.ordered:
            self.deliver()
        self.application.close_until(self.delivered)
        with suppress(TimeoutError):
            async with asyncio.timeout(10):
                await self.application.wait_for_position(self.delivered)
        assert not self.failures, self.failures
        assert self.program.count == self.delivered
        await self.application.close()


@pytest.mark.parametrize("seed", range(30))
def test_application_receives_each_position_once_and_in_order(tmp_path: Path, seed: int) -> None:
    async def main() -> None:
        play = Play(tmp_path, seed)
        for _ in range(150):
            await play.act()
            assert not play.failures, play.failures
        await play.finish()

    run(main(), timeout_s=60)
