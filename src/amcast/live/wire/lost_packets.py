"""Lost packets in the trace: a packet is recorded by its receiver, and a lost one has none.

When a link is reset, the frames that the peer had not acknowledged are lost as far as this end can know: a peer that
died may have received some of them, and recorded them or not. Such a packet may be in the trace twice, once as
received; it is never shown as received by an incarnation that did not get it.
"""

from collections.abc import Iterable

from amcast.kernel.ids import ProcessId
from amcast.live.wire import frames as wire
from amcast.live.wire.frames import HEAD, Codec
from amcast.trace.recorder import Recorder


def record_lost(
    recorder: Recorder, codec: Codec, me: ProcessId, is_plain: bool, peer: ProcessId, frames: Iterable[bytes]
) -> None:
    """Records every packet in these frames, which were made for a link without TLS (`is_plain`) or with it, as never
    received."""
    for data in frames:
        _, version, kind = HEAD.unpack_from(data)
        if kind != wire.TRACED:
            continue
        frame = codec.read(kind, wire.find_framing(version, is_plain).payload(data))
        for body, about, size in zip(frame.bodies, frame.abouts, frame.sizes, strict=True):
            recorder.record_packet(about, type(body).__name__, me, peer, size, frame.sent_ns, None)
