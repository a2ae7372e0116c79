"""What gateways say, know and can be told."""

from amcast.kernel.config import Config
from amcast.kernel.ids import GroupId, MessageId, ProcessId
from amcast.kernel.message import Body, Message, State
from amcast.parts.bodies.session import MILLISECOND, ClientState


class GatewayConfig(Config, frozen=True):
    retry_ns: tuple[int, int] = (1000 * MILLISECOND, 2000 * MILLISECOND)
    """How long a gateway waits for answers before it asks everybody again."""
    bundles: int = 1
    """So many may be on their way to the same destinations; what comes meanwhile gathers for the next."""
    gather_ns: tuple[int, int] = (100 * MILLISECOND, 100 * MILLISECOND)
    """What has gathered for so long does not wait for the bundle before."""
    rest: bool = True
    """Where several clients are at it, wait a little after an answer for those who will ask again."""
    bundle_messages: int = 1024
    """No bundle holds more messages."""
    bundle_bytes: int = 256 * 1024
    """No bundle of several messages holds more payload."""

    def __post_init__(self) -> None:
        low, high = self.retry_ns
        if not 0 < low <= high:
            raise ValueError(f"retry_ns = {list(self.retry_ns)}; expected a range above 0, lower end first")
        for name in ("bundles", "bundle_messages", "bundle_bytes"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} = {getattr(self, name)}; expected 1 or more")
        if not 0 < self.gather_ns[0] <= self.gather_ns[1]:
            raise ValueError(f"gather_ns = {list(self.gather_ns)}; expected a range above 0, lower end first")


class Done(Body, frozen=True):
    """A gateway tells a client that every destination group has answered for these messages, or need not."""

    messages: tuple[MessageId, ...]


class WaveState(State, frozen=True):
    """What a gateway knows of those whom it answered last, for some destinations."""

    groups: tuple[GroupId, ...]
    answered: int
    missing: tuple[ProcessId, ...]
    vain: int
    patient: bool
    hasty: tuple[int, int]
    calm: tuple[int, int]
    phases: int
    bundles: int
    began: tuple[int, int, int]
    doubts: bool
    next: int
    gap: int
    strikes: int


class GatewayState(State, frozen=True):
    number: int
    sequence: int
    open: tuple[tuple[MessageId, tuple[Message, ...]], ...]
    """Bundles without an answer, and what each holds."""
    gathered: tuple[Message, ...]
    armed: bool
    session: ClientState
    left_ns: tuple[tuple[MessageId, int], ...] = ()
    resting: tuple[tuple[GroupId, ...], ...] = ()
    waves: tuple[WaveState, ...] = ()
    waited: tuple[int, int] = (0, 0)
    since: tuple[int, int] = (0, 0)
    gathers_ns: tuple[tuple[tuple[GroupId, ...], int], ...] = ()
