"""docs/reproduction.md says what the committed tables say."""

from pathlib import Path

from amcast.lab.experiments.experiment import read_claims, read_experiments
from amcast.lab.experiments.page import render_page
from amcast.lab.experiments.table import read_table
from amcast.lab.experiments.verdicts import judge_all

PROJECT = Path(__file__).parents[2]


def test_page_is_made_of_the_committed_tables() -> None:
    claims, experiments = read_claims(PROJECT / "experiments"), read_experiments(PROJECT / "experiments")
    tables = {name: read_table(experiment) for name, experiment in experiments.items()}
    page = render_page(claims, experiments, judge_all(claims, experiments, tables), tables)
    assert (PROJECT / "docs" / "reproduction.md").read_text() == page, "run: amcast reproduce --page"
