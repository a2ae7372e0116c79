"""Schedules that break real-time order, kept in files: the schedule, its story, its picture.

NAME.json   protocol and schedule; `amcast worst --real-time --schedule NAME.json` runs it again
NAME.txt    the cycle in sentences, and the deliveries that close it
NAME.svg    the packets about the messages of the cycle
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from amcast.check.judge import Report, judge
from amcast.kernel.errors import UsageError
from amcast.kernel.ids import sender_of, sequence_of
from amcast.kernel.spec import Spec
from amcast.lab.protocol_lookup import find_protocol
from amcast.lab.real_time.schedule import Schedule, run_schedule
from amcast.trace.columns import BATCH_ROWS
from amcast.trace.run import Columns, Run
from amcast.trace.spacetime_diagram import draw_spacetime
from amcast.trace.view import Selection, format_time, packet_messages

ARROWS: Final = 150
LAST: Final = 1 << 62


@dataclass(frozen=True)
class Counterexample:
    """A protocol, and a schedule under which it breaks real-time order."""

    spec: Spec
    schedule: Schedule

    def judge(self) -> tuple[Run, Report]:
        """The run, with its packets, and the judgement of every property."""
        run = run_schedule(self.spec, self.schedule, packets=True)
        return run, judge(run)

    def write(self, folder: Path) -> None:
        """Writes the three files."""
        run, report = self.judge()
        folder.mkdir(parents=True, exist_ok=True)
        name = self.spec.name
        (folder / f"{name}.json").write_bytes(_format_json({"protocol": name, **self.schedule.as_dict()}))
        (folder / f"{name}.txt").write_text("".join(f"{line}\n" for line in tell_cycle(run, report)))
        (folder / f"{name}.svg").write_text(draw_cycle(run, report))


def read_counterexample(file: Path) -> Counterexample:
    """Reads NAME.json."""
    try:
        data = msgspec.json.decode(file.read_bytes())
        return Counterexample(find_protocol(data["protocol"]), Schedule.of_dict(data))
    except OSError as error:
        raise UsageError(f"{file}: {error.strerror}; expected a file that amcast worst --real-time wrote") from None
    except UsageError:
        raise
    except (msgspec.DecodeError, KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{file}: no schedule; expected a file that amcast worst --real-time wrote") from None


def _format_json(data: dict[str, Any]) -> bytes:
    """One line for each field."""
    fields = [f'"{name}": {msgspec.json.encode(value).decode()}' for name, value in data.items()]
    return ("{\n" + ",\n".join(fields) + "\n}\n").encode()


def find_cycle(report: Report) -> list[int]:
    """The messages of the cycle: the answered one, the one that was multicast afterwards, and the way back."""
    return [edge["message"] for edge in report.properties["P9"].witness]


def tell_cycle(run: Run, report: Report) -> Iterator[str]:
    """The story of P9, then when the messages of the cycle were multicast, answered and first delivered."""
    names = {message: f"{sender_of(message)}.{sequence_of(message)}" for message in run.multicasts["message"]}
    for sentence in report.properties["P9"].story:
        yield re.sub(r"\b\d{10,}\b", lambda found: names.get(int(found[0]), found[0]), sentence)
    yield ""
    yield from _list_steps(run, find_cycle(report), names)


def _list_steps(run: Run, messages: list[int], names: dict[int, str]) -> Iterator[str]:
    steps: list[tuple[int, int, str]] = []
    for message, groups, at in zip(*(run.multicasts[c] for c in ("message", "destinations", "at_ns")), strict=True):
        if message in messages:
            to = ("group " if len(groups) == 1 else "groups ") + ", ".join(map(str, groups))
            steps.append((at, -1, f"{names[message]} is multicast to {to}"))
    assert run.answers is not None
    for message, at in zip(run.answers["message"], run.answers["at_ns"], strict=True):
        if message in messages:
            steps.append((at, LAST, f"{names[message]} is answered"))
    first: dict[tuple[int, int], tuple[int, int]] = {}
    columns = (run.deliveries[name] for name in ("group", "message", "at_ns", "position"))
    for group, message, at, position in zip(*columns, strict=True):
        first[group, message] = min((at, position), first.get((group, message), (at, position)))
    steps += [(*when, f"group {g} delivers {names[m]}") for (g, m), when in first.items() if m in messages]
    width = max(len(format_time(at)) for at, _, _ in steps)
    for at, _, text in sorted(steps):
        yield f"{format_time(at):>{width}}  {text}"


def draw_cycle(run: Run, report: Report) -> str:
    """The space-time diagram of the messages of the cycle."""
    messages = set(find_cycle(report))
    times = zip(run.multicasts["message"], run.multicasts["at_ns"], strict=True)
    since = min(at for message, at in times if message in messages)
    return draw_spacetime(_select_messages(run, messages), Selection(since_ns=since), arrows=ARROWS)


class _PacketsAbout:
    """The packets of a run about some messages."""

    def __init__(self, run: Run, messages: set[int]) -> None:
        assert run.packets is not None
        self._rows = [
            row
            for batch in run.packets.batches()
            for row in (dict(zip(batch, values, strict=True)) for values in zip(*batch.values(), strict=True))
            if messages.intersection(packet_messages(row["message"], row["messages"]))
        ]

    def __len__(self) -> int:
        return len(self._rows)

    def batches(self, *names: str) -> Iterator[Columns]:
        for start in range(0, len(self._rows), BATCH_ROWS):
            rows = self._rows[start : start + BATCH_ROWS]
            yield {name: [row[name] for row in rows] for name in names or rows[0]}


def _select_messages(run: Run, messages: set[int]) -> Run:
    """The run without other messages."""

    def select(columns: Columns) -> Columns:
        keep = [at for at, message in enumerate(columns["message"]) if message in messages]
        return {name: [values[at] for at in keep] for name, values in columns.items()}

    assert run.answers is not None
    return Run(
        run.meta,
        run.processes,
        select(run.multicasts),
        select(run.deliveries),
        select(run.notes),
        _PacketsAbout(run, messages),
        select(run.answers),
    )
