"""The pages of the documentation site: complete, in the navigation, and without dead links.

`make docs` builds the site with its generator and checks every link and anchor of the result as well.
"""

import re
from pathlib import Path

import pytest
from docs.site.__main__ import PageReader, check_pages, finish_pages
from docs.site.pages import DeadLinkError, check_links, gather_pages, list_anchors, list_navigation

from amcast.cli.main import app


@pytest.fixture(scope="module")
def pages() -> dict[str, str]:
    return gather_pages()[0]


def test_every_page_is_in_a_section(pages: dict[str, str]) -> None:
    sections = list_navigation(pages)
    assert [title for title, _ in sections] == [
        "Start", "Concepts", "Build services", "Operate", "Laboratory", "Reference",
    ]  # fmt: skip
    assert list_navigation({**pages, "new.md": "# New"})[-1][1][-1] == ("New", "new.md")


def test_every_command_has_a_page_with_its_options(pages: dict[str, str]) -> None:
    for command in app.registered_commands:
        name = command.name or getattr(command.callback, "__name__", "")
        assert f"# amcast {name}\n" in pages[f"commands/{name}.md"]
    assert "| `--protocol`, `-p` |" in pages["commands/simulate.md"]
    assert "[grid]" in pages["commands/sweep.md"]


@pytest.mark.parametrize("link", ["nowhere.md", "glossary.md#nowhere", "#nowhere"])
def test_dead_links_are_found(link: str, pages: dict[str, str]) -> None:
    with pytest.raises(DeadLinkError, match=f"new.md: {link}"):
        check_links({**pages, "new.md": f"# New\n\n[a link]({link})"}, {})


def test_anchors_are_those_of_headings_outside_code() -> None:
    assert list_anchors("# A `b`: c, d\n```\n# e\n```\n## A `b`: c, d\n") == {"a-b-c-d", "a-b-c-d_1"}


def test_built_pages_load_nothing_from_elsewhere(tmp_path: Path) -> None:
    page = tmp_path / "inside" / "a.html"
    page.parent.mkdir()
    page.write_text('<script src="https://elsewhere/iframe-worker/shim"></script><a href="#b">b</a><p id="b">')
    with pytest.raises(DeadLinkError, match="loads https://elsewhere"):
        check_pages(tmp_path)
    finish_pages(tmp_path)
    assert PageReader(page).loaded == ["../worker.js"]
    with pytest.raises(DeadLinkError, match=r"worker\.js"):
        check_pages(tmp_path)
    (tmp_path / "worker.js").touch()
    check_pages(tmp_path)
    page.write_text('<a href="#c">c</a><p id="b">')
    with pytest.raises(DeadLinkError, match=r"inside/a\.html: #c"):
        check_pages(tmp_path)


def test_links_have_the_titles_of_their_pages(pages: dict[str, str]) -> None:
    assert "[Quick start](quickstart.md)" in pages["index.md"]
    assert not re.findall(r"\[[\w/-]+\.md\]\(", pages["index.md"])


def test_what_is_not_promised_is_said_in_plain_words(pages: dict[str, str]) -> None:
    for place in ("guarantees.md", "limits.md"):
        plain = re.sub(r"[*\s]+", " ", pages[place])
        assert 'not linearizable over several groups unless `order = "real-time"` is set' in plain
    assert "AMCAST_CONFIG" in pages["index.md"]
    assert "AMCAST_CONFIG" in pages["quickstart.md"]
