"""The columns of the six tables, as plain data: the only definition of what a trace looks like.

`docs/RESULTS.md` explains them; tests hold that page, the Parquet schemas and Spark's schemas equal to this module.
"""

from typing import Final, Literal, NamedTuple

SCHEMA: Final = 1
"""The version in run.json; readers refuse others."""

LIMIT: Final = 1 << 62
"""Times lie between -LIMIT and LIMIT (146 years of nanoseconds), positions between 0 and LIMIT: sums and differences of
two of them fit into 64 bits."""

BATCH_ROWS: Final = 1 << 16
"""Rows that are read at a time."""

ColumnType = Literal["string", "int", "long", "double", "array<int>", "array<long>"]


class Column(NamedTuple):
    """One column. `nullable`: a value may be missing; `optional`: the whole column may be."""

    name: str
    type: ColumnType
    nullable: bool = False
    optional: bool = False

    @property
    def bounds(self) -> tuple[int, int] | None:
        """The lowest and the highest value of a column of times or positions; None for other columns."""
        if self.name == "position":
            return 0, LIMIT
        return (-LIMIT, LIMIT) if self.name.endswith("_ns") else None


PROCESSES: Final = (
    Column("run", "string"),
    Column("process", "int"),
    Column("group", "int", nullable=True),
    Column("region", "string"),
    Column("crashed_at_ns", "long", nullable=True),
    Column("host", "string", nullable=True, optional=True),
)
MULTICASTS: Final = (
    Column("run", "string"),
    Column("message", "long"),
    Column("sender", "int"),
    Column("destinations", "array<int>"),
    Column("at_ns", "long"),
    Column("bytes", "int"),
    Column("session", "long", nullable=True, optional=True),
    Column("sequence", "long", nullable=True, optional=True),
)
ANSWERS: Final = (
    Column("run", "string"),
    Column("message", "long"),
    Column("at_ns", "long"),
)
DELIVERIES: Final = (
    Column("run", "string"),
    Column("process", "int"),
    Column("group", "int"),
    Column("position", "long"),
    Column("message", "long"),
    Column("at_ns", "long"),
    Column("rank_time", "long", nullable=True),
    Column("rank_tie", "long", nullable=True),
    Column("multicast_ns", "long", nullable=True, optional=True),
    Column("committed_ns", "long", nullable=True, optional=True),
    Column("destinations", "array<int>", nullable=True, optional=True),
)
PACKETS: Final = (
    Column("run", "string"),
    Column("message", "long", nullable=True),
    Column("body", "string"),
    Column("source", "int"),
    Column("target", "int"),
    Column("bytes", "int"),
    Column("sent_ns", "long"),
    Column("received_ns", "long", nullable=True),
    Column("sender", "int", nullable=True, optional=True),
    Column("destinations", "array<int>", nullable=True, optional=True),
    Column("messages", "array<long>", nullable=True, optional=True),
)
NOTES: Final = (
    Column("run", "string"),
    Column("process", "int"),
    Column("at_ns", "long"),
    Column("name", "string"),
    Column("message", "long", nullable=True),
    Column("value", "double", nullable=True),
)

TABLES: Final[dict[str, tuple[Column, ...]]] = {
    "processes": PROCESSES,
    "multicasts": MULTICASTS,
    "deliveries": DELIVERIES,
    "answers": ANSWERS,
    "packets": PACKETS,
    "notes": NOTES,
}
REQUIRED: Final = ("processes", "multicasts", "deliveries")
