"""The tables of the page: numbers to read and copy, with the file that has all of them."""

from dataclasses import dataclass
from typing import Any, Final

from amcast.figures.measured_settings import MIN_SEEDS, MeasuredSettings, Row, match_by
from amcast.trace.notes import describe_note

MAX_ROWS: Final = 60
PERCENTILES: Final = ("p50", "p90", "p95", "p99")


@dataclass(frozen=True)
class PageTable:
    """A table of the page."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]
    file: str
    """The file with all of its numbers."""
    note: str = ""


def build_tables(measured: MeasuredSettings) -> list[PageTable]:
    """Every table that has rows."""
    made = [
        tabulate_settings(measured),
        tabulate_regions(measured),
        tabulate_places(measured),
        tabulate_clients(measured),
        tabulate_costs(measured),
        tabulate_traffic(measured),
        tabulate_paths(measured),
        tabulate_recovery(measured),
    ]
    return [sheet for sheet in made if sheet is not None and sheet.rows]


def tabulate_settings(measured: MeasuredSettings) -> PageTable | None:
    rows = []
    for setting in measured.settings:
        row = setting.row
        high = setting.interval("throughput_per_s")[1]
        interval = "" if high is None else f" ± {format_number(high - row['throughput_per_s'])}"
        rows.append(
            (
                measured.label(setting),
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
    note = (
        f"± is the 95 % interval over seeds, where there are at least {MIN_SEEDS}; packets and bytes are per multicast."
    )
    return _build_table("Every setting", headings, rows, "comparison.csv", note)


def tabulate_regions(measured: MeasuredSettings) -> PageTable | None:
    found: dict[tuple[str, str, str], dict[str, float]] = {}
    for name in (*PERCENTILES, "mean"):
        table = measured.average_runs(
            "fairness", ("side", "region"), f"latency_ns_{name}", lambda row: bool(row["region"])
        )
        for key, value in table.items():
            found.setdefault(key, {})[name] = value
    ratio = measured.average_runs("fairness", ("side", "region"), "ratio_to_best", lambda row: bool(row["region"]))
    rows = []
    for setting in measured.settings:
        for key in sorted(key for key in found if key[0] == setting.row["setting"]):
            rows.append(
                (
                    measured.label(setting),
                    f"as {key[1]}",
                    key[2],
                    *(format_ms(found[key].get(name)) for name in ("mean", *PERCENTILES)),
                    format_number(ratio.get(key)),
                )
            )
    headings = ("setting", "side", "region", "mean ms", "p50", "p90", "p95", "p99", "to best")
    note = "As sender: until every destination delivered. As destination: each delivery at a process of the region."
    return _build_table("Regions", headings, rows, "fairness.csv", note)


def tabulate_places(measured: MeasuredSettings) -> PageTable | None:
    rows = []
    for by in ("rank", "response"):
        found = {
            name: measured.average_runs("latency", ("place",), f"latency_ns_{name}", match_by(by))
            for name in PERCENTILES
        }
        for setting in measured.settings:
            for key in sorted(key for key in found["p50"] if key[0] == setting.row["setting"]):
                values = [format_ms(found[name].get(key)) for name in PERCENTILES]
                rows.append((measured.label(setting), f"by {by}", key[1], *values))
    headings = ("setting", "", "place", "p50 ms", "p90", "p95", "p99")
    note = "Rank: the place of a group among its message's destinations. Response: who delivered first, second ..."
    return _build_table("Latency per destination", headings, rows, "latency.csv", note)


def tabulate_clients(measured: MeasuredSettings) -> PageTable | None:
    """What clients wait for, over all regions; clients.csv has regions and roles."""
    found = {
        name: measured.average_runs("clients", ("wait", "scope"), f"latency_ns_{name}", lambda row: row["role"] is None)
        for name in PERCENTILES
    }
    rows = [
        (measured.label(setting), *key[1:], *(format_ms(found[name].get(key)) for name in PERCENTILES))
        for setting in measured.settings
        for key in sorted(key for key in found["p50"] if key[0] == setting.row["setting"])
    ]
    headings = ("setting", "until", "messages", "p50 ms", "p90", "p95", "p99")
    note = (
        "How long the sender of a message waits. Own replica: its own delivery if it is a destination, else the first"
        " delivery in its region. First answer: the first delivery anywhere. Local messages have one destination."
    )
    return _build_table("What clients wait for", headings, rows, "clients.csv", note)


def tabulate_traffic(measured: MeasuredSettings) -> PageTable | None:
    """Bytes that each group sends to others."""
    found = {
        name: measured.average_runs("traffic", ("group", "to_group"), f"{name}_per_multicast", _is_between_groups)
        for name in ("bytes", "packets")
    }
    rows = []
    for setting in measured.settings:
        own = [key for key in found["bytes"] if key[0] == setting.row["setting"]]
        for group in sorted({key[1] for key in own}):
            sums = [sum(values[key] for key in own if key[1] == group) for values in found.values()]
            rows.append((measured.label(setting), group, *(format_number(value) for value in sums)))
    headings = ("setting", "group", "bytes per multicast", "packets per multicast")
    note = "What the members of a group sent to members of other groups, for each multicast of the run."
    return _build_table("Between groups", headings, rows, "traffic.csv", note)


def _is_between_groups(row: Row) -> bool:
    return None not in (row["group"], row["to_group"]) and row["group"] != row["to_group"]


def tabulate_costs(measured: MeasuredSettings) -> PageTable | None:
    by_setting: dict[str, list[Any]] = {}
    for row in measured.tables["summary"]:
        by_setting.setdefault(row["setting"], []).append(row)
    rows = []
    for setting in measured.settings:
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
                (measured.label(setting), *(format_percent(value) for value in values[:5]), format_number(values[5]))
            )
    headings = ("setting", "waited", "wait in latency", "convoy", "work for others", "payload overhead", "fairness")
    note = (
        "Waited: deliveries that had their place and waited for something older. Convoy: the share of local messages'"
        " latency for which they waited for global ones. Work for others and payload overhead: of the process and the"
        " group that it is worst for. Fairness: Jain's index over the"
        " senders' regions, 1 is even."
    )
    return _build_table("Convoys, genuineness, fairness", headings, rows, "summary.csv", note)


def tabulate_paths(measured: MeasuredSettings) -> PageTable | None:
    share = measured.average_runs(
        "paths", ("name",), "messages_share", lambda row: not row["name"].startswith("fault-")
    )
    notes = measured.average_runs("paths", ("name",), "notes", lambda row: True)
    with_it = measured.average_runs("paths", ("name",), "latency_ns_mean_with", lambda row: True)
    without = measured.average_runs("paths", ("name",), "latency_ns_mean_without", lambda row: True)
    rows = [
        (
            measured.label(s),
            key[1],
            describe_note(key[1]),
            format_number(notes[key]),
            format_percent(share[key]),
            format_ms(with_it.get(key)),
            format_ms(without.get(key)),
        )
        for s in measured.settings
        for key in sorted(key for key in share if key[0] == s.row["setting"])
    ]
    headings = ("setting", "noted", "meaning", "times", "of messages", "mean ms with", "without")
    note = (
        "What processes noted. Of messages: the share of multicasts that it was noted about; mean: their latency, and"
        " that of the others."
    )
    return _build_table("Fast and slow paths", headings, rows, "paths.csv", note)


def tabulate_recovery(measured: MeasuredSettings) -> PageTable | None:
    run_names = {row["run"]: measured.name_run(row) for row in measured.tables["summary"]}
    starts = measured.find_starts()
    rows = [
        (
            run_names[row["run"]],
            f"{(row['fault_ns'] - starts.get(row['run'], 0)) / 1e9:.3f}",
            row["fault"],
            row["process"],
            row["group"],
            format_ms(row["next_delivery_after_ns"]),
            format_ms(row["new_message_after_ns"]),
            format_ms(row["longest_silence_ns"]),
        )
        for row in measured.tables.get("recovery", ())
    ]
    headings = ("run", "at s", "fault", "process", "group", "next delivery ms", "new message ms", "longest silence ms")
    return _build_table(
        "Around faults",
        headings,
        rows,
        "recovery.csv",
        "Counted from the fault, for every group; the time of the fault counts from the first multicast.",
    )


def _build_table(
    title: str, headings: tuple[str, ...], rows: list[tuple[Any, ...]], file: str, note: str
) -> PageTable | None:
    if len(rows) > MAX_ROWS:
        note += f" The first {MAX_ROWS} of {len(rows)} rows."
    return PageTable(title, headings, tuple(rows[:MAX_ROWS]), file, note)


def format_ms(value: float | None) -> str:
    """Nanoseconds as milliseconds, to four significant digits."""
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
