"""Builds and checks a release: `make release`.

dist/amcast-VERSION-py3-none-any.whl     built twice, with equal bytes
dist/amcast-VERSION.cdx.json             a list of components (CycloneDX): the package and what it depends on
dist/SHA256SUMS                          of both
"""

import argparse
import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from release.checks import ROOT, ReleaseError, check_changelog, check_wheel, read_project
from release.components import list_components


def main(arguments: list[str] | None = None) -> int:
    """Builds, checks and lists; ends with 1 if the release must not go out."""
    parser = argparse.ArgumentParser(prog="python -m release", description="Builds and checks a release in a folder.")
    parser.add_argument("--out", type=Path, default=ROOT / "dist", help="folder of the release")
    out = parser.parse_args(arguments).out
    project = read_project()
    try:
        check_changelog((ROOT / "CHANGELOG.md").read_text(), project["version"])
        out.mkdir(parents=True, exist_ok=True)
        wheel = build_twice(out)
        check_wheel(wheel)
    except ReleaseError as error:
        print(f"no release: {error}", file=sys.stderr)
        return 1
    components = out / f"{project['name']}-{project['version']}.cdx.json"
    components.write_text(list_components(project, digest(wheel)))
    sums = "".join(f"{digest(file)}  {file.name}\n" for file in (components, wheel))
    (out / "SHA256SUMS").write_text(sums)
    count = len(zipfile.ZipFile(wheel).namelist())
    print(f"{wheel}: {wheel.stat().st_size} bytes, {count} files, the same bytes twice\n{sums}", end="")
    return 0


def build_twice(out: Path) -> Path:
    """Builds the wheel in two fresh folders, and keeps it if both have the same bytes."""
    built = []
    for _ in range(2):
        with tempfile.TemporaryDirectory() as folder:
            wheel = build_wheel(Path(folder))
            built.append((wheel.name, wheel.read_bytes()))
    if built[0] != built[1]:
        raise ReleaseError("two builds of the same sources differ")
    target = out / built[0][0]
    target.write_bytes(built[0][1])
    return target


def build_wheel(folder: Path) -> Path:
    """Builds a wheel from the committed files, with the time of the last commit: nothing else enters it."""
    sources = folder / "sources"
    sources.mkdir()
    archive = subprocess.run(["git", "archive", "HEAD"], cwd=ROOT, capture_output=True, check=True).stdout
    subprocess.run(["tar", "-x", "-C", str(sources)], input=archive, check=True)
    time = subprocess.run(
        ["git", "log", "-1", "--format=%ct"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    subprocess.run(
        [
            *(sys.executable, "-m", "pip", "wheel", "--quiet", "--no-index", "--no-deps", "--no-build-isolation"),
            *("--wheel-dir", "wheels", "./sources"),
        ],
        cwd=folder, env={**os.environ, "SOURCE_DATE_EPOCH": time, "PYTHONHASHSEED": "0"}, check=True,
    )  # fmt: skip
    (wheel,) = (folder / "wheels").iterdir()
    return wheel


def digest(file: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(file.read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
