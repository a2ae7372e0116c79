"""The session: refusals in one sentence, silence on the screen, failures that name a log."""

import socket
import subprocess
import sys
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.spark import session as sessions
from amcast.pipeline.spark.session import check_master, open_session, translate_errors


@pytest.mark.parametrize("master", ["spak://host:1", "spark://host", "spark://host:x", "spark://:7077", "local[x]", ""])
def test_a_master_that_spark_would_not_understand(master: str) -> None:
    with pytest.raises(UsageError, match="expected"):
        check_master(master)


@pytest.mark.parametrize("master", ["local", "local[2]", "local[*]", "local[2,4]", "yarn", "k8s://https://host:6443"])
def test_masters_that_are_left_to_spark(master: str) -> None:
    check_master(master)


def test_an_unreachable_master_is_one_sentence() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port = taken.getsockname()[1]
    with pytest.raises(CannotTellError, match=f"spark://127.0.0.1:{port}: no Spark master answers"):
        check_master(f"spark://127.0.0.1:{port}")


def test_an_open_session_is_used_and_left_open(spark: SparkSession) -> None:
    with open_session() as found:
        assert found is spark
    assert spark.range(3).count() == 3


def test_the_settings_that_matter(spark: SparkSession) -> None:
    conf = spark.sparkContext.getConf()
    assert conf.get("spark.ui.enabled") == "false"
    assert conf.get("spark.python.unix.domain.socket.enabled") == "true"
    assert conf.get("spark.driver.host") == "127.0.0.1"
    assert spark.conf.get("spark.sql.session.timeZone") == "UTC"


def test_a_failure_in_spark_is_one_sentence_that_names_the_log(
    spark: SparkSession, capfd: pytest.CaptureFixture[str]
) -> None:
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


def test_a_jvm_that_dies_is_one_sentence() -> None:
    """Killing the JVM under a session: the sentence names the log, no stack trace comes."""
    text = """
import os, signal, sys
from amcast.kernel.errors import CannotTellError
from amcast.pipeline.spark.session import open_session
try:
    with open_session("local[1]") as spark:
        pid = int(spark.sparkContext._jvm.java.lang.ProcessHandle.current().pid())
        os.kill(pid, signal.SIGKILL)
        spark.range(10).count()
except CannotTellError as error:
    print(error)
"""
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("Spark failed: the Java process is gone; see ")
    assert done.stdout.count("\n") == 1
    assert "Traceback" not in done.stderr
    assert " at " not in done.stderr


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("java.io.IOException: No space left on device", "the disk is full"),
        (
            "An error occurred while calling o1.x.\n: a.b.SparkException: Job aborted\n\tat x",
            "Job aborted",
        ),
    ],
)
def test_reasons(text: str, expected: str) -> None:
    assert expected in sessions.describe_failure(RuntimeError(text))
