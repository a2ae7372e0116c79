"""The effect queue: sends and deliveries wait until earlier records are durable; timers and notes do not."""

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from amcast.kernel.message import Body, Message, Record, Request, State
from amcast.kernel.process import Process
from amcast.kernel.spec import Claims, Spec
from amcast.kernel.topology import Topology
from amcast.live.host.host import Host
from amcast.live.storage.store import LogStore
from amcast.trace.recorder import Recorder
from tests.live.cluster import run

pytestmark = pytest.mark.live


ENDS = 100
"""Messages with this id or a later one write a record that waits for deliveries, and are not delivered."""


class NumberRecord(Record, frozen=True):
    number: int


class Persistent(Process):
    """Persists each message, sets a timer, and delivers the message."""

    def __init__(self, me: int, topology: Topology, config: object = None) -> None:
        super().__init__(me, topology)
        self.persisted: list[int] = []
        self.expired: list[str] = []

    def on_start(self, records: Sequence[Record], incarnation: int) -> None:
        self.persisted = [record.number for record in records if isinstance(record, NumberRecord)]
        self.incarnation = incarnation

    def on_submit(self, message: Message) -> None:
        if message.id >= ENDS:
            self.persist(NumberRecord(message.id), after_deliveries=True)
            return
        self.note("before", message.id)
        self.persist(NumberRecord(message.id))
        self.set_timer("soon", (0, 0))
        self.deliver(message)

    def on_timer(self, name: str) -> None:
        self.expired.append(name)

    def on_request(self, message: Message) -> None:
        self.deliver(message)

    def on_receive(self, sender: int, body: Body) -> None:
        raise AssertionError

    def snapshot(self) -> State:
        return State()

    def restore(self, state: State) -> None:
        raise AssertionError


SPEC = Spec("persistent", "", "", Persistent, Claims("no"), records=(NumberRecord,))


class SlowLog(LogStore):
    """A slow disk: records become durable when the test calls `finish`."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder, "os")
        self.tickets: list[int] = []
        self.appended = 0

    def append(self, record: bytes, replaces: bool = False) -> int:
        self.appended = super().append(record, replaces)
        return self.appended

    def start(self, durable: Callable[[int], object], failed: Callable[[Exception], object]) -> None:
        super().start(durable, failed)
        self.finish = durable

    def commit(self) -> int:
        self.tickets.append(super().commit())
        return 0


def make_host(
    store: LogStore,
    delivered: list[int],
    recorder: Recorder | None = None,
    before_log_truncation: Callable[[], None] | None = None,
) -> tuple[Host, Persistent]:
    process = Persistent(0, Topology.grid(1, 1))
    return Host(
        process,
        SPEC,
        store=store,
        recorder=recorder,
        on_deliver=lambda effect: delivered.append(effect.message.id),
        before_log_truncation=before_log_truncation,
    ), process


def message(number: int) -> Message:
    return Message(number, 0, (0,))


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0.001)


def test_deliveries_wait_for_the_disk_but_steps_and_timers_do_not(tmp_path: Path) -> None:
    async def main() -> None:
        store, delivered, recorder = SlowLog(tmp_path), [], Recorder()
        host, process = make_host(store, delivered, recorder)
        host.start({})
        host.submit(message(1))
        await settle()
        host.submit(message(2))
        await settle()
        assert delivered == []
        assert process.expired == ["soon", "soon"]
        assert [row[3] for row in recorder.notes] == [1, 2]
        store.finish(1)
        await settle()
        assert delivered == [1]
        store.finish(2)
        await settle()
        assert delivered == [1, 2]
        await host.stop()

    run(main())


def test_record_after_deliveries_waits_for_them_and_holds_later_records(
    tmp_path: Path,
) -> None:
    """Deliveries that the log forgets are in the trace, even if the process is killed at any moment."""

    async def main() -> None:
        store, delivered, flushed = SlowLog(tmp_path), [], []
        host, _ = make_host(store, delivered, before_log_truncation=lambda: flushed.append(list(delivered)))
        host.start({})
        for number in (1, ENDS, 2, ENDS + 1, 3):
            host.submit(message(number))
            await settle()
        assert (store.appended, delivered, flushed) == (1, [], [])
        store.finish(1)
        await settle()
        assert (store.appended, delivered, flushed) == (3, [1], [[1]])
        store.finish(2)
        await settle()
        assert (store.appended, delivered, flushed) == (3, [1], [[1]])
        store.finish(3)
        await settle()
        assert (store.appended, delivered, flushed) == (5, [1, 2], [[1], [1, 2]])
        store.finish(5)
        await settle()
        assert delivered == [1, 2, 3]
        assert host.queues() == {"inbox": 0, "held": 0, "appended": 5, "durable": 5}
        await host.stop()

    run(main())


@pytest.mark.parametrize("mode", ["fsync", "os"])
def test_records_that_wait_for_deliveries_reach_the_disk_in_order(tmp_path: Path, mode: str) -> None:
    numbers = (1, ENDS, 2, 3, ENDS + 1, ENDS + 2, 4)

    async def main() -> None:
        delivered: list[int] = []
        flushed: list[list[int]] = []
        store = LogStore(tmp_path, mode)  # type: ignore[arg-type]
        host, _ = make_host(store, delivered, before_log_truncation=lambda: flushed.append(list(delivered)))
        host.start({})
        for number in numbers:
            host.submit(message(number), wake=False)
        host.tick()
        while len(delivered) < 4:
            await asyncio.sleep(0.001)
        assert flushed == [[1], [1, 2, 3], [1, 2, 3]]
        await host.stop()
        later = LogStore(tmp_path, mode)  # type: ignore[arg-type]
        host, process = make_host(later, [])
        host.start({})
        await settle()
        assert process.persisted == list(numbers)
        await host.stop()

    run(main())


@pytest.mark.parametrize("mode", ["fsync", "os"])
def test_later_incarnation_gets_the_records_and_its_number(tmp_path: Path, mode: str) -> None:
    async def main() -> None:
        for incarnation in range(3):
            delivered: list[int] = []
            host, process = make_host(LogStore(tmp_path, mode), delivered)  # type: ignore[arg-type]
            host.start({})
            await settle()
            assert (process.incarnation, process.persisted) == (incarnation, list(range(incarnation * 10)))
            for number in range(incarnation * 10, incarnation * 10 + 10):
                host.submit(message(number))
            while len(delivered) < 10:
                await asyncio.sleep(0.001)
            assert delivered == list(range(incarnation * 10, incarnation * 10 + 10))
            await host.stop()

    run(main())


def test_failed_process_stops_and_logs_the_reason(caplog: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    async def main() -> None:
        host, _ = make_host(LogStore(tmp_path), [])
        host.start({})
        host.network.outbox.send((0,), b"", None)
        host.enqueue(Request(message(1)))  # type: ignore[arg-type]
        with pytest.raises(AssertionError, match="unknown event"):
            await host.ended
        await host.stop()

    run(main())
    assert "process 0 stops: unknown event" in caplog.text
