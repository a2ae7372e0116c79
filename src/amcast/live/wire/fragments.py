"""Bodies too large for a frame: cut by the sender's end of a link, joined by the receiver's.

State transfer says in one body what a group knows, and that may be more than one frame may hold. Pieces are frames like
others: numbered, kept until acknowledged, sent again after a reconnect. So they arrive in order, and joining them is
only a matter of counting.
"""

from collections.abc import Iterator

from amcast.kernel.effects import About
from amcast.live.errors import BadFrameError
from amcast.live.wire.frames import Fragment


def fragment(part: bytes, size: int, sent_ns: int, about: About) -> Iterator[Fragment]:
    """An encoded body as pieces of at most `size` bytes."""
    count = -(-len(part) // size)
    for index in range(count):
        yield Fragment(index, count, part[index * size : (index + 1) * size], sent_ns, about)


class Reassembler:
    """One body at a time, on its way."""

    def __init__(self, most_bytes: int) -> None:
        self._most_bytes = most_bytes
        self._pieces: list[bytes] = []
        self._bytes = 0

    def add(self, piece: Fragment) -> bytes | None:
        """The whole body, if this was its last piece."""
        if piece.index != len(self._pieces) or not piece.index < piece.count:
            raise BadFrameError(f"piece {piece.index} of {piece.count}; expected piece {len(self._pieces)}")
        self._bytes += len(piece.data)
        if self._bytes > self._most_bytes:
            raise BadFrameError(f"a body of more than {self._most_bytes} bytes in pieces (limits.body_bytes)")
        self._pieces.append(piece.data)
        if piece.index + 1 < piece.count:
            return None
        data = b"".join(self._pieces)
        self.clear()
        return data

    def clear(self) -> None:
        """The link begins anew."""
        self._pieces.clear()
        self._bytes = 0
