"""Verdicts in a terminal."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from amcast.check.verdict import PROPERTY_NAMES, Report, Verdict, describe_counts
from amcast.cli.output import colour_verdict, out, print_table

MAX_FULL_REPORTS: Final = 5
"""Up to this many runs are shown one by one; of more, only those that do not hold, and counts of all."""


def print_reports(reports: Sequence[Report]) -> None:
    """Prints a few reports in full; many as counts per property and per protocol, the worst ones in full."""
    if len(reports) <= MAX_FULL_REPORTS:
        for report in reports:
            print_report(report)
        return
    failed = sorted((report for report in reports if report.verdict != "holds"), key=lambda r: r.verdict != "violated")
    for report in failed[:MAX_FULL_REPORTS]:
        print_report(report)
    if len(failed) > MAX_FULL_REPORTS:
        out.print(f"and {len(failed) - MAX_FULL_REPORTS} more runs that do not hold; --json reports all")
    verdicts: tuple[Verdict, ...] = ("holds", "violated", "unknown")
    rows: list[tuple[object, ...]] = []
    for name in PROPERTY_NAMES:
        found = [report.properties[name] for report in reports if name in report.properties]
        counts = Counter(finding.verdict for finding in found if finding.claimed)
        unclaimed_counts = Counter(finding.verdict for finding in found if not finding.claimed)
        unclaimed = ", ".join(
            f"{unclaimed_counts[verdict]} {verdict}" for verdict in verdicts if unclaimed_counts[verdict]
        )
        rows.append((name, PROPERTY_NAMES[name], *(counts[verdict] or "" for verdict in verdicts), unclaimed))
    print_table(("", "property", *verdicts, "not claimed"), rows, title=f"{len(reports)} runs, by property")
    lines = []
    for protocol in sorted({report.meta.protocol or "" for report in reports}):
        counts = Counter(report.verdict for report in reports if (report.meta.protocol or "") == protocol)
        lines.append((protocol or "unknown", counts.total(), *(counts[verdict] or "" for verdict in verdicts)))
    print_table(("protocol", "runs", *verdicts), lines)


def print_report(report: Report) -> None:
    """Prints a table of properties, then the story behind the verdict."""
    rows = [
        (
            name,
            PROPERTY_NAMES[name],
            colour_verdict(finding.verdict),
            "" if finding.claimed else "not claimed",
            describe_counts(finding.checked),
        )
        for name, finding in report.properties.items()
    ]
    title = f"run {report.meta.run}: {colour_verdict(report.verdict)}"
    print_table(("", "property", "verdict", "", "checked"), rows, title=title)
    for sentence in report.story():
        out.print(sentence, markup=False)
