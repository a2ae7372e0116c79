"""Runs work in a child process, so that an exception, a hang or a crash of the work is only a result.

A `ChildWorker` forks one child and sends it one item after the other. When the child dies, or is killed for taking too
long, that item is lost and a new child continues with the next. Otherwise the same child serves many lists of items: an
interpreter that has run some work is a sixth faster than a fresh one. Spark's own Python worker never runs foreign
code.
"""

import json
import os
import pickle
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, Final, Literal

from pyspark import cloudpickle

Status = Literal["done", "error", "timeout", "crash"]
MAX_MESSAGE: Final = 2000
GRACE_SECONDS: Final = 10
"""A child whose parent died ends itself this long after its timeout."""


@dataclass(frozen=True)
class WorkOutcome:
    """The result of one item."""

    status: Status
    value: Any = None
    message: str = ""
    seconds: float = 0.0


def run_isolated(work: Callable[[Any], Any], items: Sequence[Any], timeout_s: float) -> Iterator[WorkOutcome]:
    """Runs the work on every item, in order, each in at most `timeout_s` seconds. Results must be JSON."""
    child = ChildWorker()
    try:
        yield from child.run_items(work, items, timeout_s)
    finally:
        child.stop()


class ChildWorker:
    """A child process that runs work; it is forked when there is an item."""

    def __init__(self) -> None:
        self._child = 0
        self._request_pipe = self._reply_pipe = -1
        self._sent_work = b""
        """The packed work that the child has."""

    def run_items(self, work: Callable[[Any], Any], items: Sequence[Any], timeout_s: float) -> Iterator[WorkOutcome]:
        """Runs the work on every item, in order, each in at most `timeout_s` seconds. Results must be JSON."""
        packed: bytes = cloudpickle.dumps((work, timeout_s))  # type: ignore[no-untyped-call]
        for item in items:
            begun = time.monotonic()
            line = self._request(packed, item, timeout_s)
            seconds = time.monotonic() - begun
            if line is None:
                self.stop()
                yield WorkOutcome("timeout", None, f"no result within {timeout_s:g} s", seconds)
            elif not line:
                yield WorkOutcome("crash", None, self._reap(), seconds)
            else:
                yield _parse_outcome(line, seconds)

    def stop(self) -> None:
        """Kills the child if it is running, and reaps it."""
        if self._child:
            with suppress(ProcessLookupError):
                os.kill(self._child, signal.SIGKILL)
            self._reap()

    def _request(self, packed: bytes, item: Any, timeout_s: float) -> bytes | None:
        """The child's reply; b"" if it died, None if its time is over."""
        if not self._child:
            self._fork()
        try:
            if packed != self._sent_work:
                _send(self._request_pipe, WORK, packed)
                self._sent_work = packed
            _send(self._request_pipe, ITEM, cloudpickle.dumps(item))  # type: ignore[no-untyped-call]
        except BrokenPipeError:
            return b""
        return _LineReader(self._reply_pipe).read_line(timeout_s)

    def _fork(self) -> None:
        requests, self._request_pipe = os.pipe()
        self._reply_pipe, replies = os.pipe()
        sys.stdout.flush()
        sys.stderr.flush()
        self._child, self._sent_work = os.fork(), b""
        if self._child:
            os.close(requests)
            os.close(replies)
            return
        # The child: nothing below returns, and none of the parent's clean-up runs here.
        code = 70
        try:
            os.close(self._request_pipe)
            os.close(self._reply_pipe)
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGALRM):
                signal.signal(number, signal.SIG_DFL)
            _serve(requests, replies)
            code = 0
        finally:
            os._exit(code)

    def _reap(self) -> str:
        """Waits for the child and describes how it ended."""
        _, status = os.waitpid(self._child, 0)
        os.close(self._request_pipe)
        os.close(self._reply_pipe)
        self._child = 0
        if os.WIFSIGNALED(status):
            number = os.WTERMSIG(status)
            hint = "; out of memory?" if number == signal.SIGKILL else ""
            return f"the interpreter was killed by {signal.Signals(number).name}{hint}"
        return f"the interpreter exited with {os.WEXITSTATUS(status)} in the middle of a cell"


WORK, ITEM = b"w", b"i"


def _serve(requests: int, replies: int) -> None:
    """Serves requests until the pipe is closed: first the work, then items; another work may follow."""
    work: Callable[[Any], Any] | None = None
    while (request := _read_request(requests)) is not None:
        kind, packed = request[:1], request[1:]
        if kind == WORK:
            work, timeout_s = pickle.loads(packed)
            continue
        assert work is not None
        signal.alarm(int(timeout_s) + GRACE_SECONDS)
        _write_all(replies, _run_item(work, packed))
        signal.alarm(0)


def _send(pipe: int, kind: bytes, data: bytes) -> None:
    _write_all(pipe, (len(data) + 1).to_bytes(8, "big") + kind + data)


def _read_request(pipe: int) -> bytes | None:
    """The next request; None when there will be none."""
    size = _read_exactly(pipe, 8)
    return _read_exactly(pipe, int.from_bytes(size, "big")) if size is not None else None


def _read_exactly(pipe: int, size: int) -> bytes | None:
    parts: list[bytes] = []
    while size:
        part = os.read(pipe, min(size, 1 << 20))
        if not part:
            return None
        parts.append(part)
        size -= len(part)
    return b"".join(parts)


def _run_item(work: Callable[[Any], Any], packed: bytes) -> bytes:
    try:
        answer: dict[str, Any] = {"value": work(pickle.loads(packed))}
        return json.dumps(answer, allow_nan=False).encode() + b"\n"
    except BaseException as error:
        return json.dumps({"error": describe_exception(error)}).encode() + b"\n"


def describe_exception(error: BaseException) -> str:
    """An exception in one sentence: its type, its message, and where it was raised."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" ({os.path.basename(frames[-1].filename)}:{frames[-1].lineno} in {frames[-1].name})" if frames else ""  # noqa: PTH119
    text = str(error).strip() or "no message"
    return f"{type(error).__name__}: {text}{where}"[:MAX_MESSAGE]


def _write_all(pipe: int, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[os.write(pipe, view) :]


class _LineReader:
    """Lines from a pipe, with a limit on the time that each takes."""

    def __init__(self, pipe: int) -> None:
        self._pipe = pipe
        self._rest = bytearray()

    def read_line(self, timeout_s: float) -> bytes | None:
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


def _parse_outcome(line: bytes, seconds: float) -> WorkOutcome:
    replies = json.loads(line)
    if "error" in replies:
        return WorkOutcome("error", None, replies["error"], seconds)
    return WorkOutcome("done", replies["value"], "", seconds)
