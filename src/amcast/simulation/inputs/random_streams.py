"""One seed, many independent streams: what one part of a run draws never shifts what another part draws."""

from hashlib import blake2b
from random import Random


def make_stream(seed: int, *names: object) -> Random:
    """The stream of a seed that these names single out; the same in every interpreter and process."""
    text = "/".join(str(name) for name in (seed, *names))
    return Random(int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "big"))
