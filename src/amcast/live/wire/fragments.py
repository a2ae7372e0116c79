"""Bodies larger than a frame: split by the sender's end of a link, reassembled by the receiver's.

State transfer puts the state of a group into one body, which may be larger than a frame may be. Fragments are frames
like others: numbered, kept until acknowledged, and resent after a reconnect. They arrive in order, so the receiver only
counts them.
"""

from collections.abc import Iterator

from amcast.kernel.effects import About
from amcast.live.errors import BadFrameError
from amcast.live.wire.frames import Fragment


def fragment(part: bytes, size: int, sent_ns: int, about: About) -> Iterator[Fragment]:
    """Splits an encoded body into fragments of at most `size` bytes."""
    count = -(-len(part) // size)
    for index in range(count):
        yield Fragment(index, count, part[index * size : (index + 1) * size], sent_ns, about)


class Reassembler:
    """Joins the fragments of one body at a time."""

    def __init__(self, largest_bytes: int) -> None:
        self._largest_bytes = largest_bytes
        self._pieces: list[bytes] = []
        self._bytes = 0

    def add(self, piece: Fragment) -> bytes | None:
        """Adds a fragment; returns the whole body with the last one."""
        if piece.index != len(self._pieces) or not piece.index < piece.count:
            raise BadFrameError(f"fragment {piece.index} of {piece.count}; expected fragment {len(self._pieces)}")
        self._bytes += len(piece.data)
        if self._bytes > self._largest_bytes:
            raise BadFrameError(f"a body of more than {self._largest_bytes} bytes in fragments (limits.body_bytes)")
        self._pieces.append(piece.data)
        if piece.index + 1 < piece.count:
            return None
        data = b"".join(self._pieces)
        self.clear()
        return data

    def clear(self) -> None:
        """Drops a body that is not complete, because the link was reset."""
        self._pieces.clear()
        self._bytes = 0
