"""One run of several that share their tables, alone."""

from amcast.pipeline.check.runner import Call, Runner
from amcast.pipeline.rows.files import TraceFolder, list_parquet_files, resolve_filesystem
from amcast.pipeline.rows.footers import Footers, split_row_groups
from amcast.pipeline.rows.sort import copy_run
from amcast.trace.meta import Meta


def isolate_run(runner: Runner, source: TraceFolder, footers: Footers, meta: Meta, place: str) -> TraceFolder:
    """A folder that holds this run only: its share of shared tables, written to a place that all workers see."""
    calls: list[Call] = []
    for table, row_groups in footers.items():
        where, inner = resolve_filesystem(f"{place}/{table}")
        where.create_dir(inner)
        calls += [
            (copy_run, (table, share, meta.run, f"{place}/{table}/part-{number:05}.parquet"))
            for number, share in enumerate(split_row_groups(row_groups) or [[]])
        ]
    runner(calls)
    tables = {table: list_parquet_files(f"{place}/{table}") for table in source.tables}
    return TraceFolder(source.folder, (meta,), tables)
