"""Independent random streams from one seed: the draws of one part of a run never shift those of another."""

from hashlib import blake2b
from random import Random


def make_stream(seed: int, *names: object) -> Random:
    """The stream of a seed and some names; the same in every interpreter and process."""
    text = "/".join(str(name) for name in (seed, *names))
    return Random(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big"))
