"""One Spark session for all tests of a worker: starting one takes seconds.

The session is made for short jobs: few partitions, no code generation, and a JVM that compiles quickly.
"""

from collections.abc import Iterator

import pytest
from pyspark.sql import SparkSession

from amcast.pipeline.spark.session import start_session, stop_session

SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.codegen.wholeStage": "false",
}


@pytest.fixture(scope="session")
def spark() -> Iterator[SparkSession]:
    session = start_session("local[2,4]", brief=True, settings=SETTINGS)
    yield session
    stop_session(session)
