"""docs/reproduction.md says what the committed tables say."""

import re
from pathlib import Path

from amcast.lab.experiments.experiment import read_claims, read_experiments
from amcast.lab.experiments.html_page import render_html
from amcast.lab.experiments.live_points import read_live
from amcast.lab.experiments.page import render_page
from amcast.lab.experiments.table import read_table
from amcast.lab.experiments.verdicts import judge_all

PROJECT = Path(__file__).parents[2]


def test_page_is_made_of_the_committed_tables() -> None:
    claims, experiments = read_claims(PROJECT / "experiments"), read_experiments(PROJECT / "experiments")
    tables = {name: read_table(experiment) for name, experiment in experiments.items()}
    live = {name: read_live(experiment) for name, experiment in experiments.items()}
    page = render_page(claims, experiments, judge_all(claims, experiments, tables), tables, live)
    assert (PROJECT / "docs" / "reproduction.md").read_text() == page, "run: amcast reproduce --page"


def test_page_as_html_has_every_table_and_every_picture_inside() -> None:
    markdown = (PROJECT / "docs" / "reproduction.md").read_text()
    html = render_html(markdown, PROJECT / "docs")
    pictures = markdown.count("![")
    assert pictures > 10
    assert html.count("<svg") == html.count("</figure>") == pictures
    assert html.count("<table>") == markdown.count("\n|---")
    assert "](" not in html
    assert "**" not in html
    ids = re.findall(r' id="([^"]+)"', html)
    assert len(ids) == len(set(ids))
    assert not re.search(r'(src|href)="https?://(?!www.w3.org)', html.replace('xlink:href="#', ""))
