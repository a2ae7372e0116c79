"""The pages of the documentation site: those of `docs/`, the project's own files, and pages that are generated.

A page of the site has the path that it has below `docs/`. A link that leaves `docs/` leads to a page with the file that
it names, so that the site is complete without the repository. A link to nothing is an error.
"""

import posixpath
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SECTIONS: dict[str, tuple[str, ...]] = {
    "Start": ("index.md", "quickstart.md", "guarantees.md", "limits.md", "glossary.md"),
    "Concepts": (
        "MODEL.md", "real-time.md", "protocols/", "convoys.md", "worst-case.md", "cost.md", "ARCHITECTURE.md",
        "decisions/",
    ),
    "Build services": ("client.md", "services.md", "apps/", "source/examples/"),
    "Operate": ("live.md", "operate.md", "membership.md", "torture.md"),
    "Laboratory": (
        "advise.md", "workloads.md", "search.md", "evidence.md", "spark.md", "reports.md", "reproduction.md",
        "errata.md",
        "real-time/",
    ),
    "Reference": ("commands/", "api.md", "RESULTS.md", "changelog.md", "contributing.md"),
}  # fmt: skip
"""The navigation: pages and folders of pages."""
NAMED = {"README.md": "index.md", "CHANGELOG.md": "changelog.md", "CONTRIBUTING.md": "contributing.md"}
"""Files of the project that are pages, and their paths in the site."""
LINK = re.compile(r"(?<!`)\[(?P<text>[^\]\[]*)\]\((?P<target>[^)\s]+)\)")
LANGUAGES = {".py": "python", ".toml": "toml", ".yaml": "yaml", ".json": "json", "": "docker", ".service": "ini"}


class DeadLinkError(Exception):
    """A link of a page leads nowhere."""


def gather_pages(root: Path = ROOT) -> tuple[dict[str, str], dict[str, Path]]:
    """The site before it is built: Markdown by path, and other files that pages show or name, by path."""
    gatherer = Gatherer(root)
    for file in sorted((root / "docs").rglob("*.md")):
        gatherer.add_page(file)
    for name in NAMED:
        gatherer.add_page(root / name)
    gatherer.pages.update(make_command_pages())
    gatherer.pages["api.md"] = make_api_page()
    gatherer.add_folder_pages()
    check_links(gatherer.pages, gatherer.files)
    return gatherer.pages, gatherer.files


class Gatherer:
    """Collects pages and what they refer to."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.pages: dict[str, str] = {}
        self.files: dict[str, Path] = {}

    def add_page(self, file: Path) -> None:
        """Adds a Markdown file, with its links rewritten for the site."""
        place = self.place_of(file)
        if place in self.pages:
            return
        self.pages[place] = ""
        self.pages[place] = "".join(
            part if is_code else LINK.sub(lambda found: self._rewrite(found, file, place), part)
            for part, is_code in split_code(file.read_text())
        )

    def _rewrite(self, found: re.Match[str], file: Path, place: str) -> str:
        target, _, anchor = found["target"].partition("#")
        if re.match(r"[a-z]+:", target) or not target:
            return found[0]
        aim = (file.parent / target).resolve()
        if not aim.exists():
            raise DeadLinkError(f"{file.relative_to(self.root)}: {target} does not exist")
        relative = posixpath.relpath(self._include(aim), posixpath.dirname(place))
        text = name_page(found["text"], aim)
        return f"[{text}]({relative}{'#' if anchor else ''}{anchor})"

    def _include(self, aim: Path) -> str:
        """Makes sure that the site has a file or folder of the project; returns its path in the site."""
        if aim.is_dir():
            for file in sorted(aim.iterdir()):
                if file.is_file() and self.root / "docs" not in aim.parents:
                    self._include(file)
            return self.place_of(aim)
        place = self.place_of(aim)
        if aim.suffix == ".md":
            self.add_page(aim)
        elif self.root / "docs" in aim.parents:
            self.files[place] = aim
        elif place not in self.pages:
            name = aim.relative_to(self.root).as_posix()
            self.pages[place] = f"# {name}\n\n````{LANGUAGES.get(aim.suffix, 'text')}\n{aim.read_text()}````\n"
        return place

    def place_of(self, file: Path) -> str:
        """The path in the site of a file or folder of the project."""
        name = file.relative_to(self.root).as_posix()
        if name in NAMED:
            return NAMED[name]
        inside = name.removeprefix("docs/") if name.startswith("docs/") else f"source/{name}"
        if file.is_dir():
            return f"{inside}/index.md"
        if file.name == "README.md":
            return posixpath.join(posixpath.dirname(inside), "index.md")
        return inside if file.suffix == ".md" else inside if name.startswith("docs/") else f"{inside}.md"

    def add_folder_pages(self) -> None:
        """Adds a list of its pages to every folder that has no page of its own."""
        for folder in sorted({posixpath.dirname(place) for place in self.pages} - {""}):
            index = f"{folder}/index.md"
            inside = [place for place in sorted(self.pages) if posixpath.dirname(place) == folder and place != index]
            items = [f"- [{title_of(self.pages[place])}]({posixpath.basename(place)})" for place in inside]
            if index not in self.pages:
                self.pages[index] = f"# {posixpath.basename(folder).capitalize()}\n\n" + "\n".join(items) + "\n"


def split_code(text: str) -> Iterator[tuple[str, bool]]:
    """The parts of a page, and whether each is a block of code."""
    for part in re.split(r"(^```.*?^```[^\n]*$)", text, flags=re.MULTILINE | re.DOTALL):
        yield part, part.startswith("```")


def name_page(text: str, aim: Path) -> str:
    """The text of a link: the title of its page, where the text is the name of a Markdown file."""
    if not re.fullmatch(r"[\w./-]+\.md|docs/[\w/-]+/?", text):
        return text
    page = aim / "README.md" if aim.is_dir() else aim
    return title_of(page.read_text()).partition(":")[0] if page.is_file() else text


def title_of(text: str) -> str:
    """The first heading of a page."""
    found = re.search(r"^# (.+)$", text, re.MULTILINE)
    return found[1] if found else text[:40]


def list_anchors(text: str) -> set[str]:
    """The anchors of a page: its headings, as hosts of repositories make them."""
    prose = "".join(part for part, is_code in split_code(text) if not is_code)
    anchors: set[str] = set()
    for heading in re.findall(r"^#+ +(.+?) *$", prose, re.MULTILINE):
        plain = LINK.sub(lambda found: found["text"], heading)
        slug = re.sub(r"[^\w\- ]", "", plain.lower()).replace(" ", "-")
        anchors.add(slug if slug not in anchors else f"{slug}_1")
    return anchors


def check_links(pages: dict[str, str], files: dict[str, Path]) -> None:
    """Refuses pages with a link to no page, or to no heading of its page."""
    dead = []
    for place, text in pages.items():
        prose = "".join(part for part, is_code in split_code(text) if not is_code)
        for found in LINK.finditer(prose):
            target, _, anchor = found["target"].partition("#")
            if re.match(r"[a-z]+:", target):
                continue
            aim = posixpath.normpath(posixpath.join(posixpath.dirname(place), target)) if target else place
            if aim not in pages and aim not in files:
                dead.append(f"{place}: {target}")
            elif anchor and anchor not in list_anchors(pages.get(aim, "")):
                dead.append(f"{place}: {target}#{anchor}")
    if dead:
        raise DeadLinkError(f"links that lead nowhere: {', '.join(dead)}")


def list_navigation(pages: dict[str, str]) -> list[tuple[str, list[tuple[str, Any]]]]:
    """Sections, each with titles and paths; a folder is a title with a list. A page that is in none ends the last one.

    Sources are found by links and search.
    """
    sections = []
    placed: set[str] = set()
    for section, entries in SECTIONS.items():
        items: list[tuple[str, Any]] = []
        for entry in entries:
            inside = [place for place in sorted(pages) if place.startswith(entry)] if entry.endswith("/") else [entry]
            placed.update(inside)
            if not entry.endswith("/"):
                items.append((title_of(pages[entry]), entry))
                continue
            inside.sort(key=lambda place: (posixpath.basename(place) != "index.md", place))
            items.append((title_of(pages[inside[0]]), [(title_of(pages[place]), place) for place in inside]))
        sections.append((section, items))
    left = sorted(place for place in pages if place not in placed and not place.startswith("source/"))
    sections[-1][1].extend((title_of(pages[place]), place) for place in left)
    return sections


# Generated pages


def make_command_pages() -> dict[str, str]:
    """A page per command, from its help."""
    from typer.main import get_command

    from amcast.cli.main import app

    root: Any = get_command(app)
    pages: dict[str, str] = {}
    panels: dict[str, list[str]] = {}
    for name, command in root.commands.items():
        panel = command.rich_help_panel if isinstance(command.rich_help_panel, str) else "Commands"
        summary = plain(command.help or "").partition("\n")[0]
        children = getattr(command, "commands", {})
        first = f"{name}-{next(iter(children))}" if children else name
        panels.setdefault(panel, []).append(f"- [`amcast {name}`]({first}.md): {summary}")
        for child, sub in (children or {"": command}).items():
            words = f"{name} {child}".strip()
            pages[f"commands/{words.replace(' ', '-')}.md"] = describe_command(f"amcast {words}", sub)
    order = sorted(panels, key=lambda panel: panel == "Commands")
    lists = "\n\n".join(f"## {panel}\n" + "\n".join(panels[panel]) for panel in order)
    codes = "Exit codes: 0 holds, 1 violated, 2 unknown or cannot tell, 64 wrong use, 70 internal error."
    pages["commands/index.md"] = f"# Commands\n\n{codes}\n\n{lists}\n"
    return pages


def describe_command(name: str, command: Any) -> str:
    """The page of one command."""
    paragraphs = []
    for paragraph in plain(command.help or "").split("\n\n"):
        label, found, example = " ".join(paragraph.split()).partition(": amcast ")
        if found and label.startswith("Example"):
            lines = "\n".join(part.strip() for part in f"amcast {example}".split("|   "))
            paragraphs.append(f"{label}:\n\n```sh\n{lines}\n```")
        else:
            paragraphs.append(" ".join(paragraph.split()))
    arguments = [option for option in command.params if not option.opts[0].startswith("-")]
    options = [option for option in command.params if option.opts[0].startswith("-") and option.name != "help"]
    usage = " ".join([name, "[OPTIONS]" if options else "", *(str(one.name).upper() for one in arguments)])
    text = f"# {name}\n\n```sh\n{' '.join(usage.split())}\n```\n\n" + "\n\n".join(paragraphs) + "\n"
    for heading, found_params in (("Arguments", arguments), ("Options", options)):
        if found_params:
            rows = "\n".join(describe_parameter(one) for one in found_params)
            text += f"\n## {heading}\n\n| name | meaning | default |\n|---|---|---|\n{rows}\n"
    return text


def describe_parameter(option: Any) -> str:
    """A row of the table of options."""
    names = [option.name.upper()] if not option.opts[0].startswith("-") else [*option.opts, *option.secondary_opts]
    shown = getattr(option, "show_default", None)
    default = shown if isinstance(shown, str) else option.default
    if callable(default) or default in (None, False, "") or "Sentinel" in type(default).__name__:
        default = "required" if option.required else ""
    meaning = plain(getattr(option, "help", "") or "").replace("|", "\\|").replace("\n", " ")
    return f"| {', '.join(f'`{one}`' for one in names)} | {meaning} | {default} |"


def plain(text: str) -> str:
    """Help without the escapes of the terminal's markup."""
    return text.replace("\\[", "[")


def make_api_page() -> str:
    """The public names, each with its docstring; the generator of the site fills them in."""
    import amcast
    import amcast.testing

    names = [f"amcast.{name}" for name in amcast.__all__ if not name.startswith("_")]
    kinds = {"Functions": [], "Classes": [], "Errors": []}  # type: dict[str, list[str]]
    for name in [*names, *(f"amcast.testing.{name}" for name in amcast.testing.__all__)]:
        module, _, last = name.rpartition(".")
        value = getattr(sys.modules[module], last)
        is_error = isinstance(value, type) and issubclass(value, Exception)
        kinds["Errors" if is_error else "Classes" if isinstance(value, type) else "Functions"].append(name)
    blocks = [f"## {kind}\n\n" + "\n\n".join(f"::: {name}" for name in found) for kind, found in kinds.items()]
    return "# The public interface\n\nWhat a program imports from `amcast`.\n\n" + "\n\n".join(blocks) + "\n"
