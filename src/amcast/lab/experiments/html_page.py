"""docs/reproduction.md as one self-contained HTML file, with its pictures inside.

The page is generated in a small part of Markdown: headings, paragraphs, tables, pictures, commands, bold text, links.
"""

import re
from collections.abc import Iterator
from html import escape
from itertools import groupby
from pathlib import Path
from typing import Final

from amcast.figures import style

CSS: Final = """
body { max-width: 76rem; margin: 0 auto; padding: 1rem; font: 16px/1.5 system-ui, sans-serif; }
:root { color-scheme: light dark; }
h2 { margin-top: 2.5rem; } h3 { margin-top: 2rem; }
p, li { max-width: 48rem; }
pre { overflow-x: auto; padding: .6rem; border: 1px solid #8884; border-radius: 4px; }
.table { overflow-x: auto; } table { border-collapse: collapse; font-size: .9rem; }
th, td { text-align: left; vertical-align: top; padding: .25rem .6rem; border-bottom: 1px solid #8884; }
td.holds { color: #1a7f37; } td.part { color: #b07a00; } td.differs { color: #c62828; }
figure { margin: 1rem 0; max-width: 40rem; background: #fff; color: #000; border-radius: 4px; }
figure svg { width: 100%; height: auto; }
figcaption { padding: 0 .6rem .4rem; font-size: .9rem; }
"""
VERDICTS: Final = {"holds": "holds", "holds in part": "part", "differs": "differs"}
PICTURE: Final = re.compile(r"!\[(.*)\]\((.*)\)")


def render_html(markdown: str, folder: Path) -> str:
    """The page; pictures are looked for beside `folder`, where the Markdown file is."""
    parts = [
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">',
        '<meta name="viewport" content="width=device-width,initial-scale=1"><title>The papers, reproduced</title>',
        f"<style>{style.build_css_variables()}{CSS}</style></head><body><main>",
        *_render_blocks(markdown, folder),
        "</main></body></html>\n",
    ]
    return "\n".join(parts)


def _render_blocks(markdown: str, folder: Path) -> Iterator[str]:
    lines = markdown.splitlines()
    for is_empty, group in groupby(lines, key=lambda line: not line.strip()):
        if not is_empty:
            yield _render_block(list(group), folder)


def _render_block(lines: list[str], folder: Path) -> str:
    first = lines[0]
    if heading := re.match(r"(#+) (.*)", first):
        level, text = len(heading[1]), heading[2]
        rest = _render_block(lines[1:], folder) if lines[1:] else ""
        return f'<h{level} id="{_slug(text)}">{_render_text(text)}</h{level}>{rest}'
    if first.startswith("|"):
        return _render_table(lines)
    if first.startswith("    "):
        return f"<pre><code>{escape(chr(10).join(line[4:] for line in lines))}</code></pre>"
    if picture := PICTURE.fullmatch(first):
        return _render_picture(picture[1], folder / picture[2])
    return f"<p>{_render_text(' '.join(lines))}</p>"


def _render_picture(title: str, file: Path) -> str:
    drawing = file.read_text(encoding="utf-8")
    drawing = drawing[drawing.index("<svg") :]
    # Every file has the ids of its own parts; one page may have each only once.
    drawing = re.sub(r'(id="|url\(#|href="#)', rf"\g<1>{_slug(file.parent.name)}-{_slug(file.stem)}-", drawing)
    return f"<figure>{drawing}<figcaption>{escape(title)}</figcaption></figure>"


def _render_table(lines: list[str]) -> str:
    rows = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in lines]
    head = "".join(f"<th>{_render_text(cell)}</th>" for cell in rows[0])
    body = "".join(f"<tr>{''.join(_render_cell(cell) for cell in row)}</tr>" for row in rows[2:])
    return f'<div class="table"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _render_cell(cell: str) -> str:
    kind = VERDICTS.get(cell.strip("*"))
    return f'<td class="{kind}">{_render_text(cell)}</td>' if kind else f"<td>{_render_text(cell)}</td>"


def _render_text(text: str) -> str:
    html = re.sub(r"\*\*(.+?)\*\*", r"<b>\1</b>", escape(text))
    html = re.sub(r"(?<!\w)\*(\w+)\*(?!\w)", r"<em>\1</em>", html)
    html = re.sub(r"`(.+?)`", r"<code>\1</code>", html)
    return re.sub(r"\[(.+?)\]\((.+?)\)", r'<a href="\2">\1</a>', html)


def _slug(text: str) -> str:
    return re.sub(r"[^a-z0-9 -]", "", text.lower()).replace(" ", "-")
