"""Measures a run that fits into the memory of one task."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import pyarrow as pa
import pyarrow.compute as pc

from amcast.pipeline.check.run_view import refuse_other_groups
from amcast.pipeline.measure.counts import Counts
from amcast.pipeline.measure.facts import (
    DeliveryFacts,
    Facts,
    MulticastFacts,
    NoteFacts,
    PacketFacts,
    empty_table,
    read_columns,
)
from amcast.pipeline.measure.membership import Membership
from amcast.pipeline.measure.observation import RunScope, Span, observe
from amcast.pipeline.measure.recovery import measure_recovery
from amcast.pipeline.measure.tables import Tables, build_tables
from amcast.pipeline.measure.times import Times
from amcast.pipeline.rows.files import TraceFolder
from amcast.pipeline.rows.footers import Footers, prove_row_groups
from amcast.pipeline.rows.tables import load_table


@dataclass(frozen=True)
class MeasureSetting:
    """What a user chose."""

    edge: float
    """The share of messages that is dropped at both ends of a run."""
    order: Sequence[int] | None
    """Ranks destinations; None: by number."""
    is_exact: bool


def measure_folders(sources: list[tuple[TraceFolder, Footers]], setting: MeasureSetting) -> Tables:
    """The tables of all runs of some small folders."""
    found: Tables = {}
    for source, footers in sources:
        runs = [meta.run for meta in source.metas]
        proven = {table: prove_row_groups(table, row_groups, runs) for table, row_groups in footers.items()}
        clean = {table: tuple(rows.row_groups) for table, rows in proven.items()}
        for run in runs:
            members = read_members(source, run)
            if len(runs) == 1:
                refuse_other_groups(proven["deliveries"].groups, members.find_groups())
            one = measure_run(run, clean, members, setting, is_alone=len(runs) == 1)
            for table, rows in one.items():
                found.setdefault(table, []).extend(rows)
    return found


def read_members(source: TraceFolder, run: str) -> Membership:
    """The processes of one run."""
    processes = load_table(source, "processes")
    return Membership(processes.filter(pc.equal(processes["run"], run)))


def measure_run(
    run: str, footers: Footers, members: Membership, setting: MeasureSetting, is_alone: bool = True
) -> Tables:
    """The tables of one run of proven tables; `is_alone`: they hold no other run."""

    def read(table: str) -> pa.Table:
        if table not in footers:
            return empty_table(table)
        return read_columns(table, footers[table], None if is_alone else run)

    sent, delivered, noted = (
        MulticastFacts.build(read("multicasts")),
        DeliveryFacts.build(read("deliveries")),
        read("notes"),
    )
    has_packets, packets, counts = "packets" in footers, None, Counts.zero(members)
    end_ns = int(delivered.at.max()) if delivered.at.size else None
    times = Times.summarize(sent.at, max(1, sent.count))
    span = Span.find(times, setting.edge, end_ns)
    if has_packets:
        rows = read("packets")
        counts.add_packets(rows, members, span.low_ns, span.high_ns)
        counts.add_bodies(footers["packets"], None if is_alone else run)
        packets = PacketFacts.build(rows)
    counts.add_notes(noted)
    counts.add_crashes(members)
    facts = Facts(sent, delivered, packets, NoteFacts.build(noted))
    scope = RunScope(members, span, setting.order, setting.is_exact)
    seen = observe(facts, scope, keeps_answers=bool(counts.faults))
    if seen.end_ns != end_ns:
        # Deliveries of messages that were never multicast do not count.
        scope = replace(scope, span=Span.find(times, setting.edge, seen.end_ns))
        seen = observe(facts, scope, keeps_answers=bool(counts.faults))
    tables = build_tables(run, seen, counts, scope, setting.edge, has_packets)
    tables["recovery"] = [
        {"run": run, **row}
        for group in members.group_ids.tolist()
        for row in measure_recovery(group, seen.answers.get(group), counts.faults)
    ]
    return tables
