"""The words of the project: the field's nouns, and none of a private language."""

import ast
import re

import pytest

from tests import ROOT

BANNED = {
    "fellow": "member, peer or replica",
    "fellows": "members, peers or replicas",
    "strangers": "pending connections",
    "forgetful": "a member that lost its state",
    "rooms": "packages",
    "tidings": "reply",
    "vitals": "status",
    "farewells": "Farewell messages",
}
PAGES = sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"])
SOURCES = sorted((ROOT / "src").rglob("*.py"))


@pytest.mark.parametrize("word", sorted(BANNED))
def test_private_words_are_not_used(word: str) -> None:
    pattern = re.compile(rf"\b{word}\b", re.IGNORECASE)
    pages = [str(path.relative_to(ROOT)) for path in [*PAGES, *SOURCES] if pattern.search(path.read_text())]
    assert not pages, f"{word!r} is used in {pages}; the field's word is: {BANNED[word]}"


def test_variables_are_not_named_by_verbs_of_speech() -> None:
    """What was told, said or heard has a noun: output, sentence, log, status, deliveries."""
    faults = []
    for path in [*SOURCES, *sorted((ROOT / "tests").rglob("*.py"))]:
        for node in ast.walk(ast.parse(path.read_text())):
            name = getattr(node, "arg", None) or getattr(node, "id", None) or getattr(node, "name", None)
            if name in ("told", "said", "heard"):
                faults.append(f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', 0)} {name}")
    assert not faults, faults


def test_docstrings_do_not_speak_as_a_process() -> None:
    """A docstring names its subject; a process does not say I, me or my."""
    spoken = re.compile(r'"""[^"]*\b(I am|I have|I know|My|my)\b')
    pages = [str(path.relative_to(ROOT)) for path in SOURCES if spoken.search(path.read_text())]
    assert not pages, f"docstrings in the first person: {pages}"


def test_glossary_is_sorted_and_each_term_has_one_entry() -> None:
    terms = re.findall(r"^\*\*([^*]+)\*\*:", (ROOT / "docs" / "glossary.md").read_text(), re.MULTILINE)
    assert len(terms) > 30
    assert len({term.lower() for term in terms}) == len(terms)
    assert terms == sorted(terms, key=str.lower)
