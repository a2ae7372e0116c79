"""A process that raises: a violation like any other, because no input may make a process fail."""

from collections.abc import Sequence

from amcast.kernel.errors import Error
from amcast.kernel.events import Event
from amcast.kernel.ids import ProcessId


class ProcessFailedError(Error):
    """A process raised an exception in a step, most often an assertion of its protocol."""

    def __init__(self, process: ProcessId, step: int, events: Sequence[Event], cause: Exception) -> None:
        super().__init__(f"process {process} fails with {type(cause).__name__} in {_find_function(cause)}: {cause}")
        self.process = process
        self.step = step
        """The number of the step in its world, counted over all processes."""
        self.events = tuple(events)


def _find_function(error: Exception) -> str:
    """The function that raised."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return "an unknown function" if trace is None else trace.tb_frame.f_code.co_name
