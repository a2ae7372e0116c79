"""Independent random streams from one seed: the draws of one part of a run never shift those of another."""

from hashlib import blake2b
from random import Random
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from _typeshed import SupportsLenAndGetItem

T = TypeVar("T")


class Stream(Random):
    """A stream of draws. They are those of Random; the most frequent ones take half the calls."""

    def choice(self, seq: "SupportsLenAndGetItem[T]") -> T:
        return seq[self.draw_below(len(seq))]

    def draw_below(self, count: int) -> int:
        """The draw of `randrange(count)`."""
        if count < 1:
            raise IndexError("cannot choose from an empty sequence")
        bits = count.bit_length()
        drawn = self.getrandbits(bits)
        while drawn >= count:
            drawn = self.getrandbits(bits)
        return drawn


def make_stream(seed: int, *names: object) -> Stream:
    """The stream of a seed and some names; the same in every interpreter and process."""
    text = "/".join(str(name) for name in (seed, *names))
    return Stream(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big"))
