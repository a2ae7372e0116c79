"""The command `campaign`: seeds of many protocols and fault classes, as a table. Spark is imported when it runs."""

import json as plain_json
import re
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from amcast.cli.data.pipeline import MasterOption
from amcast.cli.extras import require_extra
from amcast.cli.lab.search import parse_seeds
from amcast.cli.output import EXIT_CODES, JsonFlag, colour_verdict, err, out, print_json, print_table
from amcast.cli.panels import SEARCH
from amcast.kernel.errors import UsageError
from amcast.lab.campaign_row import DRAWN, check_class, digest_sources, find_commit, list_goals, run_seed
from amcast.lab.protocol_lookup import find_protocol
from amcast.protocols.catalogue import NAMES


def register(app: typer.Typer) -> None:
    """Adds the command."""
    app.command(rich_help_panel=SEARCH)(campaign)


def campaign(
    folder: Annotated[Path, typer.Option("--out", help="The campaign's folder; an existing one is continued.")],
    protocols: Annotated[
        str | None, typer.Option("--protocols", help="Names separated by commas; all if not given.")
    ] = None,
    faults: Annotated[
        str,
        typer.Option(
            "--faults",
            help="Fault classes separated by commas: drawn (each seed draws kinds), none, all, or kinds joined by +.",
        ),
    ] = DRAWN,
    seeds: Annotated[str, typer.Option("--seeds", help="Seeds, such as 0..19999.")] = "0..999",
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0.01, help="Stop after this time; seeds that are left are counted.")
    ] = None,
    timeout: Annotated[float, typer.Option("--timeout", min=1, help="Seconds that one seed may take.")] = 120.0,
    aggregate: Annotated[
        Path | None, typer.Option("--aggregate", help="Also write the counts of each class to this JSON file.")
    ] = None,
    master: MasterOption = None,
    json: JsonFlag = False,
) -> None:
    """Run seeds of every protocol and fault class through Spark; each run is one row of a table.

    Seeds that the folder has for the same sources are skipped. Every seed is the run of `amcast fuzz`.

    Example: amcast campaign --protocols primcast,whitebox --seeds 0..19999 --out runs/campaign
    """
    require_extra("spark")

    from amcast.pipeline.campaign import job
    from amcast.pipeline.campaign.aggregate import aggregate_runs, decide_verdict
    from amcast.pipeline.spark.session import open_session

    if re.match(r"\w+:/", str(folder)):
        raise UsageError(f"--out {folder}: a campaign needs a folder that this machine and every worker see as a path")
    first, last = parse_seeds(seeds)
    classes, unclaimed = _list_classes(protocols, faults)
    settings = job.CampaignSettings(
        folder.absolute(),
        digest_sources(),
        find_commit(),
        timeout,
        None if minutes is None else time.time() + minutes * 60,
    )
    job.prepare_folder(settings.out)
    job.merge_journal(settings.out)
    wanted = range(first, last + 1)
    blocks = job.find_pending(settings, classes, wanted)
    pending = sum(len(block.seeds) for block in blocks)
    if blocks:
        err.print(f"{pending} of {len(wanted) * len(classes)} runs are left", highlight=False)
        with open_session(master, brief=True) as spark:
            job.run_blocks(spark, blocks, run_seed, settings)
    left = sum(len(block.seeds) for block in job.find_pending(settings, classes, wanted))
    counted = aggregate_runs(job.iterate_runs(settings.out, settings.source), classes, list_goals)
    data: dict[str, Any] = {
        "verdict": decide_verdict(counted, left),
        "commit": settings.commit,
        "source": settings.source,
        "seeds": [first, last],
        "run_now": pending - left,
        "left": left,
        "not_claimed": unclaimed,
        "classes": counted,
    }
    if aggregate is not None:
        _write_aggregate(aggregate, data)
    if json:
        print_json(data)
    else:
        _print_campaign(data)
    raise typer.Exit(EXIT_CODES[data["verdict"]])


def _list_classes(protocols: str | None, faults: str) -> tuple[list[tuple[str, str]], list[str]]:
    """Protocols with fault classes, and the pairs that are left out because the protocol does not claim the class."""
    names = [find_protocol(name.strip()).name for name in (protocols or ",".join(NAMES)).split(",")]
    pairs = [(name, one.strip()) for name in names for one in faults.split(",")]
    claimed = [pair for pair in dict.fromkeys(pairs) if check_class(*pair)]
    if not claimed:
        raise UsageError(f"--faults {faults!r}: none of these protocols claims to survive it: {', '.join(names)}")
    return claimed, [f"{name}: {one}" for name, one in dict.fromkeys(pairs) if (name, one) not in claimed]


def _write_aggregate(target: Path, data: dict[str, Any]) -> None:
    kept = {key: data[key] for key in ("commit", "source", "classes")}
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(plain_json.dumps(kept, indent=1, ensure_ascii=False) + "\n")
    except OSError as error:
        raise UsageError(f"--aggregate {target}: cannot be written: {error.strerror}") from None


def _print_campaign(data: dict[str, Any]) -> None:
    runs = sum(one["runs"] for one in data["classes"])
    out.print(
        f"{colour_verdict(data['verdict'])}: {runs} runs of commit {data['commit']}, {data['run_now']} of them now;"
        f" {data['left']} are left"
    )
    rows = [
        (
            one["protocol"],
            one["faults"],
            one["runs"],
            ", ".join(f"{count} {status}" for status, count in one["statuses"].items()),
            round(1000 * one["cpu_s"] / max(1, one["runs"])),
            ", ".join(one["goals_missed"]) or "none",
        )
        for one in data["classes"]
    ]
    print_table(("protocol", "faults", "runs", "results", "CPU ms a run", "goals missed"), rows)
    for pair in data["not_claimed"]:
        out.print(f"left out, because it is not claimed: {pair}", markup=False)
    for one in data["classes"]:
        for failure in one["failures"][:3]:
            out.print(f"{one['protocol']} seed {failure['seed']} {failure['status']}: {failure['story']}", markup=False)
            out.print(f"  {make_replay_command(one['protocol'], one['faults'], failure['seed'])}", markup=False)


def make_replay_command(protocol: str, faults: str, seed: int) -> str:
    """The command that runs a seed of a campaign again."""
    given = "" if faults == DRAWN else f" --faults {faults}"
    return f"amcast fuzz -p {protocol}{given} --seeds {seed}"
