"""The page: one self-contained HTML file. The verdict first, then what was run, charts, tables.

No font, no request: it can be mailed, archived and read without a network, which its content policy enforces. It
follows the reader's preference for light or dark, with one column on a phone and two on a desktop. A script within the
page adds what a reader points at, filters and enlarges; without it everything is there to read and to print.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from html import escape, unescape
from typing import Any, Final

from amcast.figures import style
from amcast.figures.chart_selection import PageContent
from amcast.figures.charts import Chart, format_compact
from amcast.figures.interaction import CSS as INTERACTION_CSS
from amcast.figures.interaction import SCRIPT, render_filters
from amcast.figures.tables import PageTable

MAX_FAILURES: Final = 20
MAX_OPEN_ROWS: Final = 24
FIRST_ROWS: Final = 12
"""Rows shown at once of a table with more than MAX_OPEN_ROWS rows."""
VERDICT_TEXTS: Final = {
    "holds": ("Holds", "Every property that these runs claim holds."),
    "violated": ("Violated", "A property that a run claims is violated."),
    "unknown": ("Unknown", "Something could not be decided, or did not end well."),
}


@dataclass(frozen=True)
class FailedRun:
    """A run whose status is not ok."""

    label: str
    status: str
    message: str
    replay: str


@dataclass(frozen=True)
class ReportSummary:
    """The content of a page that does not come from the measures."""

    title: str
    verdict: str
    meaning: tuple[str, str] | None = None
    """The verdict in a word and in a sentence, where it is not about properties."""
    story: tuple[str, ...] = ()
    """Sentences behind the verdict."""
    tiles: tuple[tuple[str, str], ...] = ()
    """Headline numbers: name, value."""
    facts: tuple[tuple[str, str], ...] = ()
    """What was run: field, value."""
    verdicts: tuple[PageTable, ...] = ()
    failures: tuple[FailedRun, ...] = ()
    timeline: str = ""
    """An SVG of the seconds around a fault."""
    timeline_caption: str = ""
    spacetime: str = ""
    """An SVG of some part of a run."""
    spacetime_caption: str = ""
    notes: tuple[str, ...] = ()
    """How the numbers were made."""


def render_page(summary: ReportSummary, content: PageContent) -> str:
    """The whole file."""
    word, meaning = summary.meaning or VERDICT_TEXTS[summary.verdict]
    verdicts = [_render_section(table.title, _render_page_table(table)) for table in summary.verdicts]
    # Of one protocol, a reader asks first what holds; of several, how they compare.
    is_comparison = len(content.protocols) > 1
    parts = [
        f'<header><p class="kicker">amcast report</p><h1>{escape(summary.title)}</h1>',
        f'<div class="verdict {summary.verdict}" role="status"><strong>{word}</strong><span>{meaning}</span></div>',
        *(f'<p class="story">{escape(sentence)}</p>' for sentence in summary.story),
        _render_tiles(summary.tiles),
        "</header><main>",
        _render_answers(content.answers),
        _render_failures(summary.failures),
        *([] if is_comparison else verdicts),
        render_filters(content.protocols, _list_groups(summary.timeline)),
        _render_drawing("Around the fault", "timeline", summary.timeline, summary.timeline_caption),
        _render_charts(content.charts),
        _render_drawing("In space and time", "spacetime", summary.spacetime, summary.spacetime_caption),
        _render_facts(summary.facts),
        *(verdicts if is_comparison else []),
        *(_render_section(table.title, _render_page_table(table, content.protocols)) for table in content.tables),
        _render_notes([*content.left_out, *summary.notes]),
        f"</main><script>{SCRIPT}</script>",
    ]
    head = (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="color-scheme" content="light dark">'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline';"
        " script-src 'unsafe-inline'\">"
        f"<title>{escape(summary.title)}: {word.lower()}</title>"
        f"<style>{style.build_css_variables()}{CSS}{INTERACTION_CSS}</style></head><body>"
    )
    return head + "\n".join(part for part in parts if part) + "</body></html>\n"


def _render_tiles(tiles: Sequence[tuple[str, str]]) -> str:
    if not tiles:
        return ""
    inner = "".join(f"<div><dt>{escape(what)}</dt><dd>{escape(much)}</dd></div>" for what, much in tiles)
    return f'<dl class="tiles">{inner}</dl>'


def _render_facts(facts: Sequence[tuple[str, str]]) -> str:
    if not facts:
        return ""
    rows = "".join(f"<tr><th>{escape(name)}</th><td>{escape(value)}</td></tr>" for name, value in facts)
    return _render_section(
        "What was run", f'<div class="scroll"><table class="facts"><tbody>{rows}</tbody></table></div>'
    )


def _render_failures(failures: Sequence[FailedRun]) -> str:
    if not failures:
        return ""
    items = "".join(
        f'<li><p><b class="{escape(f.status)}">{escape(f.status)}</b> {escape(f.label)}</p>'
        f"<p>{escape(f.message)}</p><pre>{escape(f.replay)}</pre></li>"
        for f in failures[:MAX_FAILURES]
    )
    more = f"<p>{len(failures) - MAX_FAILURES} more are in the tables.</p>" if len(failures) > MAX_FAILURES else ""
    return _render_section("What did not end well", f'<ul class="failures">{items}</ul>{more}')


def _render_charts(pictures: Sequence[Chart]) -> str:
    if not pictures:
        return ""
    return _render_section(
        "Pictures", '<div class="pictures">' + "".join(_render_chart(p) for p in pictures) + "</div>"
    )


def _render_chart(picture: Chart) -> str:
    table = _render_table(picture.headings, [tuple(_format_cell(cell) for cell in row) for row in picture.rows[:300]])
    more = f"<p>The first 300 of {len(picture.rows)} rows.</p>" if len(picture.rows) > 300 else ""
    return (
        f'<figure id="{escape(picture.name)}"{" class=wide" if picture.is_wide else ""}>'
        f"<h3>{escape(picture.title)}</h3>{picture.inline}"
        f"<figcaption>{_format_text(picture.caption)}</figcaption>"
        f'<details><summary>Numbers</summary><div class="scroll">{table}</div>{more}'
        f"<p>pictures/{escape(picture.name)}.svg, pictures/{escape(picture.name)}.csv</p></details></figure>"
    )


def _render_drawing(title: str, name: str, svg: str, caption: str) -> str:
    if not svg:
        # A caption alone says why there is no drawing.
        return _render_section(title, f"<p>{_format_text(caption)}</p>") if caption else ""
    drawing = scope_styles(svg[svg.index("<svg") :], name)
    inner = f'<div class="scroll spacetime {name}" tabindex="0">{drawing}</div>'
    return _render_section(title, f'<p>{_format_text(caption)}</p><figure class="drawn">{inner}</figure>')


def _list_groups(svg: str) -> list[str]:
    """The groups whose parts of a drawing can be filtered."""
    return [unescape(name) for name in dict.fromkeys(re.findall(r'data-group="([^"]*)"', svg)) if name != "clients"]


def _render_answers(answers: Sequence[str]) -> str:
    items = "".join(f"<li>{_format_text(answer)}</li>" for answer in answers)
    return _render_section("Who answers first", f'<ul class="answers">{items}</ul>') if items else ""


def scope_styles(svg: str, name: str) -> str:
    """An SVG whose style affects nothing but itself: every rule is put under a class."""

    def scope_rules(rules: str) -> str:
        return re.sub(
            r"([^{}]+)\{([^{}]*)\}",
            lambda rule: ",".join(f".{name} {one.strip()}" for one in rule[1].split(",")) + "{" + rule[2] + "}",
            rules,
        )

    def scope(found: re.Match[str]) -> str:
        plain, at, dark = found[1].partition("@media")
        if not at:
            return f"<style>{scope_rules(plain)}</style>"
        condition, _, rules = dark.partition("{")
        return f"<style>{scope_rules(plain)}@media{condition}{{{scope_rules(rules.rpartition('}')[0])}}}</style>"

    return re.sub(r"<style>(.*?)</style>", scope, svg, flags=re.DOTALL)


def _render_notes(notes: Iterable[str]) -> str:
    items = "".join(f"<li>{_format_text(note)}</li>" for note in notes)
    return _render_section("How to read this", f"<ul>{items}</ul>") if items else ""


def _format_text(text: str) -> str:
    """A sentence; what stands between backticks is a command or a file."""
    return re.sub(r"`([^`]*)`", r"<code>\1</code>", escape(text))


def _render_section(title: str, inner: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{inner}</section>"


def _render_page_table(table: PageTable, protocols: Sequence[str] = ()) -> str:
    open_rows = FIRST_ROWS if len(table.rows) > MAX_OPEN_ROWS else len(table.rows)
    rows, rest = table.rows[:open_rows], table.rows[open_rows:]
    text = _render_table(table.headings, rows, protocols)
    if rest:
        more = f'<div class="scroll" tabindex="0">{_render_table(table.headings, rest, protocols)}</div>'
        text += f"<details><summary>{len(rest)} more rows</summary>{more}</details>"
    note = f"<p>{_format_text(table.note)}</p>" if table.note else ""
    file = f"<p>All numbers: {escape(table.file)}</p>" if table.file else ""
    return f'<div class="scroll" tabindex="0">{text}</div>{note}{file}'


def _render_table(headings: Sequence[str], rows: Sequence[Sequence[Any]], protocols: Sequence[str] = ()) -> str:
    """A table; a row whose first word is a protocol can be filtered by it."""
    numeric = [bool(rows) and all(_is_number(row[place]) for row in rows) for place in range(len(headings))]
    kinds = ['class="n"' if number else "" for number in numeric]
    head = "".join(f"<th {kind}>{escape(text)}</th>" for text, kind in zip(headings, kinds, strict=True))
    body = "".join(
        f"<tr{_mark_row(row, protocols)}>"
        + "".join(f"<td {kind}>{_render_cell(cell)}</td>" for cell, kind in zip(row, kinds, strict=True))
        + "</tr>"
        for row in rows
    )
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>"


def _mark_row(row: Sequence[Any], protocols: Sequence[str]) -> str:
    words = str(row[0]).replace(",", " ").split()
    if words and words[0] in protocols:
        return f' data-series="{escape(words[0], quote=True)}"'
    return ' class="soft"' if "not claimed" in row else ""


def _render_cell(cell: Any) -> str:
    text = "" if cell is None else str(cell)
    if text in ("worse", "better"):
        return f'<b class="{"violated" if text == "worse" else "holds"}">{text}</b>'
    if text in ("holds", "ok", "violated", "unknown", "error", "crash", "timeout"):
        return f'<b class="{text}">{text}</b>'
    if text == "not claimed":
        return f'<span class="soft">{text}</span>'
    return escape(text)


def _is_number(cell: Any) -> bool:
    return bool(re.fullmatch(r"|-?[\d,.]+([eE][+-]?\d+)?[kMG]?( %)?( ± .*)?", "" if cell is None else str(cell)))


def _format_cell(cell: Any) -> str:
    if cell is None:
        return ""
    return format_compact(cell) if isinstance(cell, float) else str(cell)


CSS: Final = """
*{box-sizing:border-box}
html{-webkit-text-size-adjust:100%}
body{margin:0;background:var(--paper);color:var(--ink);font:16px/1.5 system-ui,-apple-system,'Segoe UI',sans-serif}
header,main{max-width:72rem;margin:0 auto;padding:0 1.25rem}
header{padding-top:2.5rem}
h1{font-size:clamp(1.5rem,4vw,2.2rem);line-height:1.15;margin:.1rem 0 1.2rem;letter-spacing:-.015em;
overflow-wrap:anywhere}
h2{font-size:1.2rem;margin:0 0 .9rem;letter-spacing:-.01em}
h3{font-size:.98rem;margin:0 0 .5rem;font-weight:600}
section{margin:2.6rem 0}
p{margin:.5rem 0}
.kicker{color:var(--soft);margin:0;font-size:.85rem;letter-spacing:.04em}
.verdict{--tone:#8a6d00;display:flex;flex-wrap:wrap;gap:.2rem 1rem;align-items:baseline;padding:.9rem 1.1rem;
border-left:5px solid var(--tone);background:color-mix(in srgb,var(--tone) 10%,var(--paper));border-radius:0 8px 8px 0}
.verdict strong{font-size:1.35rem;color:var(--tone)}
.verdict.holds{--tone:#0c7a4e}.verdict.violated{--tone:#c02626}
b.holds,b.ok{color:#0c7a4e}b.violated,b.crash{color:#c02626}b.unknown,b.error,b.timeout{color:#8a6d00}
.soft{color:var(--soft)}
.answers{padding-left:1.1rem;margin:0}.answers li{margin:.3rem 0}
.story{margin:.7rem 0 0;overflow-wrap:anywhere}
.tiles{display:grid;grid-template-columns:repeat(auto-fit,minmax(8.2rem,1fr));margin:1.6rem 0 0;
border:1px solid var(--grid);border-radius:8px;overflow:hidden}
.tiles div{box-shadow:1px 1px 0 var(--grid);padding:.7rem .9rem}
.tiles dt{color:var(--soft);font-size:.8rem}
.tiles dd{margin:0;font-size:1.35rem;font-variant-numeric:tabular-nums;letter-spacing:-.01em}
.scroll{overflow-x:auto;max-width:100%}
table{border-collapse:collapse;font-size:.88rem;font-variant-numeric:tabular-nums}
th,td{text-align:left;padding:.34rem .9rem .34rem 0;border-bottom:1px solid var(--grid);vertical-align:top}
thead th{color:var(--soft);font-weight:500;white-space:nowrap}
tbody tr:last-child td,tbody tr:last-child th{border-bottom:0}
.n{text-align:right;white-space:nowrap}
.facts th{color:var(--soft);font-weight:500;white-space:nowrap;padding-right:1.6rem}
.facts td{overflow-wrap:anywhere}
section>p,figcaption,details p{color:var(--soft);font-size:.86rem}
.pictures{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(100%,26rem),1fr));gap:2.2rem 2.4rem}
figure{margin:0;min-width:0;position:relative}
figure.wide{grid-column:1/-1}
.panels{display:grid;grid-template-columns:repeat(auto-fill,minmax(min(46%,13rem),1fr));gap:.8rem 1rem}
figure svg{width:100%;height:auto;display:block}
figcaption{margin:.5rem 0}
details{font-size:.86rem}
summary{cursor:pointer;color:var(--soft)}
details .scroll{max-height:18rem;overflow:auto;margin:.5rem 0}
.spacetime svg{min-width:56rem;width:100%;height:auto;display:block}
.failures{list-style:none;padding:0;margin:0;display:grid;gap:1.1rem}
.failures li{border-left:3px solid var(--grid);padding-left:1rem;min-width:0}
.failures p{margin:.2rem 0;overflow-wrap:anywhere}
pre{margin:.4rem 0 0;padding:.5rem .7rem;background:var(--wash);border-radius:6px;overflow-x:auto;font-size:.82rem}
@media(prefers-color-scheme:dark){
.verdict{--tone:#e3b341}.verdict.holds{--tone:#3fb97f}.verdict.violated{--tone:#f47067}
b.holds,b.ok{color:#3fb97f}b.violated,b.crash{color:#f47067}b.unknown,b.error,b.timeout{color:#e3b341}}
@media(max-width:36rem){header,main{padding:0 1rem}header{padding-top:1.5rem}section{margin:2rem 0}
.tiles{grid-template-columns:repeat(2,1fr)}}
@media print{:root{color-scheme:light}body{background:#fff;color:#000;font-size:10.5pt}
header,main{max-width:none;padding:0}
details,.tools,.enlarge{display:none}figure,.verdict,tr,.panels>div{break-inside:avoid}h2,h3{break-after:avoid}
.scroll,details .scroll{overflow:visible;max-height:none}.spacetime svg{min-width:0}table{font-size:7.5pt}
.facts td{overflow-wrap:anywhere}section{margin:1.4rem 0}
.pictures{grid-template-columns:repeat(2,1fr);gap:1rem 1.4rem}.panels{grid-template-columns:repeat(4,1fr)}}
""".replace("\n", "")
