"""Golden transcripts: a lone multicast to two groups, step by step, as reviewed by a person once.

A change here is a change of what a protocol says. If it is meant, write them anew and read the difference:

    AMCAST_WRITE_TRANSCRIPTS=1 .venv/bin/python -m pytest tests/transcripts
"""

import os
from pathlib import Path

import pytest

from amcast.lab.delays import record_transcript
from amcast.protocols.catalogue import CATALOGUE

HERE = Path(__file__).parent


@pytest.mark.parametrize("name", list(CATALOGUE))
def test_lone_multicast_matches_its_transcript(name: str) -> None:
    spec = CATALOGUE[name]
    transcript = (
        "\n".join(record_transcript(spec, 2, 1 if spec.unreplicated or spec.claims.single_replica else 3)) + "\n"
    )
    golden = HERE / f"{name}.txt"
    if os.environ.get("AMCAST_WRITE_TRANSCRIPTS"):
        golden.write_text(transcript)
    assert golden.is_file(), f"no transcript of {name} yet; write it as the docstring says, and read it"
    assert transcript == golden.read_text()


def test_every_transcript_has_a_protocol() -> None:
    assert {file.stem for file in HERE.glob("*.txt")} <= set(CATALOGUE)
