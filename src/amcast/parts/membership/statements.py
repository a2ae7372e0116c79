"""What the bodies and records of reconfigured groups state (`kernel/statements.py`).

Each configuration has its own instance of the protocol, and domains of its own: nothing that is said in one of them
binds anybody in another.
"""

from collections.abc import Sequence
from dataclasses import replace

from amcast.kernel.ids import ProcessId
from amcast.kernel.message import Body, Record
from amcast.kernel.statements import Listener, StatementTable
from amcast.parts.membership.messages import ConfigurationBody, InstanceRecord, make_body_type, make_record_type


def build_membership_table(
    tables: Sequence[StatementTable], bodies: tuple[type[Body], ...], records: tuple[type[Record], ...]
) -> StatementTable:
    """The table of a protocol whose members change; `tables` are those of its configurations. Bodies and records
    outside envelopes are those of configuration 0."""

    def state_body(listener: Listener, source: ProcessId, body: ConfigurationBody) -> None:
        if body.configuration < len(tables):
            state = tables[body.configuration].bodies.get(type(body.body))
            if state is not None:
                listener.configuration = body.configuration
                state(listener, source, body.body)
                listener.configuration = 0

    def state_record(listener: Listener, source: ProcessId, record: InstanceRecord) -> None:
        if record.configuration < len(tables):
            state = tables[record.configuration].records.get(type(record.record))
            if state is not None:
                state(listener, source, record.record)

    first = tables[0]
    return replace(
        first,
        bodies={**first.bodies, make_body_type(bodies): state_body},
        records={**first.records, make_record_type(records): state_record},
    )
