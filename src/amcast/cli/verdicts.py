"""How a judgement looks in a terminal."""

from amcast.check.verdict import NAMES, Report
from amcast.cli.output import coloured, out, table


def print_report(report: Report) -> None:
    """A table of properties, then the story of what decided."""
    rows = [
        (
            name,
            NAMES[name],
            coloured(finding.verdict),
            "" if finding.claimed else "not claimed",
            ", ".join(f"{count} {what}" for what, count in finding.checked.items()),
        )
        for name, finding in report.properties.items()
    ]
    title = f"run {report.meta.run}: {coloured(report.verdict)}"
    table(("", "property", "verdict", "", "checked"), rows, title=title)
    for sentence in report.story():
        out.print(sentence, markup=False)
