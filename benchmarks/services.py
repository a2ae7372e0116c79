"""What a service costs one replica, above a plain delivery: CPU per command of the executor.

    python benchmarks/services.py                     24 sessions (clients), 170 bytes of arguments
    python benchmarks/services.py --sessions 1000 --bytes 16

Commands are those of a session in order, each acknowledging the one before, as those of callers that wait for answers.
The shortest of several turns counts. Printed as JSON: microseconds of CPU per command, and of an empty `deliver`.
"""

import argparse
import json
import sys
import time

import amcast
from amcast.services.calls import CallSession
from amcast.services.declaration import describe_service
from amcast.services.executor import Executor
from amcast.services.messages import encode_payload

GROUPS = ("north", "south")


class Register(amcast.Service):
    """Keeps one text, and returns a small result."""

    def __init__(self, group: str) -> None:
        self.text: str = ""
        self.count: int = 0

    @amcast.command
    def write(self, at: amcast.At, key: amcast.Key, text: str) -> int:
        self.text = text
        self.count += 1
        return self.count


def make_payloads(sessions: int, commands: int, size: int) -> list[bytes]:
    """Commands of all sessions in turn; each session has the results of its earlier ones."""
    description = describe_service(Register)
    callers = [CallSession(description, GROUPS, number + 1) for number in range(sessions)]
    payloads: list[bytes] = []
    while len(payloads) < commands:
        for caller in callers:
            call = caller.make("write", ("key", "x" * size), {}, len(payloads), groups=["north"])
            payloads.append(encode_payload(call.command))
            caller.close(call)
    return payloads[:commands]


def measure(payloads: list[bytes]) -> float:
    """Seconds of CPU to execute all payloads."""
    executor = Executor(Register, "north", GROUPS)
    deliver, finished = executor.deliver, executor.finished
    begin = time.process_time()
    for position, payload in enumerate(payloads):
        deliver(position, ("north",), payload)
        finished.clear()
    took = time.process_time() - begin
    assert executor.executed == len(payloads)
    return took


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sessions", type=int, default=24)
    parser.add_argument("--commands", type=int, default=50_000)
    parser.add_argument("--bytes", type=int, default=170)
    parser.add_argument("--turns", type=int, default=7)
    options = parser.parse_args()
    payloads = make_payloads(options.sessions, options.commands, options.bytes)
    seconds = min(measure(payloads) for _ in range(options.turns))
    json.dump({"us_per_command": round(seconds / len(payloads) * 1e6, 3)}, sys.stdout)
    print()


if __name__ == "__main__":
    main()
