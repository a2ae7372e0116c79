"""Output of commands: results on standard output, all else on standard error; a bar on a terminal, else lines."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import monotonic
from typing import Annotated, Any, Final

import typer
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

HOLDS: Final = 0
VIOLATED: Final = 1
UNKNOWN: Final = 2
WRONG_USE: Final = 64
INTERNAL: Final = 70

LINE_SECONDS: Final = 5.0
"""How often progress is printed when standard error is no terminal."""

EXIT_CODES: Final = {"holds": HOLDS, "violated": VIOLATED, "unknown": UNKNOWN}
_VERDICT_COLOURS: Final = {"holds": "green", "violated": "red", "unknown": "yellow"}

JsonFlag = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]
SeedOption = Annotated[int, typer.Option("--seed", help="The seed of all random draws.")]

out = Console(soft_wrap=True, highlight=False, width=None if sys.stdout.isatty() else 140)
err = Console(stderr=True, soft_wrap=True, highlight=False)


def print_json(data: Any) -> None:
    """A result for scripts."""
    sys.stdout.write(json.dumps(data, indent=2, ensure_ascii=False) + "\n")


def print_table(headings: Sequence[str], rows: Sequence[Sequence[object]], title: str | None = None) -> None:
    """A result for readers."""
    rich_table = Table(*headings, title=title, title_justify="left", header_style="bold")
    for row in rows:
        rich_table.add_row(*("" if cell is None else str(cell) for cell in row))
    out.print(rich_table)


def colour_verdict(verdict: str) -> str:
    """A verdict in its colour."""
    colour = _VERDICT_COLOURS.get(verdict)
    return f"[{colour}]{verdict}[/{colour}]" if colour else verdict


@contextmanager
def show_progress(what: str, total: int | None = None) -> Iterator[Callable[[int], None]]:
    """Shows the progress of long work: call the result with the number of items done so far."""
    if err.is_terminal:
        columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeElapsedColumn())
        with Progress(*columns, console=err, transient=True) as bar:
            task = bar.add_task(what, total=total)
            yield lambda done: bar.update(task, completed=done)
        return
    last_line = monotonic()

    def print_line(done: int) -> None:
        nonlocal last_line
        if monotonic() - last_line >= LINE_SECONDS:
            last_line = monotonic()
            err.print(f"{what}: {done}" + (f" of {total}" if total else ""))

    yield print_line
