"""The checksum is CRC-32, whoever computes it: frames and logs of one machine are read on another."""

import runpy
import sys
import zlib
from random import Random

import pytest

from amcast.kernel import checksum


@pytest.mark.parametrize("size", [0, 1, 15, 16, 17, 63, 64, 255, 4096, 100_003])
def test_checksum_equals_that_of_zlib(size: int) -> None:
    rng = Random(size)
    data, start = rng.randbytes(size), rng.randrange(1 << 32)
    assert checksum.crc32(data, start) == zlib.crc32(data, start)
    assert checksum.crc32(memoryview(data)) == zlib.crc32(data)


def test_zlib_computes_the_checksum_where_isal_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "isal.isal_zlib", None)
    assert runpy.run_path(checksum.__file__)["crc32"] is zlib.crc32
