"""A chain of checksums over everything that a process delivers: equal deliveries have equal chains.

    position   0        1        2                          5
               | m0     | m1     | bundle of m2, m3, m4     |
    digest     d0 ----> d1 ----> d2 ----------------------> d5      d1 = crc(m0, d0), d5 = crc(m2 m3 m4, d2)

A message is hashed as its encoding: id, sender, destinations and payload. A bundle contains the encodings of its
messages one behind the other, so the chain over a bundle is the chain over its messages, whether they are delivered
together or one by one; and one call of zlib takes a whole bundle. Two chains that differ once differ for ever, because
each step is a bijection of the digest for equal messages.

Hashing costs 0.4 ns for each byte, which is little for small messages and too much for large ones. So there is an
allowance of bytes: every message adds `BYTES_PER_MESSAGE` to it, and a message that is larger than the allowance counts
with the first `HEAD_BYTES` of its encoding only (its length is among them). Messages up to that size are always hashed
completely, and of larger ones as many as the allowance permits. The allowance is a function of the deliveries, so all
replicas hash the same bytes.

The digest finds mistakes, not attacks: it has 32 bits and no secret.
"""

from collections.abc import Sequence
from typing import Final

import msgspec

from amcast.kernel.checksum import crc32
from amcast.kernel.effects import Deliver
from amcast.parts.ordering.messages import ChainPoint

BYTES_PER_MESSAGE: Final = 1024
HEAD_BYTES: Final = 512
FIRST_ALLOWANCE: Final = 1 << 20
_ARRAY16: Final = 0xDC
_ARRAY32: Final = 0xDD

_encode: Final = msgspec.msgpack.Encoder().encode
_split: Final = msgspec.msgpack.Decoder(list[msgspec.Raw]).decode


def begin_chain(position: int) -> ChainPoint:
    """The first point of a chain that begins at a position."""
    return ChainPoint(position, position, 0, FIRST_ALLOWANCE)


class DeliveryChain:
    """The chain of one process, at its current end."""

    __slots__ = ("allowance", "digest", "origin", "position")

    def __init__(self, point: ChainPoint) -> None:
        self.origin = point.origin
        self.position = point.position
        self.digest = point.digest
        self.allowance = point.allowance

    @property
    def point(self) -> ChainPoint:
        return ChainPoint(self.origin, self.position, self.digest, self.allowance)

    def extend(self, delivery: Deliver) -> None:
        """Adds a delivery at the end."""
        assert delivery.position == self.position, f"delivery {delivery.position} behind position {self.position}"
        count = delivery.message_count
        if count < 0:
            self._add_all((_encode(delivery.message),))
            self.position += 1
        elif count > 0:
            payload = delivery.message.payload
            if delivery.duplicate_places:
                parts = enumerate(_split(payload))
                self._add_all([part for place, part in parts if place not in delivery.duplicate_places])
            elif len(payload) > self.allowance:
                self._add_all(_split(payload))
            else:
                self._fast_add_bundle(payload, count)
            self.position += count

    def _add_all(self, encodings: Sequence[bytes | msgspec.Raw]) -> None:
        """Adds messages, given by their encodings."""
        digest, allowance = self.digest, self.allowance
        for encoding in encodings:
            view = memoryview(encoding)
            size = len(view)
            allowance += BYTES_PER_MESSAGE
            if size <= allowance:
                allowance -= size
                digest = crc32(view, digest)
            else:
                digest = crc32(view[:HEAD_BYTES], digest)
        self.digest, self.allowance = digest, allowance

    def _fast_add_bundle(self, payload: bytes, count: int) -> None:
        """The fast twin of `_add_all` for a bundle that is within the allowance as a whole."""
        kind = payload[0]
        head = 3 if kind == _ARRAY16 else 5 if kind == _ARRAY32 else 1
        self.digest = crc32(memoryview(payload)[head:], self.digest)
        self.allowance += count * BYTES_PER_MESSAGE - len(payload) + head
