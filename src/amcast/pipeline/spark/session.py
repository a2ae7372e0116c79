"""Builds Spark sessions, sized for the machine, with all output of the JVM in a log file.

    with open_session() as spark: ...                        # local[*], nothing to install
    with open_session("spark://host:7077") as spark: ...     # a cluster

Every failure is one sentence that names the log. A session that is already open in this interpreter (a test's, or
spark-submit's) is used unchanged and left open.
"""

import logging
import os
import re
import socket
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from py4j.protocol import Py4JError  # type: ignore[import-untyped]
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from amcast.kernel.errors import CannotTellError, UsageError
from amcast.pipeline.spark.java import cache_folder, find_java_home

MASTERS: Final = ("local", "spark", "yarn", "k8s")
CONNECT_SECONDS: Final = 5.0
MAX_LOGS: Final = 20
HEAP_MIB: Final = (1024, 2048)
"""The heap grows with the machine's memory between these. Kernels work outside the JVM; shuffles spill to disk."""

LOG4J: Final = """rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {log}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %d{{HH:mm:ss}} %p %c{{1}}: %m%n%ex
"""

_log: Path | None = None
"""The log of this interpreter's JVM: Spark allows one JVM per interpreter, so there is one log."""


@contextmanager
def open_session(
    master: str | None = None, *, ui: bool = False, brief: bool = False, settings: Mapping[str, str] | None = None
) -> Iterator[SparkSession]:
    """A Spark session for as long as the block runs; inside it, Spark's failures are one-sentence errors.

    `brief`: the JVM will not have much to do, and does not spend more time on compiling than on working.
    """
    active = SparkSession.getActiveSession()
    if active is not None:
        with translate_errors():
            yield active
        return
    spark = start_session(master, ui=ui, brief=brief, settings=settings)
    try:
        with translate_errors():
            yield spark
    finally:
        stop_session(spark)


def start_session(
    master: str | None = None, *, ui: bool = False, brief: bool = False, settings: Mapping[str, str] | None = None
) -> SparkSession:
    """Builds the session. Prefer the context manager `open_session`, which also stops it."""
    global _log
    if master is not None:
        check_master(master)
    os.environ["JAVA_HOME"] = str(find_java_home())
    if _log is None:
        _log = create_log()
    redirect_loggers(_log)
    chosen = {**default_settings(master, ui, _log, brief), **(settings or {})}
    builder: Any = SparkSession.builder.appName("amcast")
    for name, value in chosen.items():
        builder = builder.config(name, value)
    try:
        with redirect_output(_log):
            spark: SparkSession = builder.getOrCreate()
        spark.sparkContext.setLogLevel("WARN")
        return spark
    except (PySparkException, Py4JError, OSError) as error:
        raise CannotTellError(f"Spark does not start: {describe_failure(error)}; see {_log}") from None


def stop_session(spark: SparkSession) -> None:
    """Stops the session; a JVM that is already gone is no error."""
    with suppress(PySparkException, Py4JError, OSError), warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)
        spark.stop()


def default_settings(master: str | None, ui: bool, log: Path, brief: bool = False) -> dict[str, str]:
    """The settings that measurements support (docs/spark.md says how much), for this machine or a cluster."""
    cores = count_usable_cores()
    local = is_local(master)
    compiler = " -XX:TieredStopAtLevel=1" if brief else ""
    log4j = write_log_settings(log)
    # Python workers use the driver's interpreter, unless the user ships another environment to the cluster.
    os.environ.setdefault("PYSPARK_PYTHON", _python())
    chosen = {
        "spark.ui.enabled": str(ui).lower(),
        "spark.ui.showConsoleProgress": "false",
        "spark.sql.session.timeZone": "UTC",
        "spark.sql.execution.arrow.pyspark.enabled": "true",
        "spark.python.unix.domain.socket.enabled": "true",
        "spark.sql.warehouse.dir": str(Path(tempfile.gettempdir()) / "amcast-warehouse"),
        "spark.driver.memory": f"{choose_heap_mib()}m",
        "spark.driver.extraJavaOptions": f"-Dlog4j2.configurationFile={log4j} -XX:+UseParallelGC{compiler}",
        # Traces have billions of small rows and few distinct plans: whole files per task, no speculative copies.
        "spark.sql.files.maxPartitionBytes": "64m",
        "spark.sql.adaptive.enabled": "true",
        "spark.sql.shuffle.partitions": str(4 * cores) if local else "200",
        "spark.task.maxFailures": "4",
        # MiB. A task carries its call: some hundred bytes for each row group that it reads.
        "spark.rpc.message.maxSize": "1024",
    }
    if master is not None:
        chosen["spark.master"] = master
    elif not is_submitted():
        # local[N] alone fails at the first lost task; the second number allows retries.
        chosen["spark.master"] = f"local[{cores},4]"
    if is_local(chosen.get("spark.master")) or is_loopback(master):
        chosen["spark.driver.host"] = "127.0.0.1"
        chosen["spark.driver.bindAddress"] = "127.0.0.1"
    return chosen


def is_submitted() -> bool:
    """Whether this process runs inside spark-submit, which has chosen the master already."""
    return "PYSPARK_GATEWAY_PORT" in os.environ


def is_local(master: str | None) -> bool:
    return (master is None and not is_submitted()) or (master or "").startswith("local")


def is_loopback(master: str | None) -> bool:
    return urlsplit(master or "").hostname in ("127.0.0.1", "localhost")


def count_usable_cores() -> int:
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1


def choose_heap_mib() -> int:
    """An eighth of the memory, within bounds: the page cache and the kernels need the rest more."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2**20
    return max(HEAP_MIB[0], min(HEAP_MIB[1], memory // 8))


def _python() -> str:
    import sys

    return sys.executable


def check_master(master: str) -> None:
    """Refuses a URL that Spark would not understand, and a standalone master that cannot be reached."""
    kind = re.split(r"[:\[-]", master, maxsplit=1)[0]
    if kind not in MASTERS:
        raise UsageError(f"--master {master}: expected local, local[N], spark://HOST:PORT, yarn or k8s://URL")
    if kind == "local" and not re.fullmatch(r"local(\[(\*|\d+)(,\d+)?\])?|local-cluster\[\d+,\d+,\d+\]", master):
        raise UsageError(f"--master {master}: expected local, local[N] or local[*]")
    if kind != "spark":
        return
    for address in master.removeprefix("spark://").split(","):
        host, colon, port = address.rpartition(":")
        if not master.startswith("spark://") or not colon or not host or not port.isdigit() or int(port) > 65535:
            raise UsageError(f"--master {master}: expected spark://HOST:PORT")
    if not any(is_reachable(address) for address in master.removeprefix("spark://").split(",")):
        raise CannotTellError(f"--master {master}: no Spark master answers there")


def is_reachable(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        with socket.create_connection((host.strip("[]"), int(port)), timeout=CONNECT_SECONDS):
            return True
    except OSError:
        return False


def create_log() -> Path:
    """A new log file in the user's cache; old ones are removed."""
    folder = cache_folder() / "logs"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for old in sorted(folder.glob("spark-*.log"), key=lambda path: path.name)[: -MAX_LOGS + 1]:
            old.unlink(missing_ok=True)
        log = folder / f"spark-{time.strftime('%Y%m%d-%H%M%S')}-{os.getpid()}.log"
        log.touch()
        return log
    except OSError as error:
        raise UsageError(f"{folder}: cannot write Spark's log there ({error.strerror}); set XDG_CACHE_HOME") from None


def write_log_settings(log: Path) -> Path:
    """Writes log4j's configuration: everything into the log, nothing on the screen."""
    path = log.with_suffix(".properties")
    path.write_text(LOG4J.format(log=log))
    return path


def redirect_loggers(log: Path) -> None:
    """Redirects the Python loggers of Spark and py4j to the log; by default they would use the screen."""
    for name in ("py4j", "pyspark", "SQLQueryContextLogger", "DataFrameQueryContextLogger"):
        logger = logging.getLogger(name)
        if not any(isinstance(handler, logging.FileHandler) for handler in logger.handlers):
            logger.handlers = [logging.FileHandler(log, delay=True)]
            logger.propagate = False
    root = logging.getLogger()
    if not root.handlers:
        root.addHandler(_SparkLogHandler(log, delay=True))


class _SparkLogHandler(logging.FileHandler):
    """Writes records that py4j sends to the root logger to the log; others go to the default handler."""

    def emit(self, record: logging.LogRecord) -> None:
        if "py4j" in record.pathname or "pyspark" in record.pathname:
            super().emit(record)
        elif logging.lastResort is not None and record.levelno >= logging.lastResort.level:
            logging.lastResort.handle(record)


@contextmanager
def redirect_output(log: Path) -> Iterator[None]:
    """Redirects standard output and error of processes started in the block (the JVM, for its lifetime) to the log."""
    saved = os.dup(1), os.dup(2)
    target = os.open(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.dup2(target, 1)
        os.dup2(target, 2)
        yield
    finally:
        os.dup2(saved[0], 1)
        os.dup2(saved[1], 2)
        for descriptor in (target, *saved):
            os.close(descriptor)


@contextmanager
def translate_errors() -> Iterator[None]:
    """Turns Spark's failures into one sentence; the stack trace stays in the log that the sentence names."""
    try:
        yield
    except (PySparkException, Py4JError, ConnectionError, EOFError) as error:
        where = f"; see {_log}" if _log is not None else ""
        if _log is not None:
            with _log.open("a") as file:
                file.write(f"\n{error}\n")
        raise CannotTellError(f"Spark failed: {describe_failure(error)}{where}") from None


def describe_failure(error: Exception) -> str:
    """The first informative line of an error."""
    text = str(error)
    if "No space left on device" in text:
        return "the disk is full; a shuffle needs about the size of the trace in SPARK_LOCAL_DIRS"
    if isinstance(error, (ConnectionError, EOFError)) or "Java gateway process exited" in text:
        return "the Java process is gone"
    if "Answer from Java side is empty" in text or "Error while sending or receiving" in text:
        return "the Java process is gone"
    in_worker = re.search(r"^Traceback \(most recent call last\):.*?^(\w\S*: .*?)$", text, re.MULTILINE | re.DOTALL)
    if in_worker is not None:
        return f"a task ended with {in_worker[1][:300].rstrip(' .')}"
    for line in text.splitlines():
        line = re.sub(r"^\S*(Exception|Error):\s*", "", line.strip(" \t:"))
        if line and not line.startswith(("An error occurred while calling", "at ", "Traceback", "File ")):
            return line[:300].rstrip(" .;:")
    # A call that failed without a message: the JVM does not answer.
    return "the Java process is gone" if isinstance(error, Py4JError) else type(error).__name__
