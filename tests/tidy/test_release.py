"""What `make release` refuses: a changelog of another version, and a wheel with other files than the package's."""

import re
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from release.checks import ReleaseError, check_changelog, check_wheel, read_project

from tests import ROOT


def test_changelog_names_the_version_first() -> None:
    version = read_project()["version"]
    check_changelog((ROOT / "CHANGELOG.md").read_text(), version)
    with pytest.raises(ReleaseError, match=r"expected \[9\.9\.9\]"):
        check_changelog((ROOT / "CHANGELOG.md").read_text(), "9.9.9")
    with pytest.raises(ReleaseError, match="no entry"):
        check_changelog(f"# Changelog\n\n## [{version}]\n", version)


@pytest.mark.parametrize(
    ("names", "complaint"), [(["amcast/a.py"], "lacks amcast/b.py"), (["amcast/a.py", "amcast/b.py", "x.py"], "x.py")]
)
def test_wheel_has_the_files_of_the_package(names: list[str], complaint: str, tmp_path: Path) -> None:
    (tmp_path / "amcast").mkdir()
    for name in ("a.py", "b.py"):
        (tmp_path / "amcast" / name).touch()
    project = read_project()
    wheel = tmp_path / "one.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(name, "")
        archive.writestr(f"amcast-{project['version']}.dist-info/METADATA", f"Version: {project['version']}\n")
    with pytest.raises(ReleaseError, match=complaint):
        check_wheel(wheel, tmp_path)


def read_lock() -> dict[str, tuple[str, int]]:
    """By name of a package: its version in release/ci.lock, and how many hashes it has."""
    found: dict[str, tuple[str, int]] = {}
    for part in re.split(r"^(?=\S)", (ROOT / "release" / "ci.lock").read_text(), flags=re.MULTILINE):
        if part.strip() and not part.startswith("#"):
            entry = re.match(r"([a-zA-Z0-9._-]+)(?:\[[a-z,]+\])?==(\S+)", part)
            assert entry, part
            name = re.sub(r"[-_.]+", "-", entry[1]).lower()
            found[name] = (entry[2], found.get(name, ("", 0))[1] + part.count("--hash=sha256:"))
    return found


def test_lock_has_every_requirement_in_its_range_with_hashes_and_no_host() -> None:
    text, locked, project = (ROOT / "release" / "ci.lock").read_text(), read_lock(), read_project()
    assert "://" not in text
    assert [name for name, (_, hashes) in locked.items() if not hashes] == []
    extras = project["optional-dependencies"]
    for line in (*project["dependencies"], *extras["spark"], *extras["dev"], *extras["trace"], *extras["secure"]):
        wanted = Requirement(line)
        if wanted.name != "amcast":
            version = locked[canonicalize_name(wanted.name)][0]
            assert wanted.specifier.contains(version), f"{line}, but {version} is locked: make lock"
