"""A real S3 server on loopback, in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.fs as pafs
import pytest

BUCKET = "traces"
CREDENTIALS = {"AWS_ACCESS_KEY_ID": "test", "AWS_SECRET_ACCESS_KEY": "test", "AWS_DEFAULT_REGION": "eu-west-1"}


@contextmanager
def start_store(folder: Path, seconds: float = 120) -> Iterator[dict[str, str]]:
    """A store with an empty bucket, for as long as the block runs; yields the environment that its users need."""
    pytest.importorskip("moto", reason="the extra dev has moto, a server for S3")
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port = found.getsockname()[1]
    with (folder / "store.log").open("wb") as log:
        command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
        server = subprocess.Popen(command, stdout=log, stderr=log, env=os.environ | CREDENTIALS)
    try:
        deadline = time.monotonic() + seconds
        while True:
            assert server.poll() is None, (folder / "store.log").read_text()[-2000:]
            assert time.monotonic() < deadline, "the store does not answer"
            try:
                socket.create_connection(("127.0.0.1", port), timeout=1).close()
                break
            except OSError:
                time.sleep(0.2)
        system = pafs.S3FileSystem(
            access_key="test",
            secret_key="test",
            region="eu-west-1",
            scheme="http",
            endpoint_override=f"127.0.0.1:{port}",
            allow_bucket_creation=True,
        )
        system.create_dir(BUCKET)
        yield {**CREDENTIALS, "AWS_ENDPOINT_URL": f"http://127.0.0.1:{port}"}
    finally:
        server.terminate()
        server.wait()
