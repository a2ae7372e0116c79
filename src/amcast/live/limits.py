"""All limits of the live system in one place, for operators to read and tests to lower."""

from amcast.kernel.config import Config
from amcast.kernel.errors import UsageError

KIB = 1024
MIB = 1024 * KIB

GREETING_BYTES = 4 * KIB
"""The largest first frame of a connection: a HELLO or an RPC request."""


class Limits(Config, frozen=True):
    """Sizes in bytes, times in seconds."""

    message_bytes: int = 1 * MIB
    """The largest payload of a multicast; larger ones are refused before anything is sent."""
    frame_bytes: int = 16 * MIB
    """The largest frame; a longer one is refused before it is parsed."""
    body_bytes: int = 256 * MIB
    """The largest body of a protocol, such as the state of a group; one larger than a frame is sent in fragments."""
    frame_target_bytes: int = 256 * KIB
    """Bodies to one peer in one tick share a frame up to this size."""
    queue_bytes: int = 64 * MIB
    """Unacknowledged frames for one peer; with more, the link is reset."""
    backpressure_bytes: int = 4 * MIB
    """With more frames for a peer, senders that can wait (clients, gateways) wait until half of this is left."""
    unordered_bytes: int = 64 * MIB
    """Client payload that a gateway has requested and that is not ordered yet (a group may have lost its majority).
    With more, it reads nothing from clients until half of this is left."""
    client_unordered_bytes: int = 32 * MIB
    """The same for the clients of one name (without TLS: of one address)."""
    recent_bytes: int = 16 * MIB
    """Recent deliveries that a replica keeps for subscribers that come back; older ones have expired."""
    retained_bytes: int = 0
    """Deliveries that a replica keeps on disk for subscribers, also over restarts
    (`live/storage/delivery_archive.py`); older ones are removed. 0: none. At least 1 MiB."""
    retained_s: float = 7 * 24 * 3600.0
    """How long a replica keeps them; older ones are removed even if there is space."""
    coalesce_us: int = 1000
    """The longest sleep of leaders and gateways after a busy tick (`live/host/wakeup_coalescer.py`); 0: none."""
    follower_delay_us: int = 1_000_000
    """How long deferrable bodies to followers wait for more. Followers deliver sooner, by their primary's delivery
    notice, unless it is lost. 0: all bodies are sent at once."""
    peers: int = 10_000
    """Clients with a link at one time; nodes are always admitted."""
    client_connections: int = 5_000
    """Connections of one client name at one time (without TLS: of one address), links and RPC together."""
    client_subscriptions: int = 1_000
    """Subscriptions of one client name at one time."""
    client_requests_per_s: int = 1_000
    """HELLOs and RPC requests of one client name per second; after a pause, those of five seconds may come at once."""
    client_multicasts_per_s: int = 100_000
    """Multicasts of one client name per second, over all its links; a batch counts as one. Nothing is read from a name
    that sent more until the average is below it again."""
    pending_connections: int = 256
    """Connections at one time that have not identified themselves; one more closes the oldest."""
    hello_timeout_s: float = 5.0
    """A connection that has not identified itself by then is closed."""
    heartbeat_s: float = 0.5
    """How often a link acknowledges received frames and shows that it is alive."""
    heartbeat_timeout_s: float = 5.0
    """A connection without received bytes for this long is closed and dialled again."""
    client_link_ttl_s: float = 60.0
    """The link of a client that is disconnected for longer is dropped; a new one starts when it comes back."""
    scrub_bytes_per_s: int = 1 * MIB
    """How fast a node reads its log again to find damage (`storage/scrubber.py`); 0: never."""
    scrub_pause_s: float = 600.0
    """How long it waits after it has read the whole log."""
    reconnect_min_s: float = 0.02
    reconnect_max_s: float = 2.0
    """Back-off between attempts to connect."""

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            may_be_0 = name.endswith("_us") or name.startswith("scrub_") or name == "retained_bytes"
            value, least = getattr(self, name), 0 if may_be_0 else 1
            if value < 0 or (value == 0 and least):
                raise UsageError(f"limits.{name} = {value}; expected {'more than 0' if least else '0 or more'}")
        if 0 < self.retained_bytes < MIB:
            raise UsageError(f"limits.retained_bytes = {self.retained_bytes}; expected 0, or at least 1 MiB")
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
