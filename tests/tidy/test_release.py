"""What `make release` refuses: a changelog of another version, and a wheel with other files than the package's."""

import zipfile
from pathlib import Path

import pytest
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
