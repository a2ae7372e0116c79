"""Random streams: the same draws everywhere."""

from random import Random

import pytest

from amcast.simulation.inputs.random_streams import Stream, make_stream


def test_streams_choose_as_random_does() -> None:
    stream, plain = Stream(7), Random(7)
    for count in (1, 2, 3, 7, 8, 9, 1000):
        assert [stream.choice(range(count)) for _ in range(200)] == [plain.choice(range(count)) for _ in range(200)]
        assert [stream.draw_below(count) for _ in range(200)] == [plain.randrange(count) for _ in range(200)]
    assert stream.random() == plain.random()


def test_streams_choose_nothing_from_nothing() -> None:
    with pytest.raises(IndexError):
        make_stream(1, "x").choice([])


def test_streams_of_other_names_differ() -> None:
    assert make_stream(1, "faults").random() != make_stream(1, "storage").random()
    assert make_stream(1, "faults").random() == make_stream(1, "faults").random()
