"""One Spark session for all tests of a worker: starting one takes seconds."""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from amcast.pipeline.spark.session import start, stop

SETTINGS = {"spark.sql.shuffle.partitions": "2", "spark.sql.adaptive.enabled": "false"}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    found = start("local[2,4]", settings=SETTINGS)
    yield found
    stop(found)
