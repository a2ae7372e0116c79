"""What must hold of a release: the version is in the changelog, and the wheel has every module and nothing else."""

import re
import tomllib
import zipfile
from email.parser import HeaderParser
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]


class ReleaseError(Exception):
    """The release must not go out."""


def read_project() -> dict[str, Any]:
    """The table `project` of pyproject.toml."""
    project: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return project


def check_changelog(text: str, version: str) -> None:
    """Refuses a changelog whose newest section is not that of the version, or has no entry."""
    sections = re.split(r"^## ", text, flags=re.MULTILINE)[1:]
    if not sections or not sections[0].startswith(f"[{version}]"):
        newest = sections[0].splitlines()[0] if sections else "nothing"
        raise ReleaseError(f"CHANGELOG.md begins with {newest}; expected [{version}], the version of pyproject.toml")
    if not re.search(r"^- ", sections[0], re.MULTILINE):
        raise ReleaseError(f"CHANGELOG.md has no entry for {version}")


def check_wheel(wheel: Path, sources: Path = ROOT / "src") -> None:
    """Refuses a wheel that lacks a file of the package, has one more, or describes another version."""
    project = read_project()
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
        folder = f"{project['name']}-{project['version']}.dist-info"
        found = HeaderParser().parsestr(archive.read(f"{folder}/METADATA").decode())
    package = sources / str(project["name"])
    wanted = {
        file.relative_to(sources).as_posix()
        for file in package.rglob("*")
        if file.is_file() and (file.suffix == ".py" or file.name == "py.typed" or file.parent.name == "data")
        and "__pycache__" not in file.parts
    }  # fmt: skip
    listed = {name for name in names if not name.startswith(folder)}
    if missing := sorted(wanted - listed):
        raise ReleaseError(f"{wheel.name} lacks {', '.join(missing[:5])}")
    if extra := sorted(listed - wanted):
        raise ReleaseError(f"{wheel.name} has files that are not of the package: {', '.join(extra[:5])}")
    if f"{folder}/licenses/LICENSE" not in names:
        raise ReleaseError(f"{wheel.name} has no licence")
    if found["Version"] != project["version"] or found["Requires-Python"] != project["requires-python"]:
        raise ReleaseError(f"{wheel.name} describes version {found['Version']}; expected {project['version']}")
    needed = [line for line in found.get_all("Requires-Dist", []) if "extra ==" not in line]
    if any(line.startswith("pyarrow") for line in needed):
        raise ReleaseError(f"{wheel.name} needs pyarrow without an extra")
