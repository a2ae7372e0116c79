"""Writes a report: the page, and every chart as an SVG file with its numbers as CSV.

OUT/report.html
OUT/pictures/NAME.svg
OUT/pictures/NAME.csv
"""

import csv
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from amcast.figures.chart_selection import PageContent, select_content
from amcast.figures.charts import Chart
from amcast.figures.html_page import ReportSummary, render_page
from amcast.kernel.errors import UsageError

PAGE_FILE = "report.html"
CHART_FOLDER = "pictures"
TABLE_NAMES = (
    *("summary", "comparison", "latency", "cdf", "routes", "throughput", "bodies", "work", "fairness", "paths"),
    *("recovery", "clients", "traffic"),
)
"""The tables that the page uses."""
MAX_ROWS = 2_000_000


def read_tables(measures: Path) -> dict[str, list[dict[str, Any]]]:
    """The measures' tables as rows; tables that were not made are absent."""
    tables = {}
    for name in TABLE_NAMES:
        file = measures / f"{name}.parquet"
        if not file.is_file():
            continue
        try:
            table = pq.read_table(file)
        except (pa.ArrowException, OSError) as error:
            raise UsageError(f"{file}: {str(error).splitlines()[0]}; expected a table of `amcast measure`") from None
        if len(table) > MAX_ROWS:
            raise UsageError(f"{file}: {len(table)} rows; expected at most {MAX_ROWS}: report on fewer runs at a time")
        tables[name] = table.to_pylist()
    for name in ("summary", "comparison"):
        if name not in tables:
            raise UsageError(f"{measures}: no {name}.parquet; expected the tables of `amcast measure`")
    return tables


def write_report(summary: ReportSummary, measures: Path, out: Path) -> list[Path]:
    """Writes the page and the charts; returns the files, the page first."""
    tables = read_tables(measures)
    plans = {row["setting"]: json.loads(row["plan"]) for row in tables["comparison"]}
    content = select_content(tables, plans)
    return write_page_files(summary, content, render_page(summary, content), out)


def write_page_files(summary: ReportSummary, content: PageContent, page: str, out: Path) -> list[Path]:
    """Writes a page, its charts and their numbers; returns the files, the page first."""
    folder = out / CHART_FOLDER
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in (*folder.glob("*.svg"), *folder.glob("*.csv")):
            old.unlink()
        files = [file for picture in content.charts for file in _write_chart(picture, folder)]
        for name, drawing in (("faults", summary.timeline), ("spacetime", summary.spacetime)):
            if drawing:
                (folder / f"{name}.svg").write_text(drawing)
                files.append(folder / f"{name}.svg")
        (out / PAGE_FILE).write_text(page)
    except OSError as error:
        raise UsageError(f"--out {out}: cannot be written: {error.strerror}") from None
    return [out / PAGE_FILE, *files]


def _write_chart(picture: Chart, folder: Path) -> list[Path]:
    svg_file, csv_file = folder / f"{picture.name}.svg", folder / f"{picture.name}.csv"
    svg_file.write_text(picture.file)
    with csv_file.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(picture.headings)
        writer.writerows(picture.rows)
    return [svg_file, csv_file]
