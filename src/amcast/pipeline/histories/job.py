"""`amcast check FILE --as list-append --engine spark`: histories that one process cannot hold.

    shares of the file -> lines by process -> operations, their steps by key -> dependencies of each key
                                                                             -> one pass over those that overlap in time

What concerns one key is judged by one task, with the code of the plain checker. Transactions that depend on each other
and do not overlap are in the order of time already, so only the others are brought together, as pairs of numbers
(`kernels/points.py`). If no points in time agree with them, the transactions around the contradiction are read once
more, and the plain checker tells a shortest cycle among them.
"""

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, NamedTuple
from zlib import crc32

import msgspec
import numpy as np

from amcast.check.histories.bank import check_bank
from amcast.check.histories.history import HistoryLine, HistoryOperation, decode_lines, pair_lines
from amcast.check.histories.list_append import NOTHING_READ, Edges, find_dependencies, list_steps, tell_cycle
from amcast.check.histories.report import HistoryReport
from amcast.kernel.errors import UsageError
from amcast.pipeline.check.runner import Call, Runner
from amcast.pipeline.kernels.fingerprints import Int64Array
from amcast.pipeline.kernels.points import IN_CYCLE, find_points
from amcast.pipeline.rows.files import open_scratch
from amcast.pipeline.spark.progress import show_progress
from amcast.pipeline.spark.session import is_local, open_session
from amcast.pipeline.spark.tasks import make_spark_runner

SHARE_BYTES: Final = 64 * 1024 * 1024
"""Of the file, to one task, about."""
OPEN_END: Final = 1 << 62
"""In the place of the end of an operation that has none."""
MODELS: Final = ("list-append", "bank")

_encoder: Final = msgspec.msgpack.Encoder()


class KeyOperation(msgspec.Struct, frozen=True, array_like=True):
    """An operation with those of its steps that concern the keys of one task."""

    process: int | str
    f: str
    steps: list[Any]
    begin: int
    end: int | None


_lines_decoder: Final = msgspec.msgpack.Decoder(list[tuple[int, HistoryLine]])
_operations_decoder: Final = msgspec.msgpack.Decoder(list[KeyOperation])


class KeyVerdict(NamedTuple):
    """What a task has found about its keys."""

    checked: dict[str, int]
    wrong: str
    edges: Int64Array
    """Dependencies of overlapping transactions: begin and end of one, begin and end of the other."""


def check_history(
    file: Path, model: str, master: str | None = None, scratch: str | None = None, share_bytes: int = SHARE_BYTES
) -> HistoryReport:
    """Judges a history of any size, with Spark."""
    if model not in MODELS:
        raise UsageError(
            f"--as {model} --engine spark; expected one of: {', '.join(MODELS)} (others are searched whole)"
        )
    if not file.is_file():
        raise UsageError(f"{file}: no such file; expected a history as JSON lines")
    with (
        open_session(master, brief=file.stat().st_size < share_bytes) as spark,
        show_progress(spark, "checking"),
        _scratch_folder(scratch, file, master) as place,
    ):
        return HistoryJob(make_spark_runner(spark), file, Path(place), share_bytes).judge(model)


@contextmanager
def _scratch_folder(given: str | None, file: Path, master: str | None) -> Iterator[str]:
    with open_scratch(given or (None if is_local(master) else f"{file}.scratch"), "histories") as place:
        yield place


@dataclass(frozen=True)
class HistoryJob:
    """The steps of one judgement."""

    runner: Runner
    file: Path
    scratch: Path
    share_bytes: int

    def judge(self, model: str) -> HistoryReport:
        """Judges the history by a model."""
        shares = list(_cut_file(self.file, self.share_bytes))
        counts = self.runner([(count_lines, (self.file, *share)) for share in shares])
        firsts = [1 + sum(counts[:number]) for number in range(len(shares))]
        parts = len(shares)
        self._run(
            (split_share, (self.file, *share, first, number, parts, self.scratch))
            for number, (share, first) in enumerate(zip(shares, firsts, strict=True))
        )
        if model == "bank":
            return _join_banks(self._run((judge_bank, (self.file, part, parts, self.scratch)) for part in range(parts)))
        operations = self._run((pair_part, (self.file, part, parts, self.scratch)) for part in range(parts))
        return self._judge_lists(sum(operations), parts)

    def _run(self, calls: Iterable[Call]) -> list[Any]:
        return self.runner(list(calls))

    def _judge_lists(self, transactions: int, parts: int) -> HistoryReport:
        found: list[KeyVerdict] = self._run((judge_keys, (part, parts, self.scratch)) for part in range(parts))
        checked = {"transactions": transactions}
        for name in ("reads", "appends"):
            checked[name] = sum(one.checked[name] for one in found)
        if not checked["reads"]:
            return HistoryReport("unknown", checked, [NOTHING_READ])
        wrong = sorted(one.wrong for one in found if one.wrong)
        if wrong:
            return HistoryReport("violated", checked, wrong[:1])
        window = find_contradiction(np.concatenate([one.edges for one in found]))
        if window is None:
            return HistoryReport("holds", checked)
        return HistoryReport("violated", checked, self._tell(window, parts))

    def _tell(self, window: tuple[int, int], parts: int) -> list[str]:
        """The story of a contradiction among the transactions that begin in a window."""
        found = self._run((read_window, (part, parts, self.scratch, window)) for part in range(parts))
        known = {one.begin: one for operations, _ in found for one in operations}
        history = [_to_operation(number, known[begin], []) for number, begin in enumerate(sorted(known))]
        numbers = {operation.begin: operation.number for operation in history}
        edges: Edges = {operation.number: {} for operation in history}
        for _, dependencies in found:
            for before, after, why in dependencies:
                edges[numbers[before]].setdefault(numbers[after], why)
        return tell_cycle(history, edges)


def _cut_file(file: Path, share_bytes: int) -> Iterator[tuple[int, int]]:
    """Ranges of bytes that begin and end with a line."""
    size = file.stat().st_size
    begin = 0
    with file.open("rb") as source:
        while begin < size:
            source.seek(min(begin + share_bytes, size) - 1)
            source.readline()
            yield begin, source.tell()
            begin = source.tell()
    if not size:
        yield 0, 0


def _read_share(file: Path, begin: int, end: int) -> bytes:
    with file.open("rb") as source:
        source.seek(begin)
        return source.read(end - begin)


def count_lines(file: Path, begin: int, end: int) -> int:
    """The lines in a range of bytes."""
    return len(_read_share(file, begin, end).splitlines())


def split_share(file: Path, begin: int, end: int, first: int, number: int, parts: int, scratch: Path) -> None:
    """Decodes a share, whose first line has a number, and writes its lines by process."""
    lines: list[list[tuple[int, HistoryLine]]] = [[] for _ in range(parts)]
    for place, line in enumerate(decode_lines(_read_share(file, begin, end), str(file), first), first):
        lines[_draw_part(line.process, parts)].append((place, line))
    for part, own in enumerate(lines):
        (scratch / f"lines-{part}-{number}").write_bytes(_encoder.encode(own))


def _draw_part(key: object, parts: int) -> int:
    return crc32(repr(key).encode()) % parts


def _pair(file: Path, part: int, parts: int, scratch: Path) -> list[HistoryOperation]:
    """The operations of some processes."""
    lines = [
        line
        for number in range(parts)
        for line in _lines_decoder.decode((scratch / f"lines-{part}-{number}").read_bytes())
    ]
    return pair_lines([line for _, line in lines], str(file), [number for number, _ in lines])


def pair_part(file: Path, part: int, parts: int, scratch: Path) -> int:
    """Writes the operations of some processes by key; returns how many there are."""
    found: list[list[KeyOperation]] = [[] for _ in range(parts)]
    operations = _pair(file, part, parts, scratch)
    for one in operations:
        steps: dict[int, list[Any]] = {}
        for step in list_steps(one):
            steps.setdefault(_draw_part(step[1], parts), []).append(step)
        for place, own in steps.items():
            found[place].append(KeyOperation(one.process, one.f, own, one.begin, one.end))
    for place, some in enumerate(found):
        (scratch / f"operations-{place}-{part}").write_bytes(_encoder.encode(some))
    return len(operations)


def _to_operation(number: int, one: KeyOperation, steps: list[Any]) -> HistoryOperation:
    return HistoryOperation(number, one.process, one.f, None, steps, one.begin, one.end)


def _read_keys(part: int, parts: int, scratch: Path) -> list[HistoryOperation]:
    """What concerns some keys, in the order of time."""
    found = [
        one
        for number in range(parts)
        for one in _operations_decoder.decode((scratch / f"operations-{part}-{number}").read_bytes())
    ]
    found.sort(key=lambda one: one.begin)
    return [_to_operation(number, one, one.steps) for number, one in enumerate(found)]


def judge_keys(part: int, parts: int, scratch: Path) -> KeyVerdict:
    """Judges every read of some keys, and finds the dependencies of transactions that overlap."""
    history = _read_keys(part, parts, scratch)
    checked, wrong, edges = find_dependencies(history)
    spans = [(one.begin, OPEN_END if one.end is None else one.end) for one in history]
    pairs = [
        (*spans[before], *spans[after])
        for before, others in edges.items()
        for after in others
        if spans[before][1] > spans[after][0]
    ]
    return KeyVerdict(checked, wrong, np.array(pairs, np.int64).reshape(-1, 4))


def read_window(
    part: int, parts: int, scratch: Path, window: tuple[int, int]
) -> tuple[list[KeyOperation], list[tuple[int, int, str]]]:
    """The transactions that begin in a window and concern some keys, and what depends on what among them."""
    history = _read_keys(part, parts, scratch)
    inside = [one for one in history if window[0] <= one.begin <= window[1]]
    numbers = {one.number for one in inside}
    edges = [
        (history[before].begin, history[after].begin, why)
        for before, others in find_dependencies(history).edges.items()
        for after, why in others.items()
        if before in numbers and after in numbers
    ]
    return [KeyOperation(one.process, one.f, [], one.begin, one.end) for one in inside], edges


def find_contradiction(edges: Int64Array) -> tuple[int, int] | None:
    """The first and the last begin of transactions that cannot all have happened at once, each at some point between
    its begin and its end; None if there are none."""
    begins, places = np.unique(edges[:, (0, 2)], return_inverse=True)
    places = places.reshape(-1, 2)
    ends = np.empty(begins.size, np.int64)
    ends[places.ravel()] = edges[:, (1, 3)].ravel()
    order = np.argsort(places[:, 0], kind="stable")
    sources, targets = places[order, 0], places[order, 1]
    offsets = np.searchsorted(sources, np.arange(begins.size + 1))
    points, before, free = find_points(offsets, targets, np.bincount(targets, minlength=begins.size), begins)
    late = np.flatnonzero((points > ends) & (before != IN_CYCLE))
    if late.size:
        path = [int(late[0])]
        while before[path[-1]] >= 0:
            path.append(int(before[path[-1]]))
    elif free < begins.size:
        path = _walk_cycle(sources, targets, before == IN_CYCLE)
    else:
        return None
    return int(begins[path].min()), int(begins[path].max())


def _walk_cycle(sources: Int64Array, targets: Int64Array, is_left: Any) -> list[int]:
    """A cycle among the transactions that are left: each has one before it that is left as well."""
    inner = is_left[sources] & is_left[targets]
    predecessor = dict(zip(targets[inner].tolist(), sources[inner].tolist(), strict=True))
    seen: dict[int, int] = {}
    path: list[int] = []
    at = int(targets[inner][0])
    while at not in seen:
        seen[at] = len(path)
        path.append(at)
        at = predecessor[at]
    return path[seen[at] :]


# Banks


def judge_bank(file: Path, part: int, parts: int, scratch: Path) -> tuple[HistoryReport, HistoryOperation | None]:
    """Judges the reads of some processes; returns the first of them as well."""
    history = _pair(file, part, parts, scratch)
    reads = (one for one in history if one.f == "read" and one.is_certain)
    return check_bank(history), next(reads, None)


def _join_banks(found: list[tuple[HistoryReport, HistoryOperation | None]]) -> HistoryReport:
    checked = {name: sum(report.checked[name] for report, _ in found) for name in ("operations", "reads")}
    for report, _ in found:
        if report.verdict == "violated":
            return replace(report, checked=checked)
    firsts = sorted((first for _, first in found if first is not None), key=lambda one: one.begin)
    return replace(check_bank(firsts), checked=checked)
