"""The hosted program of a tortured cluster: it chains a hash over everything that is delivered, and writes each link.

    python -m amcast.lab.torture.ledger cluster.toml orders/1        until SIGTERM

The file `ledgers/orders-1.rows` beside cluster.toml gets a line per delivery, also for those that a restart repeats:
position, place in the batch, message, hash, payload. Two replicas that executed different deliveries, or the same in
another order, differ in the hash of every later line. A state that is installed gets a line with place -1: the position
after its last delivery, and its hash.
"""

import hashlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Final, NamedTuple

from amcast.cluster import run_replica
from amcast.kernel.errors import CannotTellError, UsageError
from amcast.kernel.ids import MessageId
from amcast.live.client_batch import Delivery
from amcast.live.host.host import RestartNeededError
from amcast.live.membership.topology_follower import RemovedFromGroupError
from amcast.live.server.node import run_loop
from amcast.live.server.replica import Replica, run_until_stopped
from amcast.live.torture.faulty_disk import install_faulty_disk

FOLDER: Final = "ledgers"
EMPTY: Final = bytes(16)
INSTALLED: Final = -1
"""The place of a row that stands for an installed state."""


class Row(NamedTuple):
    """One delivery as the hosted program executed it."""

    position: int
    place: int
    message: MessageId
    chain: str
    payload: str


class Ledger:
    """The state of the program: the hash of everything delivered so far."""

    def __init__(self, file: Path) -> None:
        self._chain = EMPTY
        self._out = file.open("a", buffering=1)

    def deliver(self, delivery: Delivery) -> None:
        """Executes a delivery."""
        self._chain = chain_delivery(self._chain, delivery)
        payload = delivery.payload.decode(errors="replace")
        self._out.write(f"{delivery.position} {delivery.place} {delivery.message} {self._chain.hex()} {payload}\n")

    def take(self) -> bytes:
        """Exports the state."""
        return self._chain

    def install(self, state: bytes, position: int) -> None:
        """Replaces the state."""
        self._chain = state or EMPTY
        self._out.write(f"{position} {INSTALLED} 0 {self._chain.hex()} \n")


def chain_delivery(chain: bytes, delivery: Delivery) -> bytes:
    """The hash of a chain and the delivery after it."""
    head = f"{delivery.position} {delivery.place} {delivery.message} ".encode()
    return hashlib.blake2b(chain + head + delivery.payload, digest_size=16).digest()


def read_ledger(file: Path) -> list[Row]:
    """The rows of a ledger; the last line may be incomplete, because nodes are killed."""
    if not file.exists():
        return []
    rows = []
    for line in file.read_text().split("\n")[:-1]:
        position, place, message, chain, payload = line.split(" ", 4)
        rows.append(Row(int(position), int(place), int(message), chain, payload))
    return rows


def ledger_file(folder: Path, node: str) -> Path:
    """The ledger of a node."""
    return folder / FOLDER / f"{node.replace('/', '-')}.rows"


def disk_control_file(folder: Path, node: str) -> Path:
    """What the disk of a node does (`live/torture/faulty_disk.py`)."""
    return folder / "disks" / node.replace("/", "-")


def keep_running(config: Path, node: str, make_replica: Callable[[], Replica]) -> int:
    """Runs a program on a disk that faults can strike until SIGTERM, one incarnation of its replica after the other if
    a folder is doubtful; returns the exit code."""
    install_faulty_disk(disk_control_file(config.parent, node))
    while True:
        try:
            run_loop(run_until_stopped(make_replica()))
        except RemovedFromGroupError as removed:
            print(f"{node}: {removed}", file=sys.stderr)
        except (CannotTellError, UsageError) as error:
            print(f"{node}: {error}", file=sys.stderr, flush=True)
            if isinstance(error.__cause__, RestartNeededError):
                continue
            return 64 if isinstance(error, UsageError) else 1
        return 0


def main(config: Path, node: str) -> int:
    """Runs the program until SIGTERM."""
    file = ledger_file(config.parent, node)
    file.parent.mkdir(exist_ok=True)

    def make_replica() -> Replica:
        ledger = Ledger(file)
        return run_replica(config, node, ledger.deliver, take=ledger.take, install=ledger.install)

    return keep_running(config, node, make_replica)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2]))
