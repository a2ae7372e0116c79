"""Limits on everything, in one place, so that an operator can read them and a test can shrink them."""

from amcast.kernel.config import Config
from amcast.kernel.errors import UsageError

KIB = 1024
MIB = 1024 * KIB

GREETING_BYTES = 4 * KIB
"""What a connection may say before it has said who it is."""


class Limits(Config, frozen=True):
    """Sizes in bytes, times in seconds."""

    message_bytes: int = 1 * MIB
    """The largest payload that a client may multicast; larger ones are refused before anything is sent."""
    frame_bytes: int = 16 * MIB
    """The largest frame on a wire; a longer one is refused before it is parsed."""
    body_bytes: int = 256 * MIB
    """The largest body that a protocol may say, such as the state of a group; it travels in pieces, if it must."""
    frame_target_bytes: int = 256 * KIB
    """Bodies to one peer in one tick share a frame up to this size."""
    queue_bytes: int = 64 * MIB
    """What may wait for one peer, unacknowledged; more ends the incarnation of the link."""
    backpressure_bytes: int = 4 * MIB
    """From here on, whoever can wait (clients, gateways) waits until the peer has taken half of it."""
    unordered_bytes: int = 64 * MIB
    """Clients' payload that a gateway has asked for without an answer (a group may have lost its majority): with more,
    it reads nothing from clients until half of that is answered, and they wait."""
    recent_bytes: int = 16 * MIB
    """Deliveries that a replica keeps for subscribers that come back; older ones are gone."""
    coalesce_us: int = 1000
    """Under load leaders and gateways rest for up to so many microseconds after a tick
    (`live/host/wakeup_coalescer.py`); 0: no."""
    follower_delay_us: int = 1_000_000
    """What followers need not hear at once is kept for up to so many microseconds, until there is more to tell them.
    They deliver sooner, by their primary's word, unless they miss that. 0: they are told everything at once."""
    peers: int = 10_000
    """Connections of clients at one time; nodes always get in."""
    pending_connections: int = 256
    """Connections at one time that have not said who they are; one more, and the oldest is closed."""
    hello_timeout_s: float = 5.0
    """A connection that has not said who it is by then is closed."""
    heartbeat_s: float = 0.5
    """How often a link says what it has received, so that the other end may forget it, and that it is alive."""
    heartbeat_timeout_s: float = 5.0
    """A connection that says nothing for so long is given up and dialled again."""
    client_link_ttl_s: float = 60.0
    """A client that is away for longer is forgotten; when it comes back, its link begins anew."""
    reconnect_min_s: float = 0.02
    reconnect_max_s: float = 2.0
    """Back-off between attempts to connect."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            value, least = getattr(self, name), 0 if name.endswith("_us") else 1
            if value < 0 or (value == 0 and least):
                raise UsageError(f"limits.{name} = {value}; expected {'more than 0' if least else '0 or more'}")
        if self.frame_bytes < 2 * self.message_bytes:
            raise UsageError(
                f"limits.frame_bytes = {self.frame_bytes}; expected at least twice message_bytes"
                f" ({self.message_bytes}), because bodies carry more than the message"
            )
        if self.body_bytes < self.frame_bytes:
            raise UsageError(
                f"limits.body_bytes = {self.body_bytes}; expected at least frame_bytes ({self.frame_bytes})"
            )
        if self.frame_bytes > 2**31:
            raise UsageError(f"limits.frame_bytes = {self.frame_bytes}; expected at most 2 GiB")
        if self.queue_bytes < 2 * self.backpressure_bytes:
            raise UsageError(
                f"limits.queue_bytes = {self.queue_bytes};"
                f" expected at least twice backpressure_bytes ({self.backpressure_bytes})"
            )
