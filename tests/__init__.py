"""The test suite: mirrors `src/amcast`, plus suites that run every protocol (conformance, mutants, transcripts)."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
