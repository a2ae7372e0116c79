"""What a reader and a fresh machine rely on: nothing here knows the machine that it was written on."""

import re
import subprocess
from pathlib import Path

from tests import ROOT

TEXT = {".py", ".md", ".toml", ".yml", ".yaml", ".json", ".sh", ".cfg", ".txt", ""}


def tracked() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        return list((ROOT / "src").rglob("*.py"))
    return [ROOT / name for name in listed.stdout.splitlines() if (ROOT / name).is_file()]


def test_no_path_of_a_machine_and_no_host_of_a_registry() -> None:
    forbidden = re.compile(
        r"/(?:work|root|farm|home/\w+)/|pypi\.org|files\.pythonhosted|deb\.debian\.org|registry\.npmjs"
    )
    for path in tracked():
        if path.suffix in TEXT and path != Path(__file__):
            text = path.read_text(errors="replace")
            found = forbidden.search(text)
            assert found is None, f"{path.relative_to(ROOT)} names {found.group()}"
