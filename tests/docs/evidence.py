"""The page docs/evidence.md, written from the aggregates in docs/evidence: nothing on it is typed by hand.

    python -m tests.docs.evidence     writes the page

    docs/evidence/campaign.json       amcast campaign ... --aggregate docs/evidence/campaign.json
    docs/evidence/coverage.json       python -m tests.coverage
    docs/evidence/mutation.json       python -m tests.mutation --results docs/evidence/mutation.json
    docs/evidence/gate.json           python -m tests.mutants.gate --results docs/evidence/gate.json
    docs/evidence/torture/*.json      torture.json of the folder of `amcast torture`
    docs/evidence/bugs.toml           the bugs of the repository's history

A file that is not there is named as missing on the page.
"""

import json
import textwrap
import tomllib
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

from tests.coverage.reasons import find_reason, read_reasons
from tests.mutation.exemptions import read_exemptions

ROOT: Final = Path(__file__).parents[2]
FOLDER: Final = ROOT / "docs" / "evidence"
PAGE: Final = ROOT / "docs" / "evidence.md"
WANTED_RUNS: Final = 20_000
"""Runs of each protocol that a campaign should have."""

INTRODUCTION: Final = """# Evidence: what was searched, and what was found

`python -m tests.docs.evidence` writes this page from the files in `docs/evidence`, and a test holds them equal. Each
section names the command that makes its numbers. [search.md](search.md) says what a run is, [MODEL.md](MODEL.md) what
is judged. A search shows the presence of bugs and never their absence.
"""


def render_page() -> str:
    sections = (
        ("Simulated runs", _render_campaign),
        ("Faults in these runs", _render_faults),
        ("Mutants", _render_mutation),
        ("Planted bugs", _render_gate),
        ("Coverage by fuzzing alone", _render_coverage),
        ("Live clusters under faults", _render_torture),
        ("Bugs found so far", _render_bugs),
    )
    parts = [INTRODUCTION]
    for title, render in sections:
        parts.append(f"\n## {title}\n" + "\n".join(render()).rstrip() + "\n")
    return "".join(parts)


def _read(name: str) -> Any:
    file = FOLDER / name
    return json.loads(file.read_text()) if file.is_file() else None


def _missing(name: str, command: str) -> list[str]:
    return [f"Not measured: `docs/evidence/{name}` does not exist. `{command}` makes it."]


def _wrap(text: str) -> list[str]:
    return textwrap.wrap(text, 120, break_long_words=False, break_on_hyphens=False)


def _table(head: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return lines + [f"| {' | '.join(_show(cell) for cell in row)} |" for row in rows]


def _show(cell: object) -> str:
    if isinstance(cell, float):
        return f"{cell:,.1f}"
    return f"{cell:,}" if isinstance(cell, int) else str(cell).replace("|", "\\|")


def _render_campaign() -> list[str]:
    data = _read("campaign.json")
    if data is None:
        return _missing("campaign.json", "amcast campaign --aggregate docs/evidence/campaign.json")
    classes = data["classes"]
    runs = sum(one["runs"] for one in classes)
    failures = sum(one["runs"] - one["statuses"].get("holds", 0) for one in classes)
    hours = sum(one["cpu_s"] for one in classes) / 3600
    fewest = min(Counter({name: _count(classes, name) for name in _names(classes)}).values())
    lines = [
        *_wrap(
            f"`amcast campaign --seeds 0..{WANTED_RUNS - 1} --out DIR --aggregate docs/evidence/campaign.json`, commit"
            f" {data['commit']}, stopped early: **{runs:,} runs** in {hours:.1f} hours of CPU time, {failures} of them"
            f" not holding. The protocol with the fewest runs has {fewest:,} of {WANTED_RUNS:,}; the same command"
            " continues. The last columns say what more would cost on this machine, at the measured CPU time of a run."
        ),
        "",
    ]
    rows = []
    for one in classes:
        per_run = one["cpu_s"] / one["runs"]
        results = ", ".join(f"{count:,} {status}" for status, count in one["statuses"].items())
        rows.append(
            (
                one["protocol"],
                one["faults"],
                one["seeds"],
                results,
                one["steps"],
                f"{1000 * per_run:.0f}",
                f"{per_run * WANTED_RUNS / 3600:.1f}",
                f"{per_run * 1e6 / 3600:,.0f}",
                ", ".join(one["goals_missed"]) or "none",
            )
        )
    head = ("protocol", "faults", "seeds", "results", "steps", "CPU ms a run", f"CPU h of {WANTED_RUNS:,}")
    lines += _table((*head, "CPU h of 10^6", "goals missed"), rows)
    for one in classes:
        named = f"- {one['protocol']}, faults {one['faults']}"
        lines += [f"{named}, seed {bad['seed']}: {bad['status']}, {bad['story']}" for bad in one["failures"]]
    million = sum(one["cpu_s"] / one["runs"] * 1e6 / 3600 for one in classes)
    lines += [
        "",
        *_wrap(
            f"A million runs of each of these classes cost {million:,.0f} hours of CPU time, or"
            f" {million / 64 / 24:,.1f} days on 64 such cores. Blocks of seeds are independent tasks, so that"
            " time falls with the number of cores:"
            " `amcast campaign --seeds 0..999999 --master spark://HOST:7077 --out DIR`."
        ),
    ]
    return lines


def _names(classes: list[dict[str, Any]]) -> list[str]:
    return list(dict.fromkeys(one["protocol"] for one in classes))


def _count(classes: list[dict[str, Any]], protocol: str) -> int:
    return sum(one["runs"] for one in classes if one["protocol"] == protocol)


def _render_faults() -> list[str]:
    data = _read("campaign.json")
    if data is None:
        return _missing("campaign.json", "amcast campaign --aggregate docs/evidence/campaign.json")
    times: Counter[str] = Counter()
    runs: Counter[str] = Counter()
    for one in data["classes"]:
        for kind, count in one["fired"].items():
            times[kind] += count["times"]
            runs[kind] += count["runs"]
    logs = sum(one["runs_on_real_logs"] for one in data["classes"])
    return [
        *_wrap(
            f"{times.total():,} faults happened, in all classes together; {logs:,} runs kept the records of servers in"
            " the real log on simulated files. The suggestions of leaders include the true ones with which a run is"
            " healed."
        ),
        "",
        *_table(("fault", "runs", "times"), [(kind, runs[kind], times[kind]) for kind in sorted(times)]),
    ]


def _render_mutation() -> list[str]:
    data = _read("mutation.json")
    if data is None:
        return _missing("mutation.json", "python -m tests.mutation --results docs/evidence/mutation.json")
    findings = data["findings"]
    exempt = read_exemptions()
    judged = [one for one in findings if one["found_by"] or one["id"] not in exempt]
    found = [one for one in judged if one["found_by"]]
    by_operator = Counter(one["id"].split(":")[2] for one in judged)
    by_operator_found = Counter(one["id"].split(":")[2] for one in found)
    by_judge = Counter(one["found_by"] for one in found)
    missed = Counter(one["searched"] for one in judged if not one["found_by"])
    reached = ", ".join(f"{count} within {seeds:,}" for seeds, count in sorted(missed.items()))
    rest = data["sample"] - len(findings)
    return [
        *_wrap(
            f"`python -m tests.mutation --seeds {data['seeds']} --results docs/evidence/mutation.json`:"
            f" {len(findings)} mutants of a sample of {data['sample']}"
            + (" (the others have not been planted yet; the order is that of a hash)" if rest else "")
            + f", of which {len(findings) - len(judged)} exempt (`tests/mutation/exemptions.toml`),"
            f" **{len(found)} of {len(judged)} found**: {by_judge['fuzz'] + by_judge['hang']} by fuzzing alone"
            f" ({by_judge['hang']} of them because a run does not end), {by_judge['tests']} by tests of their package"
            " where the first 60 seeds did not find them."
            + (f" Not found yet within the seeds that were tried: {reached}." if missed else "")
            + " The goal is 95 % by fuzzing within 1,000 seeds. Faults of checkers are looked for with seeds of random"
            " traces and histories instead of runs (docs/search.md)."
            f" The digest of the searched source is {data['source']}. Findings are those of that source; exemptions are"
            " those of today, so the share found is not one that was measured at one time."
        ),
        "",
        *_table(
            ("operator", "judged", "found"),
            [(name, by_operator[name], by_operator_found[name]) for name in sorted(by_operator)],
        ),
        "",
        *(f"- not found: `{one['id']}`" for one in judged if not one["found_by"]),
    ]


def _render_gate() -> list[str]:
    data = _read("gate.json")
    if data is None:
        return _missing("gate.json", "python -m tests.mutants.gate --results docs/evidence/gate.json")
    findings = data["findings"]
    found = sorted((one for one in findings if one["seed"] >= 0), key=lambda one: (one["seed"], one["bug"]))
    missed = [one for one in findings if one["seed"] < 0]
    median = found[len(found) // 2]["seed"] if found else 0
    late = found[len(found) * 9 // 10]["seed"] if found else 0
    rest = data["bugs"] - len(findings)
    return [
        *_wrap(
            "Well-known bugs, each planted into one module and looked for by `amcast fuzz` alone, up to 2,000 seeds"
            " (`python -m tests.mutants.gate --results docs/evidence/gate.json`):"
            f" **{len(found)} of {len(findings)} found**, half of them by seed {median}, 90 % by seed {late}"
            + (f"; for {rest} of the {data['bugs']} bugs the search has not ended." if rest else ".")
            + f" The digest of the searched source is {_name_sources(findings, data['source'])}."
        ),
        "",
        *_table(
            ("bug", "protocol", "first seed that finds it", "judge"),
            [
                (one["bug"], one["protocol"], one["seed"] if one["seed"] >= 0 else "none", one["judge"])
                for one in (*found, *missed)
            ],
        ),
    ]


def _name_sources(findings: list[dict[str, Any]], source: str) -> str:
    """The digest of the searched source; of all of them, with their findings, where bugs were not looked for again."""
    counts = Counter(one.get("source", source) for one in findings)
    if len(counts) == 1:
        return next(iter(counts))
    return "; that of ".join(f"{digest} for {count} of the findings" for digest, count in counts.most_common())


def _render_coverage() -> list[str]:
    data = _read("coverage.json")
    if data is None:
        return _missing("coverage.json", "python -m tests.coverage")
    reasons = read_reasons()
    explained: dict[str, list[list[str]]] = {}
    still_open: list[list[str]] = []
    for line in data["missed"]:
        reason = find_reason(reasons, *line)
        if reason is None:
            still_open.append(line)
        else:
            explained.setdefault(reason, []).append(line)
    seeds = sorted(set(data["seeds"].values()))
    lines = [
        *_wrap(
            f"`python -m tests.coverage`, commit {data['commit']}, seeds {' or '.join(seeds)} of each protocol:"
            f" **{data['reached']:,} of {data['lines']:,} statements** in functions of `protocols/`, `parts/` and"
            f" `storage/` ran. Of the {len(data['missed']):,} others {len(data['missed']) - len(still_open):,} have a"
            f" reason (`tests/coverage/reasons.toml`), and {len(still_open):,} are open."
        ),
        "",
        *_table(("why fuzzing does not run them", "statements"), [(why, len(own)) for why, own in explained.items()]),
        "",
        "Open, by function:",
        "",
    ]
    by_function: dict[tuple[str, str], list[str]] = {}
    for module, function, text in still_open:
        by_function.setdefault((module, function), []).append(text)
    for (module, function), texts in by_function.items():
        shown = "; ".join(f"`{text}`" for text in texts[:3]) + ("; ..." if len(texts) > 3 else "")
        lines.append(
            f"- `{module}` {function}, {len(texts)} {'statement' if len(texts) == 1 else 'statements'}: {shown}"
        )
    return lines if still_open else [*lines[:-2], "None is open."]


def _render_torture() -> list[str]:
    files = sorted((FOLDER / "torture").glob("*.json"))
    if not files:
        return _missing("torture/*.json", "amcast torture --minutes 10 --protocol NAME --out runs/torture-NAME")
    rows = []
    for file in files:
        data = json.loads(file.read_text())
        plan = data["plan"]
        rows.append(
            (
                plan["protocol"],
                plan["minutes"],
                plan["seed"],
                data["network"],
                len(data["strikes"]),
                data["acknowledged"],
                data["executed"],
                data["verdict"],
            )
        )
    head = ("protocol", "minutes", "seed", "network", "strikes", "acknowledged", "executed at replicas", "verdict")
    return ["`amcast torture` ([torture.md](torture.md)), real processes on one machine.", "", *_table(head, rows)]


def _render_bugs() -> list[str]:
    bugs = tomllib.loads((FOLDER / "bugs.toml").read_text())["bug"]
    lines = [
        *_wrap(
            f"{len(bugs)} bugs, as far as the history of the repository shows (`docs/evidence/bugs.toml`). The tests"
            " came with the correction or cover it."
        ),
        "",
    ]
    rows = [
        (
            bug["what"],
            bug["found_by"] or "not recorded",
            bug["commit"] or "not recorded",
            "<br>".join(f"`{test.removeprefix('tests/')}`" for test in bug["kept_away_by"]) or "no test of its own",
        )
        for bug in bugs
    ]
    return lines + _table(("bug", "found by", "corrected in", "kept away by"), rows)


if __name__ == "__main__":
    PAGE.write_text(render_page())
    print(f"wrote {PAGE.relative_to(ROOT)}")
