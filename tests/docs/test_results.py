"""docs/RESULTS.md says what the code says: tables, columns, types, nulls, fields of run.json and of a judgement."""

import re

import msgspec
import pytest

from amcast.check import judge
from amcast.check.verdict import PROPERTY_NAMES
from amcast.trace.columns import REQUIRED, SCHEMA, TABLES, Column
from amcast.trace.meta import Meta, RunClaims
from tests import ROOT
from tests.mutants.planted import healthy

DOCS = ROOT / "docs"
LEGEND = (DOCS / "RESULTS.md").read_text()


def section(title: str) -> str:
    found = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", LEGEND, re.MULTILINE | re.DOTALL)
    assert found, f"docs/RESULTS.md has no section {title}"
    return found.group(1)


def table(text: str, heading: str) -> list[list[str]]:
    """The rows below the heading row that starts with these words."""
    rows: list[list[str]] = []
    lines = iter(text.splitlines())
    for line in lines:
        if line.startswith(f"| {heading} |"):
            next(lines)
            for row in lines:
                if not row.startswith("|"):
                    return rows
                rows.append([cell.strip() for cell in row.strip("|").split("|")])
    return rows


def names(text: str, heading: str) -> list[str]:
    return [row[0].strip("`") for row in table(text, heading)]


def says_null(column: Column, null: str) -> bool:
    if column.optional:
        return null == "optional"
    return (null == "never") != column.nullable and null != "optional"


@pytest.mark.parametrize("name", TABLES)
def test_every_column_is_documented(name: str) -> None:
    rows = table(section(name), "column")
    assert [row[0].strip("`") for row in rows] == [column.name for column in TABLES[name]]
    for row, column in zip(rows, TABLES[name], strict=True):
        assert row[1] == column.type, row
        assert says_null(column, row[2]), row
        assert row[3], row


def test_run_json_is_documented() -> None:
    fields = msgspec.structs.fields(Meta)
    assert names(section("run.json"), "field") == [field.name for field in fields]
    rows = table(section("run.json"), "claim")
    claims = msgspec.structs.fields(RunClaims)
    assert [row[0].strip("`") for row in rows] == [field.name for field in claims]
    defaults = [msgspec.json.encode(field.default).decode() for field in claims]
    assert [row[2].strip("`") for row in rows] == defaults
    assert f"now **{SCHEMA}**" in LEGEND


def test_required_tables_are_marked() -> None:
    required = re.findall(r"^  (\w+)/\*\.parquet +required$", LEGEND, re.MULTILINE)
    assert tuple(required) == REQUIRED


def test_verdicts_are_documented() -> None:
    report = judge(healthy().run()).as_dict()
    text = section("The judgement: `amcast check DIR --json`")
    assert names(text, "field") == list(report)
    assert names(text, "field of a property") == list(report["properties"]["P1"])


def test_every_property_is_defined() -> None:
    model = (DOCS / "MODEL.md").read_text()
    assert re.findall(r"^\*\*(P\d'?) ", model, re.MULTILINE) == list(PROPERTY_NAMES)
