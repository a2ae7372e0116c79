"""Builds the documentation site: `make docs`, or `python -m docs.site --out build/site`.

The site is a folder of files that needs no network and no server, search included.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from docs.site.pages import ROOT, DeadLinkError, gather_pages, list_navigation

CONFIG = """
[project]
site_name = "amcast"
site_description = "Atomic multicast: one order for a sharded service"
copyright = "Apache-2.0"
docs_dir = "pages"
extra_css = ["extra.css"]
site_dir = "site"
use_directory_urls = false
nav = {navigation}

[project.theme]
font = false
features = ["content.code.copy", "navigation.footer", "navigation.indexes", "navigation.tabs", "navigation.top"]

[[project.theme.palette]]
media = "(prefers-color-scheme)"
toggle.icon = "lucide/sun-moon"
toggle.name = "Switch to light mode"
[[project.theme.palette]]
media = "(prefers-color-scheme: light)"
scheme = "default"
toggle.icon = "lucide/sun"
toggle.name = "Switch to dark mode"
[[project.theme.palette]]
media = "(prefers-color-scheme: dark)"
scheme = "slate"
toggle.icon = "lucide/moon"
toggle.name = "Switch to the system's mode"

[project.markdown_extensions]
attr_list = {{}}
tables = {{}}
toc.permalink = true
pymdownx.highlight.pygments_lang_class = true
pymdownx.superfences = {{}}
toc.slugify = {{ object = "pymdownx.slugs.slugify", kwds = {{ case = "lower" }} }}

[project.plugins.offline]
enabled = true
[project.plugins.mkdocstrings.handlers.python]
paths = [{sources}]
[project.plugins.mkdocstrings.handlers.python.options]
show_source = false
show_root_heading = true
show_root_full_path = true
show_signature_annotations = true
heading_level = 3
"""
OUTSIDE = re.compile(r'<script src="https://[^"]*iframe-worker[^"]*"[^>]*></script>')
"""The generator fetches the worker of offline search from the network; the site has its own."""


def main(arguments: list[str] | None = None) -> int:
    """Builds the site and checks every link of it."""
    parser = argparse.ArgumentParser(prog="python -m docs.site", description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "site", help="folder of the site; it is replaced")
    out = parser.parse_args(arguments).out.resolve()
    work = out.with_name(f"{out.name}-work")
    shutil.rmtree(work, ignore_errors=True)
    try:
        pages, files = gather_pages()
        write_sources(work, pages, files)
        # The generator writes its cache into the current folder.
        subprocess.run([sys.executable, "-m", "zensical", "build", "--clean"], cwd=work, check=True)
        finish_pages(work / "site")
        check_pages(work / "site")
    except DeadLinkError as error:
        print(error, file=sys.stderr)
        return 1
    shutil.rmtree(out, ignore_errors=True)
    (work / "site").rename(out)
    shutil.rmtree(work)
    print(f"{len(pages)} pages; the site is {out / 'index.html'}")
    return 0


def write_sources(work: Path, pages: dict[str, str], files: dict[str, Path]) -> None:
    """Writes what the generator reads."""
    for place, text in pages.items():
        target = work / "pages" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    for place, file in files.items():
        target = work / "pages" / place
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(file, target)
    for name in ("worker.js", "extra.css"):
        shutil.copyfile(Path(__file__).with_name(name), work / "pages" / name)
    navigation = format_navigation(list(list_navigation(pages)))
    (work / "zensical.toml").write_text(CONFIG.format(navigation=navigation, sources=json.dumps(str(ROOT / "src"))))


def format_navigation(items: list[tuple[str, Any]]) -> str:
    """The navigation in TOML: strings are written as in JSON."""
    entries = []
    for title, inside in items:
        value = json.dumps(inside) if isinstance(inside, str) else format_navigation(inside)
        entries.append(f"{{ {json.dumps(title)} = {value} }}")
    return f"[{', '.join(entries)}]"


def finish_pages(site: Path) -> None:
    """Lets pages load nothing from the network."""
    for file in site.rglob("*.html"):
        up = "../" * (len(file.relative_to(site).parts) - 1)
        file.write_text(OUTSIDE.sub(f'<script src="{up}worker.js"></script>', file.read_text()))


class PageReader(HTMLParser):
    """Collects the anchors of a page, its links, and what it loads."""

    def __init__(self, file: Path) -> None:
        super().__init__()
        self.anchors: set[str] = set()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.feed(file.read_text())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        values = dict(attrs)
        self.anchors.update(value for value in (values.get("id"), values.get("name")) if value)
        if tag == "a" and values.get("href"):
            self.links.append(values["href"] or "")
        elif tag in ("script", "img", "link", "iframe"):
            self.loaded.extend(value for value in (values.get("src"), values.get("href")) if value)


def check_pages(site: Path) -> None:
    """Refuses a site with a dead link, or one that loads anything from elsewhere."""
    read = {file: PageReader(file) for file in site.rglob("*.html") if file.name != "404.html"}
    dead = []
    for file, page in read.items():
        dead += [f"{file.relative_to(site)} loads {one}" for one in page.loaded if re.match(r"(https?:)?//", one)]
        for link in [*page.links, *page.loaded]:
            target, _, anchor = unquote(link).partition("#")
            if re.match(r"[a-z]+:|//", target):
                continue
            aim = (file.parent / target).resolve() if target else file
            aim = aim / "index.html" if aim.is_dir() else aim
            if not aim.is_file() or (anchor and aim in read and anchor not in read[aim].anchors):
                dead.append(f"{file.relative_to(site)}: {link}")
    if dead:
        raise DeadLinkError(f"{len(dead)} links lead nowhere: {', '.join(dead[:20])}")


if __name__ == "__main__":
    sys.exit(main())
