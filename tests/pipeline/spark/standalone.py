"""A real standalone Spark cluster on this machine: a master and some workers, from the pip package."""

import os
import signal
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyspark

from amcast.pipeline.spark.java import find_java_home

HOME = Path(pyspark.__file__).parent
QUICK_JVM = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
"""Options of JVMs that do little: less compiling, fewer threads."""


class Cluster:
    """The processes of a cluster; each leads a process group, so that a worker dies with its executors."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.port = free_port()
        self.master = f"spark://127.0.0.1:{self.port}"
        self.processes: dict[str, subprocess.Popen[bytes]] = {}

    def start(self, name: str, *command: str) -> None:
        environment = os.environ | {
            "JAVA_HOME": str(find_java_home()),
            "SPARK_HOME": str(HOME),
            "SPARK_LOCAL_IP": "127.0.0.1",
            "SPARK_WORKER_DIR": str(self.folder / "work"),
            "SPARK_LOCAL_DIRS": str(self.folder / "local"),
            "SPARK_DAEMON_JAVA_OPTS": QUICK_JVM,
        }
        with (self.folder / f"{name}.log").open("wb") as log:
            self.processes[name] = subprocess.Popen(
                [HOME / "bin" / "spark-class", *command],
                env=environment,
                stdout=log,
                stderr=log,
                cwd=self.folder,
                start_new_session=True,
            )

    def start_worker(self, number: int) -> None:
        size = ("--cores", "1", "--memory", "1g", "--webui-port", str(free_port()))
        self.start(f"worker-{number}", "org.apache.spark.deploy.worker.Worker", *size, self.master)

    def wait_for(self, name: str, text: str, seconds: float = 120) -> None:
        deadline = time.monotonic() + seconds
        log = self.folder / f"{name}.log"
        while text not in log.read_text(errors="replace"):
            tail = log.read_text(errors="replace")[-2000:]
            assert self.processes[name].poll() is None, f"{name} ended: {tail}"
            assert time.monotonic() < deadline, f"{name} did not say {text!r}: {tail}"
            time.sleep(0.2)

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


@contextmanager
def cluster(folder: Path, workers: int = 2) -> Iterator[Cluster]:
    """A running cluster; all its processes are gone afterwards."""
    folder.mkdir(parents=True, exist_ok=True)
    spark_cluster = Cluster(folder)
    try:
        host = ("--host", "127.0.0.1", "--port")
        spark_cluster.start(
            "master",
            "org.apache.spark.deploy.master.Master",
            *host,
            str(spark_cluster.port),
            "--webui-port",
            str(free_port()),
        )
        spark_cluster.wait_for("master", "I have been elected leader")
        for number in range(workers):
            spark_cluster.start_worker(number)
        for number in range(workers):
            spark_cluster.wait_for(f"worker-{number}", "Successfully registered with master")
        yield spark_cluster
    finally:
        for name in list(spark_cluster.processes):
            spark_cluster.kill(name)
