"""Progress of a long job in its own units, without Spark."""

import io
import time
from pathlib import Path
from typing import Any

import pytest

from amcast.pipeline.spark import progress
from amcast.pipeline.sweep.journal import JournalCounter


def test_lines_show_the_jobs_own_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(progress, "LINE_SECONDS", 0.02)
    stream, done = io.StringIO(), iter(range(1000))
    no_session: Any = None
    with progress.show_progress(no_session, "sweeping", stream, lambda: (next(done), 1000), "cells"):
        deadline = time.monotonic() + 10
        while stream.getvalue().count("\n") < 3 and time.monotonic() < deadline:
            time.sleep(0.01)
    lines = stream.getvalue().splitlines()
    assert lines[0].startswith("sweeping: 0 of 1000 cells, ")
    assert lines[2].startswith("sweeping: 2 of 1000 cells, ")


def test_journal_counter_counts_new_complete_lines(tmp_path: Path) -> None:
    (tmp_path / "old.jsonl").write_bytes(b"{}\n{}\n")
    count = JournalCounter(tmp_path)
    assert count() == 0
    with (tmp_path / "old.jsonl").open("ab") as old, (tmp_path / "new.jsonl").open("ab") as new:
        for file, text in ((old, b"{}\n{"), (new, b"{}\n{}\n")):
            file.write(text)
            file.flush()
        assert count() == 3
        old.write(b"}\n")
        old.flush()
        assert count() == 4
    assert count() == 4
