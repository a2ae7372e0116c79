"""What a data folder says of itself when it is opened."""

from itertools import count

from amcast.kernel.folder import MAX_STARTS
from amcast.simulation.world.simulated_files import SimulatedFiles
from amcast.storage.folder import StorageFolder


def test_folder_whose_log_was_discarded_is_not_one_that_never_took_part() -> None:
    """An operator puts a copy back that was made before the first admission. Its group notices, and the log is put
    aside: the node must ask for its group's state, and not vote as on its first day."""
    files, numbers = SimulatedFiles("node"), count(1)
    first = StorageFolder(files, lambda: next(numbers))
    assert first.state.condition == "fresh"
    first.discard(records=9, incarnation=4)
    first.close()
    again = StorageFolder(files, lambda: next(numbers)).state
    assert again.condition == "lost"
    assert again.incarnation == 4
    assert again.records > 9


def test_folder_keeps_its_last_starts_until_its_log_is_discarded() -> None:
    files, numbers = SimulatedFiles("node"), count(1)
    for _ in range(MAX_STARTS + 5):
        folder = StorageFolder(files, lambda: next(numbers))
        folder.close()
    starts = folder.state.starts
    assert len(starts) == MAX_STARTS
    assert starts[-1] == (folder.incarnation, folder.state.start)
    assert starts[0][0] == folder.incarnation - MAX_STARTS + 1
    assert len({start for _, start in starts}) == MAX_STARTS
    folder = StorageFolder(files, lambda: next(numbers))
    folder.discard(incarnation=1000)
    folder.close()
    again = StorageFolder(files, lambda: next(numbers)).state
    assert again.starts == ((1000, again.start),), "others may remember starts that were lost with the log"
