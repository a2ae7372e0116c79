"""Work in a child process, so that whatever it does to itself is only news: an exception, a hang, a crash.

One child does a whole list, one item after the other, and tells each result as soon as it has it. When it dies or is
killed for taking too long, that item is lost and a new child goes on with the next. A fork costs a few milliseconds;
the worker of Spark that asks for it never runs foreign code itself.
"""

import json
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal

Status = Literal["done", "error", "timeout", "crash"]
MAX_MESSAGE: Final = 2000
SPARE_SECONDS: Final = 10
"""A child whose parent died ends itself so long after its time is over."""


@dataclass(frozen=True)
class Outcome:
    """What became of one item."""

    status: Status
    value: Any = None
    message: str = ""
    seconds: float = 0.0


def isolated(work: Callable[[Any], Any], items: Sequence[Any], timeout_s: float) -> Iterator[Outcome]:
    """Do some work on every item, in order, each in at most `timeout_s` seconds. Results must be JSON."""
    place = 0
    while place < len(items):
        child, pipe = _fork(work, items[place:], timeout_s)
        try:
            reader = _Reader(pipe)
            while place < len(items):
                begun = time.monotonic()
                line = reader.line(timeout_s)
                seconds = time.monotonic() - begun
                place += 1
                if line is None:
                    yield Outcome("timeout", None, f"no result within {timeout_s:g} s", seconds)
                    break
                if not line:
                    yield Outcome("crash", None, _reaped(child), seconds)
                    child = 0
                    break
                yield _outcome(line, seconds)
        finally:
            os.close(pipe)
            if child:
                _end(child)


def _fork(work: Callable[[Any], Any], items: Sequence[Any], timeout_s: float) -> tuple[int, int]:
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    # The child: nothing below returns, and nothing of the parent's clean-up runs here.
    code = 70
    try:
        os.close(reading)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
            signal.signal(number, signal.SIG_DFL)
        for item in items:
            signal.alarm(int(timeout_s) + SPARE_SECONDS)
            _write(writing, _told(work, item))
        code = 0
    finally:
        os._exit(code)


def _told(work: Callable[[Any], Any], item: Any) -> bytes:
    try:
        answer: dict[str, Any] = {"value": work(item)}
        return json.dumps(answer, allow_nan=False).encode() + b"\n"
    except BaseException as error:
        return json.dumps({"error": explained(error)}).encode() + b"\n"


def explained(error: BaseException) -> str:
    """An exception in one sentence: what, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""  # noqa: PTH119
    said = str(error).strip() or "no message"
    return f"{type(error).__name__}: {said}{where}"[:MAX_MESSAGE]


def _write(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


class _Reader:
    """Lines from a pipe, with a limit on the time that each takes."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._rest = bytearray()

    def line(self, timeout_s: float) -> bytes | None:
        """The next line; b"" at the end; None when the time is over."""
        until = time.monotonic() + timeout_s
        while (end := self._rest.find(b"\n")) < 0:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self._pipe], [], [], left)[0]:
                return None
            more = os.read(self._pipe, 1 << 16)
            if not more:
                return b""
            self._rest += more
        line = bytes(self._rest[: end + 1])
        del self._rest[: end + 1]
        return line


def _outcome(line: bytes, seconds: float) -> Outcome:
    told = json.loads(line)
    if "error" in told:
        return Outcome("error", None, told["error"], seconds)
    return Outcome("done", told["value"], "", seconds)


def _reaped(child: int) -> str:
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        number = os.WTERMSIG(status)
        hint = "; out of memory?" if number == signal.SIGKILL else ""
        return f"the interpreter was killed by {signal.Signals(number).name}{hint}"
    return f"the interpreter exited with {os.WEXITSTATUS(status)} in the middle of a cell"


def _end(child: int) -> None:
    """Kill a child if it still lives, and bury it."""
    try:
        os.kill(child, signal.SIGKILL)
    except ProcessLookupError:
        pass
    finally:
        os.waitpid(child, 0)
