"""The tables of the page: numbers to read and to copy, with the file that has all of them."""

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from amcast.figures.chart_selection import Chooser

MOST_ROWS: Final = 60
PERCENTILES: Final = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class PageTable:
    """A table for the page."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    file: str
    """Where all of its numbers are."""
    note: str = ""


def sheets(chooser: "Chooser") -> list[PageTable]:
    """Every table that has rows."""
    made = [settings(chooser), regions(chooser), places(chooser), costs(chooser), paths(chooser), recovery(chooser)]
    return [sheet for sheet in made if sheet is not None and sheet.rows]


def settings(chooser: "Chooser") -> PageTable | None:
    rows = []
    for setting in chooser.settings:
        row = setting.row
        half = row["throughput_per_s_high"]
        interval = "" if half is None else f" ± {format_number(half - row['throughput_per_s'])}"
        rows.append(
            (
                chooser.label(setting),
                row["runs"],
                row["not_ok"] or "",
                format_number(row["throughput_per_s"]) + interval,
                *(format_ms(row[f"latency_ns_{name}"]) for name in PERCENTILES),
                format_ms(row["latency_ns_max"]),
                format_number(row["packets_per_multicast"]),
                format_number(row["bytes_per_multicast"]),
            )
        )
    headings = ("setting", "runs", "not ok", "messages/s", "p50 ms", "p90", "p95", "p99", "max", "packets", "bytes")
    note = "± is the 95 % interval over seeds; packets and bytes are per multicast."
    return _sheet("Every setting", headings, rows, "comparison.csv", note)


def regions(chooser: "Chooser") -> PageTable | None:
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for name in (*PERCENTILES, "mean"):
        table = chooser.pooled("fairness", ("side", "region"), f"latency_ns_{name}", lambda row: bool(row["region"]))
        for key, value in table.items():
            found.setdefault(key, {})[name] = value
    ratio = chooser.pooled("fairness", ("side", "region"), "ratio_to_best", lambda row: bool(row["region"]))
    rows = []
    for setting in chooser.settings:
        for key in sorted(key for key in found if key[0] == setting.row["setting"]):
            rows.append(
                (
                    chooser.label(setting),
                    f"as {key[1]}",
                    key[2],
                    *(format_ms(found[key].get(name)) for name in ("mean", *PERCENTILES)),
                    format_number(ratio.get(key)),
                )
            )
    headings = ("setting", "side", "region", "mean ms", "p50", "p90", "p95", "p99", "to best")
    note = "As sender: until every destination delivered. As destination: each delivery at a process of the region."
    return _sheet("Regions", headings, rows, "fairness.csv", note)


def places(chooser: "Chooser") -> PageTable | None:
    rows = []
    for by in ("rank", "response"):
        found = {
            name: chooser.pooled("latency", ("place",), f"latency_ns_{name}", lambda row, by=by: row["by"] == by)  # type: ignore[misc]
            for name in PERCENTILES
        }
        for setting in chooser.settings:
            for key in sorted(key for key in found["p50"] if key[0] == setting.row["setting"]):
                values = [format_ms(found[name].get(key)) for name in PERCENTILES]
                rows.append((chooser.label(setting), f"by {by}", key[1], *values))
    headings = ("setting", "", "place", "p50 ms", "p90", "p95", "p99")
    note = "Rank: the place of a group among its message's destinations. Response: who delivered first, second ..."
    return _sheet("Latency per destination", headings, rows, "latency.csv", note)


def costs(chooser: "Chooser") -> PageTable | None:
    by_setting: dict[str, list[Any]] = {}
    for row in chooser.tables["summary"]:
        by_setting.setdefault(row["setting"], []).append(row)
    rows = []
    for setting in chooser.settings:
        runs = by_setting.get(setting.row["setting"], [])
        values = [
            _mean([run[name] for run in runs])
            for name in (
                *("waited_share", "wait_share_of_latency", "convoy_share_of_latency", "share_for_others"),
                *("overhead_max", "jain_index"),
            )
        ]
        if any(value is not None for value in values):
            rows.append(
                (chooser.label(setting), *(format_percent(value) for value in values[:5]), format_number(values[5]))
            )
    headings = ("setting", "waited", "wait in latency", "convoy", "work for others", "payload overhead", "fairness")
    note = (
        "Waited: deliveries that had their place and waited for something older. Convoy: the share of local messages'"
        " latency for which they waited for global ones. Work for others and payload overhead: of the process and the"
        " group that it is worst for. Fairness: Jain's index over the"
        " senders' regions, 1 is even."
    )
    return _sheet("Convoys, genuineness, fairness", headings, rows, "summary.csv", note)


def paths(chooser: "Chooser") -> PageTable | None:
    share = chooser.pooled("paths", ("name",), "messages_share", lambda row: not row["name"].startswith("fault-"))
    notes = chooser.pooled("paths", ("name",), "notes", lambda row: True)
    with_it = chooser.pooled("paths", ("name",), "latency_ns_mean_with", lambda row: True)
    without = chooser.pooled("paths", ("name",), "latency_ns_mean_without", lambda row: True)
    rows = [
        (
            chooser.label(s),
            key[1],
            format_number(notes[key]),
            format_percent(share[key]),
            format_ms(with_it.get(key)),
            format_ms(without.get(key)),
        )
        for s in chooser.settings
        for key in sorted(key for key in share if key[0] == s.row["setting"])
    ]
    headings = ("setting", "noted", "times", "of messages", "mean ms with", "without")
    return _sheet("Fast and slow paths", headings, rows, "paths.csv", "What processes noted about messages.")


def recovery(chooser: "Chooser") -> PageTable | None:
    named = {row["run"]: f"{row['protocol'] or 'run'}, seed {row['seed']}" for row in chooser.tables["summary"]}
    rows = [
        (
            named[row["run"]],
            f"{row['fault_ns'] / 1e9:.3f}",
            row["fault"],
            row["process"],
            row["group"],
            format_ms(row["next_delivery_after_ns"]),
            format_ms(row["new_message_after_ns"]),
            format_ms(row["longest_silence_ns"]),
        )
        for row in chooser.tables.get("recovery", ())
    ]
    headings = ("run", "at s", "fault", "process", "group", "next delivery ms", "new message ms", "longest silence ms")
    return _sheet("Around faults", headings, rows, "recovery.csv", "Counted from the fault, for every group.")


def _sheet(
    title: str, headings: tuple[str, ...], rows: list[tuple[Any, ...]], file: str, note: str
) -> PageTable | None:
    if len(rows) > MOST_ROWS:
        note += f" The first {MOST_ROWS} of {len(rows)} rows."
    return PageTable(title, headings, tuple(rows[:MOST_ROWS]), file, note)


def format_ms(value: float | None) -> str:
    """Nanoseconds as milliseconds, to three digits that matter."""
    if value is None:
        return ""
    shown = value / 1e6
    return f"{shown:,.0f}" if shown >= 1000 else f"{shown:.4g}"


def format_number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def format_percent(value: float | None) -> str:
    return "" if value is None else f"{100 * value:.3g} %"


def _mean(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return sum(known) / len(known) if known else None
