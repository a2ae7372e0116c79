"""Many folders and files in few tasks: tasks read footers where there are many, and small folders share a task."""

from typing import Final

from amcast.pipeline.check.runner import Runner, run_sequentially
from amcast.pipeline.rows.files import TraceFolder
from amcast.pipeline.rows.footers import FILES_PER_TASK, Footers, RowGroup, read_footers, split_files

TASK_ROWS: Final = 1_000_000
"""Rows of small folders that share a task."""
MANY_FILES: Final = 100
"""The footers of more files than this are read by tasks."""

FileShare = tuple[str, str, tuple[str, ...], list[str]]
"""(folder, table, files, runs of the folder)."""


def read_all_footers(runner: Runner, folders: list[TraceFolder]) -> dict[str, Footers]:
    """The row groups of each folder, by folder: every file is opened once, by the runner's tasks if there are many
    files. Refuses files that are no tables of a trace."""
    if sum(len(files) for source in folders for files in source.tables.values()) <= MANY_FILES:
        runner = run_sequentially
    shares: list[list[FileShare]] = []
    files = FILES_PER_TASK
    for source in folders:
        for table, paths in split_files(source):
            if files >= FILES_PER_TASK:
                shares.append([])
                files = 0
            shares[-1].append((source.folder, table, paths, [meta.run for meta in source.metas]))
            files += len(paths)
    answers = runner([(read_footers_of_shares, (share,)) for share in shares])
    found: dict[str, dict[str, tuple[RowGroup, ...]]] = {
        source.folder: dict.fromkeys(source.tables, ()) for source in folders
    }
    for share, answer in zip(shares, answers, strict=True):
        for (folder, table, *_), row_groups in zip(share, answer, strict=True):
            found[folder][table] += tuple(row_groups)
    return found


def read_footers_of_shares(shares: list[FileShare]) -> list[list[RowGroup]]:
    """The work of one task of `read_all_footers`."""
    return [read_footers(table, paths, runs) for _, table, paths, runs in shares]


def share_folders(folders: list[TraceFolder], rows: dict[str, int], cores: int) -> list[list[TraceFolder]]:
    """Small folders in shares for one task each, the largest share first: large folders alone, small ones together."""
    if not folders:
        return []
    total = sum(rows[source.folder] for source in folders)
    tasks = max(1, min(len(folders), max(4 * cores, total // TASK_ROWS)))
    shares: list[tuple[int, list[TraceFolder]]] = [(0, []) for _ in range(tasks)]
    for source in sorted(folders, key=lambda source: -rows[source.folder]):
        load, own = shares[0]
        own.append(source)
        # Opening a folder costs about as much as judging some thousand rows.
        shares[0] = (load + rows[source.folder] + 5000, own)
        shares.sort(key=lambda share: share[0])
    return [own for _, own in reversed(shares) if own]
