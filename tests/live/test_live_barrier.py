"""Persist is a barrier: nothing that follows it happens before the record is durable, and timers do not wait."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from live_cluster import run

from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Spec
from amcast.kernel.topology import Topology
from amcast.live.host import Host
from amcast.live.store import LogStore
from amcast.trace.recorder import Recorder

pytestmark = pytest.mark.live


class Kept(Record, frozen=True):
    number: int


class Careful(Process):
    """Persists each message before it sends it to itself, and delivers what it got back."""

    def __init__(self, me: int, topology: Topology, config: object = None) -> None:
        super().__init__(me, topology)
        self.known: list[int] = []
        self.rang: list[str] = []

    def on_start(self, records: Sequence[Record], life: int) -> None:
        self.known = [record.number for record in records if isinstance(record, Kept)]
        self.life = life

    def on_multicast(self, message: Message) -> None:
        self.note("before", message.id)
        self.persist(Kept(message.id))
        self.set_timer("soon", (0, 0))
        self.deliver(message)

    def on_timer(self, name: str) -> None:
        self.rang.append(name)

    def on_submit(self, message: Message) -> None:
        self.deliver(message)

    def on_receive(self, sender: int, body: Body) -> None:
        raise AssertionError

    def snapshot(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        raise AssertionError


SPEC = Spec("careful", "", "", Careful, Claims("no"), records=(Kept,))


class SlowLog(LogStore):
    """A disk that takes its time: records become durable when the test says so."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "os")
        self.tickets: list[int] = []

    def start(self, durable: Callable[[int], object], failed: Callable[[Exception], object]) -> None:
        super().start(durable, failed)
        self.finish = durable

    def commit(self) -> int:
        self.tickets.append(super().commit())
        return 0


def host_of(store: LogStore, delivered: list[int], recorder: Recorder | None = None) -> tuple[Host, Careful]:
    process = Careful(0, Topology.grid(1, 1))
    return Host(
        process, SPEC, store=store, recorder=recorder, on_deliver=lambda effect: delivered.append(effect.message.id)
    ), process


def message(number: int) -> Message:
    return Message(number, 0, (0,))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_deliveries_wait_for_the_disk_and_steps_and_timers_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        store, delivered, recorder = SlowLog(tmp_path), [], Recorder()
        host, process = host_of(store, delivered, recorder)
        host.start({})
        host.submit(message(1))
        await settle()
        host.submit(message(2))
        await settle()
        assert delivered == []
        assert process.rang == ["soon", "soon"]
        assert [row[3] for row in recorder.notes] == [1, 2]
        store.finish(1)
        await settle()
        assert delivered == [1]
        store.finish(2)
        await settle()
        assert delivered == [1, 2]
        await host.stop()

    run(main())


@pytest.mark.parametrize("mode", ["fsync", "os"])
def test_a_later_life_gets_the_records_and_its_number(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        for life in range(3):
            delivered: list[int] = []
            host, process = host_of(LogStore(tmp_path, mode), delivered)  # type: ignore[arg-type]
            host.start({})
            await settle()
            assert (process.life, process.known) == (life, list(range(life * 10)))
            for number in range(life * 10, life * 10 + 10):
                host.submit(message(number))
            while len(delivered) < 10:
                await asyncio.sleep(0.001)
            assert delivered == list(range(life * 10, life * 10 + 10))
            await host.stop()

    run(main())


def test_a_process_that_fails_stops_alone_and_says_why(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async def main() -> None:
        host, _ = host_of(LogStore(tmp_path), [])
        host.start({})
        host.network.send((0,), b"", None)
        host.hand(Request(message(1)))  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match="no process knows the event"):
            await host.ended
        await host.stop()

    run(main())
    assert "process 0 stops: no process knows the event" in caplog.text
