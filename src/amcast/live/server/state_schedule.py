"""When the state of an application is taken, so that its journal stays short."""

from typing import Final

from amcast.kernel.config import Config
from amcast.kernel.errors import UsageError
from amcast.live.limits import MIB

JOURNAL_BYTES: Final = 8 * MIB
STATE_MULTIPLE: Final = 4


class StateSchedule(Config, frozen=True):
    """A state is taken when the deliveries since the last one reach any of these numbers.

    By default only their bytes count: 8 MiB, or four times the last state if that is more, so that writing states costs
    at most a quarter of writing deliveries. After a crash so much is executed again, at most.
    """

    bytes: int | None = None
    """Of the deliveries in the journal; None: 8 MiB, or four times the last state."""
    deliveries: int | None = None
    """Positions; None: however many."""
    seconds: float | None = None
    """Since the last state, if there was any delivery; None: however long."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise UsageError(f"schedule.{name} = {value}; expected more than 0, or None")

    def limit_bytes(self, state_bytes: int) -> int:
        """How long the journal may grow behind a state of a size."""
        return self.bytes or max(JOURNAL_BYTES, STATE_MULTIPLE * state_bytes)
