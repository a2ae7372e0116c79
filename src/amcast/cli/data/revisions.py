"""Runs of one plan by the code of a git revision, in a temporary worktree, with the packages of this environment."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from amcast.kernel.errors import UsageError

COMMAND: Final = (
    "import sys, amcast; from amcast.cli import main;"
    " assert amcast.__file__.startswith(sys.argv.pop(1)), amcast.__file__; raise SystemExit(main())"
)
"""`amcast`, if it is the one of the worktree."""


@contextmanager
def check_out(revision: str) -> Iterator[Path]:
    """The source tree of a revision of the repository in which the user is."""
    found = _run_git("rev-parse", "--verify", "--quiet", f"{revision}^{{commit}}")
    if found.returncode:
        raise UsageError(f"revision {revision!r}: not in the git repository of {Path.cwd()}; expected a commit")
    with tempfile.TemporaryDirectory(prefix="amcast-revision-") as place:
        tree = Path(place) / "tree"
        added = _run_git("worktree", "add", "--detach", "--quiet", str(tree), found.stdout.strip())
        if added.returncode:
            raise UsageError(f"revision {revision!r}: {added.stderr.strip().splitlines()[-1]}")
        try:
            yield tree
        finally:
            _run_git("worktree", "remove", "--force", str(tree))


def _run_git(*words: str) -> "subprocess.CompletedProcess[str]":
    try:
        return subprocess.run(["git", *words], capture_output=True, text=True, check=False)
    except FileNotFoundError:
        raise UsageError("git is not installed; expected it to compare revisions") from None


def run_revision(revision: str, plan: Path, seeds: Iterable[int], out: Path) -> None:
    """Simulates a plan under each seed with the code of a revision; one run folder per seed."""
    if not plan.is_file():
        raise UsageError(f"--plan {plan}: no such file; expected a plan of `amcast simulate --plan`")
    with check_out(revision) as tree:
        environment = {**os.environ, "PYTHONPATH": str(tree / "src")}
        for seed in seeds:
            folder = out / str(seed)
            words = ["simulate", "--plan", str(plan.absolute()), "--seed", str(seed), "--out", str(folder), "--json"]
            done = subprocess.run(
                [sys.executable, "-c", COMMAND, str(tree / "src"), *words],
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            if not (folder / "run.json").is_file():
                complaint = (done.stderr.strip().splitlines() or ["no output"])[-1]
                raise UsageError(f"revision {revision!r} cannot simulate {plan} with seed {seed}: {complaint}")
