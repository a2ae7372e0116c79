"""The summary of a report: the verdict and its story, the runs, and a space-time diagram of one scene.

The scene is the violation, if there is one; else the message that was open for longest when a fault happened; else the
message that took longest.
"""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from amcast.check.judge import judge
from amcast.check.verdict import describe_counts
from amcast.figures.html_page import FailedRun, ReportSummary
from amcast.figures.tables import PageTable, format_ms, format_number
from amcast.kernel.errors import UsageError
from amcast.pipeline.rows.files import (
    SMALL_BYTES,
    list_parquet_files,
    open_parquet,
    read_trace_folder,
    sum_file_bytes,
)
from amcast.pipeline.rows.locations import Location, open_runs
from amcast.pipeline.sweep.grid import describe_fields
from amcast.pipeline.sweep.job import find_traced_cells
from amcast.trace.fault_timeline import FaultTimeline, list_faults
from amcast.trace.meta import read_metas
from amcast.trace.run import Run, read_run
from amcast.trace.spacetime_diagram import draw_spacetime
from amcast.trace.view import Selection, find_origin

SCENE_ROWS: Final = 2_000_000
"""Most deliveries of a run with a scene: all of them are read in one process."""
NO_DIAGRAM: Final = (
    f"No diagram: the folder has more than {SCENE_ROWS:,} deliveries; amcast view --picture draws a part of them."
)
SCENE_ARROWS: Final = 120
SCENE_MARGIN: Final = 0.15
"""How much time the scene shows behind its last event, as a part of what it shows before."""
MAX_STORY: Final = 8
NOT_CLAIMED: Final = "not claimed"
METHOD: Final = {
    "exact": "Percentiles are exact, by the nearest rank.",
    "sketch": "Percentiles come from a sketch: each is within 0.5 % of the exact one.",
    "cells": "The numbers are those that the cells of the sweep measured themselves; percentiles are exact.",
}

Row = Mapping[str, Any]


def summarize_sweep(folder: Path | Location, header: Row, cells: Sequence[Row], measures: Path) -> ReportSummary:
    """Summarizes a sweep."""
    folder = Location.of(folder)
    statuses: dict[str, dict[str, int]] = {}
    for cell in cells:
        line = statuses.setdefault(cell["protocol"], {})
        line[cell["status"]] = line.get(cell["status"], 0) + 1
    kinds = [
        kind
        for kind in ("ok", "violated", "unknown", "error", "timeout", "crash")
        if any(kind in line for line in statuses.values())
    ]
    bad = [cell for cell in cells if cell["status"] != "ok"]
    verdict = "violated" if any("violated" in line for line in statuses.values()) else "unknown" if bad else "holds"
    worst = [cell for cell in bad if cell["status"] == "violated"] or bad
    story = tuple(
        f"{len(bad)} of {len(cells)} cells did not end well. The first: {cell['message']}" for cell in worst[:1]
    )
    sheet = PageTable(
        "Verdicts",
        ("protocol", "cells", *kinds),
        tuple((p, sum(line.values()), *(line.get(kind, "") for kind in kinds)) for p, line in sorted(statuses.items())),
        "cells/",
    )
    drawing, caption = _scene_of_sweep(folder, cells)
    return ReportSummary(
        title=f"Sweep {folder.name}",
        verdict=verdict,
        story=story,
        tiles=(
            ("cells", format_number(len(cells))),
            ("protocols", format_number(len(statuses))),
            ("multicasts", format_number(sum(cell["multicasts"] or 0 for cell in cells))),
            ("deliveries", format_number(sum(cell["deliveries"] or 0 for cell in cells))),
            ("packets", format_number(sum(cell["packets"] or 0 for cell in cells))),
        ),
        facts=_plan_facts(header.get("plan", {})),
        verdicts=(sheet,),
        failures=tuple(_failure(cell, folder) for cell in bad),
        spacetime=drawing,
        spacetime_caption=caption,
        notes=_notes(measures),
    )


def summarize_runs(folder: Path | Location, answer: Row, summary: Sequence[Row], measures: Path) -> ReportSummary:
    """Summarizes one run or several; `answer` is the checker's result as JSON."""
    reports = answer["runs"]
    sheet = _properties(reports[0]) if len(reports) == 1 else _verdicts(reports)
    story = [sentence for report in reports for sentence in _stories(report)]
    if len(story) > MAX_STORY:
        story = [*story[:MAX_STORY], f"and {len(story) - MAX_STORY} more sentences: amcast check shows them"]
    drawing, caption = _scene_of_runs(reports, summary)
    timeline, sentence = _fault_of_runs(reports, summary)
    name = reports[0]["run"] if len(reports) == 1 else f"{len(reports)} runs in {Location.of(folder).name}"
    return ReportSummary(
        title=f"Run {name}" if len(reports) == 1 else name,
        verdict=answer["verdict"],
        story=tuple(story),
        tiles=_tiles(summary),
        facts=_run_facts(summary),
        verdicts=(sheet,),
        timeline=timeline,
        timeline_caption=sentence,
        spacetime=drawing,
        spacetime_caption=caption,
        notes=_notes(measures),
    )


# What was run


def _plan_facts(plan: Row) -> tuple[tuple[str, str], ...]:
    varied = _flat(plan.get("grid", {}))
    facts = [(f"varies: {path}", _listed(value)) for path, value in varied.items()]
    for name in ("zip", "override", "exclude"):
        facts += [(name, describe_fields(_flat(table))) for table in plan.get(name, [])]
    base = {key: value for key, value in plan.items() if key not in ("grid", "zip", "override", "exclude")}
    return tuple(facts + [(path, _listed(value)) for path, value in _flat(base).items() if path not in varied])


def _run_facts(summary: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    plans = [_flat(json.loads(row["plan"])) for row in summary]
    facts = [("folder", _listed(sorted({row["folder"] for row in summary})))]
    seeds = [row["seed"] for row in summary if row["seed"] is not None]
    if seeds:
        facts.append(("seed", _listed(seeds)))
    for path in dict.fromkeys(path for plan in plans for path in plan):
        values = list(dict.fromkeys(json.dumps(plan.get(path)) for plan in plans))
        if values != ["null"]:
            facts.append((path, _listed([json.loads(value) for value in values])))
    return tuple(facts)


def _tiles(summary: Sequence[Row]) -> tuple[tuple[str, str], ...]:
    tiles = [
        ("runs", format_number(len(summary)))
        if len(summary) > 1
        else ("protocol", str(summary[0]["protocol"] or "unsaid")),
        ("multicasts", format_number(sum(row["multicasts"] or 0 for row in summary))),
        ("deliveries", format_number(sum(row["deliveries"] or 0 for row in summary))),
    ]
    if len(summary) == 1:
        row = summary[0]
        tiles += [
            ("messages per second", format_number(row["throughput_per_s"]) or "too short"),
            (
                "median latency",
                f"{format_ms(row['latency_ns_p50'])} ms" if row["latency_ns_p50"] is not None else "none",
            ),
            ("99 % within", f"{format_ms(row['latency_ns_p99'])} ms" if row["latency_ns_p99"] is not None else "none"),
        ]
    return tuple(tiles)


def _flat(table: Any) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    pending = list(table.items()) if isinstance(table, Mapping) else []
    while pending:
        path, value = pending.pop(0)
        if isinstance(value, Mapping) and value:
            pending = [(f"{path}.{key}", inner) for key, inner in value.items()] + pending
        elif value not in (None, {}, []):
            fields[path] = value
    return fields


def _listed(values: Any, most: int = 24) -> str:
    if not isinstance(values, list):
        return str(values)
    shown = ", ".join(json.dumps(value) if isinstance(value, (list, dict)) else str(value) for value in values[:most])
    return shown + (f" and {len(values) - most} more" if len(values) > most else "")


def _notes(measures: Path) -> tuple[str, ...]:
    description = json.loads((measures / "measures.json").read_text())
    edge = description.get("edge_dropped", 0)
    notes = [METHOD.get(description.get("method", ""), "")]
    notes.append(
        f"The first and last {edge:.0%} of the messages of a run are dropped, in order of their multicast."
        if edge
        else "Nothing is dropped at the edges of a run."
    )
    notes.append("Latency is counted from the a-multicast to the first delivery in a destination group.")
    if description.get("missing"):
        notes.append(f"Without packets there are no tables of: {', '.join(description['missing'])}.")
    return tuple(note for note in notes if note)


# Verdicts


def _properties(report: Row) -> PageTable:
    rows = [
        (
            name,
            p["name"],
            p["verdict"] if p["claimed"] else NOT_CLAIMED,
            describe_counts({k: n for k, n in p["checked"].items() if p["claimed"] or k != "violated"}),
        )
        for name, p in report["properties"].items()
    ]
    note = ""
    if any(not p["claimed"] for p in report["properties"].values()):
        note = "Properties that are not claimed do not count; `amcast check` says whether this run has them."
    return PageTable("Verdicts", ("", "property", "verdict", "checked"), tuple(rows), "", note)


def _verdicts(reports: Sequence[Row]) -> PageTable:
    order = {"violated": 0, "unknown": 1, "holds": 2}
    names = list(reports[0]["properties"])
    rows = [
        (
            report["run"],
            report["protocol"] or "",
            report["verdict"],
            *(p["verdict"] if p["claimed"] else NOT_CLAIMED for p in (report["properties"][name] for name in names)),
        )
        for report in sorted(reports, key=lambda report: order[report["verdict"]])
    ]
    note = f"The first 60 of {len(rows)} runs, the worst first." if len(rows) > 60 else ""
    return PageTable("Verdicts", ("run", "protocol", "verdict", *names), tuple(rows[:60]), "", note)


def _stories(report: Row) -> list[str]:
    return [
        f"{name} {p['name']} is {p['verdict']}: {' '.join(p['story'])}"
        for verdict in ("violated", "unknown")
        for name, p in report["properties"].items()
        if p["claimed"] and p["verdict"] == verdict
    ]


def _failure(cell: Row, folder: Location) -> FailedRun:
    replay = (cell["replay"] or "").replace("--plan plans/", f"--plan {folder}/plans/")
    return FailedRun(describe_fields(json.loads(cell["varied"])), cell["status"], cell["message"] or "", replay)


# The scene


def _scene_of_sweep(folder: Location, cells: Sequence[Row]) -> tuple[str, str]:
    known = find_traced_cells(folder)
    traced = [cell for cell in cells if cell["cell"] in known]
    violated = [cell for cell in traced if cell["status"] == "violated"]
    slowest = sorted(traced, key=lambda cell: -(cell["latency_ns_max"] or 0))
    for cell in (violated or slowest)[:1]:
        with open_runs(str(folder / "runs" / cell["cell"])) as place:
            # A cell's row tells the story in words; its witnesses are found again from its trace.
            suspects = sorted(_messages(judge(read_run(place)).as_dict()["properties"])) if violated else []
            return draw_scene(place, None, suspects, f"{cell['protocol']}, seed {cell['seed']}")
    return "", ""


def _scene_of_runs(reports: Sequence[Row], summary: Sequence[Row]) -> tuple[str, str]:
    folders = {row["run"]: row for row in summary}
    bad = next((report for report in reports if report["verdict"] == "violated"), None)
    slowest = max(summary, key=lambda row: row["latency_ns_max"] or 0, default=None)
    name = bad["run"] if bad else slowest["run"] if slowest else None
    if name is None:
        return "", ""
    if _is_far_and_large(folders[name]["folder"]):
        return "", f"No diagram: {folders[name]['folder']} is too large to be copied from its store for one."
    suspects = sorted(_messages(bad["properties"])) if bad else []
    row = folders[name]
    called = f"{row['protocol'] or 'run'}, seed {row['seed']}" if row["seed"] is not None else str(name)
    with open_runs(row["folder"]) as place:
        return draw_scene(place, name, suspects, called)


def _is_far_and_large(folder: str) -> bool:
    """Whether a run is too large to be copied from its store for one scene."""
    return not Location(folder).is_local and sum_file_bytes([read_trace_folder(folder)]) > SMALL_BYTES


def _fault_of_runs(reports: Sequence[Row], summary: Sequence[Row]) -> tuple[str, str]:
    """The seconds around the first crash, or else the first fault, of a lone run of moderate size; and a sentence."""
    if len(reports) != 1 or len(summary) != 1 or "://" in summary[0]["folder"]:
        return "", ""
    if _has_many_deliveries(summary[0]["folder"]):
        return "", ""  # the scene says why
    run = read_run(Path(summary[0]["folder"]), reports[0]["run"])
    faults = list_faults(run)
    if not faults:
        return "", ""
    first = next((at for _, at, kind in faults if kind == "crash"), faults[0][1])
    picture = FaultTimeline(run, first)
    return "\n".join(picture.svg()) + "\n", picture.describe()


def _has_many_deliveries(folder: str) -> bool:
    """Whether the deliveries of a folder are too many for a scene, from their footers: reading them would take more
    memory than all else about a report."""
    rows = 0
    for file in list_parquet_files(f"{folder}/deliveries"):
        rows += open_parquet(file).metadata.num_rows
        if rows > SCENE_ROWS:
            return True
    return False


def _messages(properties: Row) -> set[int]:
    """The messages that violated properties name."""
    found: set[int] = set()
    for finding in properties.values():
        if finding["verdict"] == "violated" and finding["claimed"]:
            for witness in finding["witness"]:
                for key, value in witness.items():
                    if key in ("message", "before", "after", "first", "second", "next") and isinstance(value, int):
                        found.add(value)
    return found


def draw_scene(folder: Path, name: str | None, suspects: Sequence[int], called: str) -> tuple[str, str]:
    """Draws the time around some messages, or around one that is worth a look; returns the diagram and its caption."""
    if len(read_metas(folder)) > 1 and name is None:
        raise UsageError(f"{folder}: holds several runs; expected the name of one")
    if _has_many_deliveries(str(folder)):
        return "", NO_DIAGRAM
    run = read_run(folder, name)
    if not run.multicasts["message"]:
        return "", ""
    sent = dict(zip(run.multicasts["message"], run.multicasts["at_ns"], strict=True))
    ends = _find_ends(run, sent)
    if not ends:
        return "", ""
    known = [message for message in suspects if message in sent][:4]
    slowest = max(sorted(ends), key=lambda message: ends[message] - sent[message])
    struck = None if known else _find_struck(run, sent, ends)
    shown = known or [slowest if struck is None else struck]
    begin, end = min(sent[m] for m in shown), max(ends.get(m) or sent[m] for m in shown)
    end += round((end - begin) * SCENE_MARGIN)
    origin = next((at for _, at, kind in list_faults(run) if begin <= at <= end), None) or find_origin(run)
    selection = Selection(since_ns=begin, until_ns=end, origin_ns=origin)
    around = "everything from its multicast to its first delivery in every destination"
    if _arrows(run, begin, end) > SCENE_ARROWS:
        selection = Selection(message=shown[0], since_ns=begin, until_ns=end, origin_ns=origin)
        around = "what is about it, from its multicast to its first delivery in every destination"
    drawing = draw_spacetime(run, selection, arrows=SCENE_ARROWS)
    took = f"{(ends.get(shown[0], sent[shown[0]]) - sent[shown[0]]) / 1e6:.3f} ms"
    if known:
        what = f"the violation, with message {shown[0]}"
    elif struck is not None:
        what = f"message {struck}, which waited longest of those that a crash met: {took}"
    else:
        what = f"message {slowest}, the slowest: {took}"
    counted = " Time counts from the crash." if struck is not None else ""
    return drawing, f"{called}: {what}; {around}.{counted}"


def _find_ends(run: Run, sent: Mapping[int, int]) -> dict[int, int]:
    """By message: when the last of its destinations had its first delivery. Replicas that were down catch up later."""
    groups = dict(zip(run.processes["process"], run.processes["group"], strict=True))
    first: dict[int, dict[int | None, int]] = {}
    columns = (run.deliveries[column] for column in ("process", "message", "at_ns"))
    for process, message, at in zip(*columns, strict=True):
        if message in sent:
            by_group = first.setdefault(message, {})
            group = groups.get(process)
            by_group[group] = min(at, by_group.get(group, at))
    return {message: max(by_group.values()) for message, by_group in first.items()}


def _find_struck(run: Run, sent: Mapping[int, int], ends: Mapping[int, int]) -> int | None:
    """The message that was open for longest of those that were when a process crashed."""
    notes = zip(run.notes["name"], run.notes["at_ns"], strict=True)
    crashes = [at for name, at in notes if name == "fault-crash"]
    struck = [m for m in sorted(ends) if any(sent[m] <= at <= ends[m] for at in crashes)]
    return max(struck, key=lambda message: ends[message] - sent[message], default=None)


def _arrows(run: Run, begin: int, end: int) -> int:
    if run.packets is None:
        return 0
    return sum(1 for batch in run.packets.batches("sent_ns") for at in batch["sent_ns"] if begin <= at <= end)
