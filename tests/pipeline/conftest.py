"""One Spark session for all tests of a worker: starting one takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from amcast.pipeline.spark.session import start_session, stop_session

SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    found = start_session("local[2,4]", settings=SETTINGS)
    yield found
    stop_session(found)
