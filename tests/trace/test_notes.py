"""Every note that the sources write has a meaning that a reader of a report can look up."""

import re

import pytest

from amcast.trace.notes import NOTE_TEXTS, PREFIXES, describe_note
from tests import ROOT

WRITTEN = re.compile(r'(?:\bnote|record_note)\(\s*(?:"([a-z -]+)"( if [^\n]* else "([a-z -]+)")?)')


def list_written_notes() -> set[str]:
    found: set[str] = set()
    for file in (ROOT / "src" / "amcast").rglob("*.py"):
        for first, _, second in WRITTEN.findall(file.read_text()):
            found |= {first, second} - {""}
    return found


def test_every_note_is_explained() -> None:
    written = list_written_notes()
    assert {"bump", "extended", "adopted", "mended", "checkpointed", "returned"} <= written
    assert sorted(written - set(NOTE_TEXTS)) == []


@pytest.mark.parametrize("prefix", sorted(PREFIXES))
def test_prefixes_are_written(prefix: str) -> None:
    assert any(f'f"{prefix}' in file.read_text() for file in (ROOT / "src" / "amcast").rglob("*.py"))
    assert describe_note(f"{prefix}crash").startswith(PREFIXES[prefix])


def test_notes_of_other_writers_have_no_meaning() -> None:
    assert describe_note("my-own") == ""
