"""The state of an application is taken, written, sent and installed in pieces, while its replica goes on."""

import asyncio
import json
import os
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest

from amcast import StateSchedule, forked
from amcast.cluster import run_replica
from amcast.kernel.effects import Deliver
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.topology import Topology
from amcast.live.client_batch import Delivery
from amcast.live.server.application import Application, TakenState
from amcast.live.server.journal import Journal
from amcast.live.storage.state_files import StateFile, read_state, write_state
from tests.live.cluster import run
from tests.live.server.test_application import QUICK, Ledger, Shop, message, rows, talk

ROOT = Path(__file__).parents[3]
GROUP = Topology.grid(1, 3)


class PieceLedger(Ledger):
    """Exports a piece per row."""

    def __init__(self) -> None:
        super().__init__()
        self.is_slow = threading.Event()
        """Whoever draws a piece waits until this is clear again."""
        self.go_on = threading.Event()
        self.threads: set[str] = set()

    def take(self) -> Any:
        copy = list(self.rows)
        for row in copy:
            yield row
            self.threads.add(threading.current_thread().name)
            if self.is_slow.is_set():
                self.go_on.wait(10)

    def install(self, state: Any, position: int) -> None:
        assert not isinstance(state, bytes)
        self.threads.add(threading.current_thread().name)
        self.installs += 1
        self.rows = list(state)
        markers = position - len(self.rows)
        assert 0 <= markers <= 2, "one message per batch in these tests, and markers of replicas that lost their memory"


class PieceShop(Shop):
    """Three replicas of one group in this process, each with a ledger that exports pieces."""

    ledgers: dict[str, PieceLedger]  # type: ignore[assignment]

    async def start(self, *names: str, schedule: StateSchedule | None = None) -> None:
        for name in names:
            ledger = self.ledgers[name] = PieceLedger()
            functions: dict[str, Any] = {"take": ledger.take, "install": ledger.install}
            one = run_replica(self.cluster, name, ledger.enter, **functions, schedule=schedule)
            self.running[name] = one
            await one.open()

    async def stop(self, *names: str) -> None:
        for name in list(names):
            await self.running.pop(name).close()


def host(folder: Path, ledger: Ledger, **options: Any) -> Application:
    """An application without a replica, with a journal on disk."""
    journal = Journal(folder, "os")
    return Application(ledger.enter, GROUP, take=ledger.take, install=ledger.install, journal=journal, **options)


def deliver(application: Application, *numbers: int) -> None:
    for number in numbers:
        application.deliver(Deliver(message(number), number))


async def settle(application: Application) -> None:
    while application._taking is not None:
        await asyncio.sleep(0.01)


@pytest.mark.live
@pytest.mark.slow
@pytest.mark.parametrize("how", ["pieces", "files"])
def test_large_state_is_transferred_under_load_without_a_leader_change(tmp_path: Path, how: str) -> None:
    script = ROOT / "benchmarks" / "state_transfer.py"
    command = [sys.executable, str(script), "--how", how, "--mb", "48", "--folder", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr
    result = json.loads(done.stdout)
    assert result["tables_are_equal"]
    assert result["leaders_before"] == [[0, 0]] * 2
    assert result["leaders_after"] == [[0, 0]] * 3
    senders = [result["peak_mb_above_table"][node] for node in ("orders/1", "orders/2")]
    assert max(senders) < 40, "a member that held its whole state again would need 48 MB more"
    if how == "files":
        return
    assert result["installs"] == {"orders/1": 0, "orders/2": 0, "orders/3": 1}
    assert result["received_with_mb"] < 100, "so did one that received it in memory, besides the 50 MB of any node"


@pytest.mark.live
@pytest.mark.parametrize("durability", ["memory", "os"])
def test_replica_that_was_away_gets_the_pieces_of_another_member(tmp_path: Path, durability: str) -> None:
    async def main() -> None:
        shop = PieceShop(tmp_path, durability=durability)
        await shop.start("orders/1", "orders/2", "orders/3")
        await talk(shop, 0, 10)
        await shop.stop("orders/3")
        await talk(shop, 10, 40)
        await shop.start("orders/3")
        await shop.running["orders/3"].caught_up()
        third = shop.ledgers["orders/3"]
        assert third.installs >= 1
        assert third.rows[:50] == rows(50)
        await talk(shop, 50, 5)
        await shop.level(55)
        assert third.rows == rows(55)
        assert all(name.startswith("application state") for name in third.threads), "not on the event loop"
        await shop.stop(*shop.running)
        if durability == "memory":
            left = [file.name for folder in tmp_path.glob("data/*/application") for file in folder.iterdir()]
            assert left == [], "nothing outlives the program"

    run(main(), timeout_s=60)


@pytest.mark.live
def test_deliveries_go_on_while_a_state_is_taken_and_sent(tmp_path: Path) -> None:
    """A member that waits for a state does not need the memory of the others: they keep 4 KB of deliveries here."""

    async def main() -> None:
        shop = PieceShop(tmp_path, durability="os", limits={**QUICK, "recent_bytes": 4096})
        await shop.start("orders/1", "orders/2", "orders/3")
        await talk(shop, 0, 10)
        await shop.stop("orders/3")
        await talk(shop, 10, 40)
        for name in ("orders/1", "orders/2"):
            shop.ledgers[name].is_slow.set()
        await shop.start("orders/3")
        third = shop.running["orders/3"]
        while third.runtime.recent.next < 50:
            await asyncio.sleep(0.01)
        await talk(shop, 50, 60)
        assert third.runtime.recent.first > 60
        assert not third.runtime.caught_up.is_set()
        assert "it has not caught up with its group" in third.runtime.status.reasons_not_ready()
        for name in ("orders/1", "orders/2"):
            shop.ledgers[name].go_on.set()
        await third.caught_up()
        ledger = shop.ledgers["orders/3"]
        assert ledger.installs == 1
        await talk(shop, 110, 5)
        await shop.level(115)
        assert ledger.rows == rows(115)
        await shop.stop("orders/3")
        await shop.start("orders/3")
        assert shop.ledgers["orders/3"].rows == rows(115), "what was spooled is in the journal"
        await shop.stop(*shop.running)

    run(main(), timeout_s=60)


def test_state_is_that_of_the_call_whatever_is_delivered_while_it_is_drawn(tmp_path: Path) -> None:
    async def main() -> None:
        ledger = PieceLedger()
        application = host(tmp_path, ledger, schedule=StateSchedule(deliveries=5))
        ledger.is_slow.set()
        deliver(application, *range(9))
        assert application._taking is not None
        ledger.go_on.set()
        await settle(application)
        journal = application._journal
        assert journal is not None
        assert journal.state is not None
        assert journal.state.position == 5
        assert list(read_state(journal.state.path)) == rows(5)
        journal.write()
        journal._close_log()  # a crash
        again = PieceLedger()
        assert host(tmp_path, again).position == 9
        assert again.rows == rows(9)

    run(main())


def test_crash_while_a_state_is_written_loses_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        ledger = PieceLedger()
        application = host(tmp_path, ledger, schedule=StateSchedule(deliveries=4))
        deliver(application, *range(4))
        await settle(application)
        ledger.is_slow.set()
        deliver(application, *range(4, 10))
        application.save()
        assert application._taking is not None
        while not (tmp_path / "state-00000000000000000008.new").exists():
            await asyncio.sleep(0.01)
        assert (tmp_path / "state-00000000000000000004").exists()
        journal = application._journal
        assert journal is not None
        journal._close_log()
        again = PieceLedger()
        assert host(tmp_path, again).position == 10
        assert again.rows == rows(10)
        ledger.go_on.set()
        await asyncio.gather(*application._tasks, return_exceptions=True)

    run(main())


@pytest.mark.parametrize(
    ("schedule", "positions"),
    [
        (StateSchedule(deliveries=3), [3, 6, 9]),
        (StateSchedule(bytes=4 * (64 + 2)), [4, 8]),
        (StateSchedule(), []),
        (StateSchedule(bytes=1 << 30, deliveries=7), [7]),
    ],
)
def test_state_is_taken_when_the_schedule_says_so(
    tmp_path: Path, schedule: StateSchedule, positions: list[int]
) -> None:
    async def main() -> None:
        application = host(tmp_path, PieceLedger(), schedule=schedule)
        found = []
        for number in range(10):
            deliver(application, number)
            await settle(application)
            state = application._journal.state if application._journal else None
            if state is not None and state.position not in found:
                found.append(state.position)
        assert found == positions
        assert len(list(tmp_path.glob("state-*"))) <= 1, "older states are removed"
        await application.close()

    run(main())


def test_state_is_taken_after_some_seconds_with_deliveries(tmp_path: Path) -> None:
    async def main() -> None:
        application = host(tmp_path, PieceLedger(), schedule=StateSchedule(seconds=0.05))
        await asyncio.sleep(0.2)
        assert not list(tmp_path.glob("state-*")), "there is nothing to save"
        deliver(application, 0, 1)
        while not (tmp_path / "state-00000000000000000002").exists():
            await asyncio.sleep(0.01)
        await application.close()

    run(main(), timeout_s=10)


def test_schedule_without_sense_is_refused() -> None:
    with pytest.raises(UsageError, match=r"schedule\.deliveries = 0; expected more than 0, or None"):
        StateSchedule(deliveries=0)


@pytest.mark.parametrize("result", ["text", None, 7])
def test_state_that_is_no_bytes_is_refused(tmp_path: Path, result: Any) -> None:
    application = Application(
        None,
        GROUP,
        take=lambda: result,
        install=lambda state, position: None,
        journal=Journal(tmp_path, "os"),
        schedule=StateSchedule(deliveries=1),
    )
    with pytest.raises(UsageError, match=f"take returned {type(result).__name__}; expected bytes, or an iterable"):
        deliver(application, 0)


def test_delivery_by_a_generator_is_refused() -> None:
    def receive(delivery: Delivery) -> Iterator[None]:
        yield

    with pytest.raises(UsageError, match="on_delivery contains `yield`; expected a plain function"):
        Application(receive, GROUP)  # type: ignore[arg-type]


def take_state(folder: Path, take: Any) -> StateFile:
    """Takes a state after one delivery; raises what the host would hear."""
    failures: list[Exception] = []

    async def main() -> StateFile | None:
        schedule = StateSchedule(deliveries=1)
        journal = Journal(folder, "os")
        application = Application(
            None, GROUP, take=take, install=lambda state, position: None, journal=journal, schedule=schedule
        )
        application._on_failed = failures.append
        deliver(application, 0)
        await settle(application)
        await application.close()
        return journal.state

    state = asyncio.run(main())
    if failures:
        raise failures[0]
    assert state is not None
    return state


@pytest.mark.parametrize("result", [b"", b"all " * 200_000, [b"a", b"", b"bc" * 100_000, b"d"]])
def test_copy_of_the_process_exports_what_take_returns(tmp_path: Path, result: bytes | Iterable[bytes]) -> None:
    state = read_state(take_state(tmp_path, forked(lambda: result)).path)
    if isinstance(result, bytes):
        assert state == result
    else:
        assert list(state) == [piece for piece in result if piece]


def test_failure_in_the_copy_of_the_process_is_told(tmp_path: Path) -> None:
    def fail() -> Iterator[bytes]:
        yield b"piece"
        raise ValueError("row 7 is odd")

    with pytest.raises(CannotTellError, match="take failed in the copy of the process: ValueError: row 7 is odd"):
        take_state(tmp_path / "1", forked(fail))
    with pytest.raises(CannotTellError, match="take failed in the copy of the process: it was killed"):
        take_state(tmp_path / "2", forked(lambda: os.abort()))
    with pytest.raises(UsageError, match="take gave a piece of type int; expected bytes"):
        take_state(tmp_path / "3", lambda: [1])


def test_closing_does_not_wait_for_a_stuck_copy_of_the_process(tmp_path: Path) -> None:
    async def main() -> None:
        stuck = forked(lambda: iter(lambda: threading.Event().wait(60), None))  # type: ignore[arg-type, return-value]
        journal = Journal(tmp_path, "os")
        application = Application(
            None, GROUP, take=stuck, install=lambda *_: None, journal=journal, schedule=StateSchedule(deliveries=1)
        )
        deliver(application, 0)
        await asyncio.sleep(0.1)
        async with asyncio.timeout(5):
            await application.close()

    run(main(), timeout_s=20)


def test_state_replaces_only_the_deliveries_before_it(tmp_path: Path) -> None:
    journal = Journal(tmp_path, "os")
    for number in range(9):
        if number in (3, 6):
            journal.begin_state()
        journal.add(message(number))
        journal.write()
    assert len(list(tmp_path.glob("from-*"))) == 3
    superfluous = journal.adopt(write_state(tmp_path, 3, [b"0", b"1", b"2"], False, lambda: False))
    assert [path.name for path in superfluous] == ["from-00000000000000000000.removed-1"]
    journal.close(9)
    shutil.rmtree(superfluous[0])
    again = PieceLedger()
    assert host(tmp_path, again).position == 9
    assert again.rows == rows(9)


def test_deliveries_behind_a_gap_are_not_replayed_without_the_state_between(tmp_path: Path) -> None:
    """The program crashed while it waited for another member's state."""
    journal = Journal(tmp_path, "os")
    for number in range(4):
        journal.add(message(number))
    journal.spool_from(20)
    for number in range(20, 25):
        journal.spool(message(number))
    journal.write()
    journal._close_log()
    ledger = PieceLedger()
    assert host(tmp_path, ledger).position == 4
    assert ledger.rows == rows(4)
    assert [path.name for path in tmp_path.glob("from-*")] == ["from-00000000000000000000"]


def test_snapshot_that_comes_while_a_state_is_fetched_needs_a_newer_state(tmp_path: Path) -> None:
    async def main() -> None:
        ledger = PieceLedger()
        application = host(tmp_path / "application", ledger)
        asked: list[int] = []
        has_asked, is_overtaken = asyncio.Event(), asyncio.Event()

        async def fetch(position: int) -> StateFile:
            asked.append(position)
            has_asked.set()
            await is_overtaken.wait()
            return write_state(tmp_path / "application", position, rows(position), False, lambda: False)

        application._fetch = fetch
        application.skip_to(10)
        deliver(application, 10, 11)
        await has_asked.wait()
        application.skip_to(30)
        deliver(application, 30, 31)
        is_overtaken.set()
        await application.wait_for_position(32)
        assert asked == [10, 30]
        assert ledger.rows == rows(32)
        await application.close()

    run(main())


def test_event_loop_does_not_wait_for_the_copy_of_the_process(tmp_path: Path) -> None:
    go = tmp_path / "go"

    def take() -> bytes:
        while not go.exists():
            time.sleep(0.01)
        return b"state"

    state = TakenState(0, forked(take)())
    go.touch()  # reached only if nothing has waited for the copy
    assert b"".join(state) == b"state"
    state.close()
