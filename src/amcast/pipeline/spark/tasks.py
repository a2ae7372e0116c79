"""Calls in Spark tasks: one task per call, the answers in the order of the calls.

The tasks read their own files with Arrow. Spark schedules them, retries them when a worker is lost, and moves only the
calls and their small answers.
"""

import gc
import pickle
from collections.abc import Callable, Iterator
from typing import Any, Final

import pyarrow as pa
from pyspark.sql import SparkSession

from amcast.kernel.errors import CannotTellError, UsageError

ANSWER_SCHEMA: Final = "call long, answer binary"
_frozen = False


def make_spark_runner(spark: SparkSession) -> Callable[[list[Any]], list[Any]]:
    """A runner that makes each call in a Spark task of its own."""

    def run(calls: list[Any]) -> list[Any]:
        if not calls:
            return []
        packed = spark.sparkContext.broadcast([pickle.dumps(call) for call in calls])
        frame = spark.range(0, len(calls), 1, len(calls)).mapInArrow(_make_task(packed), ANSWER_SCHEMA)
        answers = {row.call: pickle.loads(row.answer) for row in frame.collect()}
        packed.destroy()
        for answer in answers.values():
            if isinstance(answer, (UsageError, CannotTellError)):
                raise answer
        return [answers[number] for number in range(len(calls))]

    return run


def _make_task(packed: Any) -> Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]:
    def work(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        freeze_garbage()
        for batch in batches:
            for number in batch.column(0).to_pylist():
                answer = run_packed_call(packed.value[number])
                yield pa.RecordBatch.from_arrays(
                    [pa.array([number], pa.int64()), pa.array([answer], pa.binary())], ["call", "answer"]
                )

    return work


def run_packed_call(packed: bytes) -> bytes:
    """Makes one call. A refusal is an answer too, so that it reaches the user as one sentence."""
    function, arguments = pickle.loads(packed)
    try:
        answer = function(*arguments)
    except (UsageError, CannotTellError) as refusal:
        answer = refusal
    return pickle.dumps(answer, protocol=pickle.HIGHEST_PROTOCOL)


def freeze_garbage() -> None:
    """Once per Python worker: exempts loaded objects from garbage collection, which would cost 20 ms after
    every task.
    """
    global _frozen
    if not _frozen:
        gc.collect()
        gc.freeze()
        _frozen = True
