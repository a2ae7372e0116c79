"""Packets that never arrived, for the trace: a packet is recorded by its receiver, and a lost one has none.

When a link begins anew, what the other end had not acknowledged is lost, as far as this end can know: a peer that died
may have taken some of it, and recorded that or not. So such a packet may be told twice, once as received, never as
delivered to an incarnation that did not get it.
"""

from collections.abc import Iterable

from amcast.kernel.ids import ProcessId
from amcast.live.wire import frames as codec
from amcast.live.wire.frames import HEAD, HEAD_BYTES, Codec
from amcast.trace.recorder import Recorder


def record_lost(recorder: Recorder, coder: Codec, me: ProcessId, peer: ProcessId, frames: Iterable[bytes]) -> None:
    """Tell of every packet in these frames that it did not arrive."""
    for data in frames:
        kind = HEAD.unpack_from(data)[2]
        if kind != codec.TRACED:
            continue
        frame = coder.read(kind, data[HEAD_BYTES:])
        for body, about, size in zip(frame.bodies, frame.abouts, frame.sizes, strict=True):
            recorder.record_packet(about, type(body).__name__, me, peer, size, frame.sent_ns, None)
