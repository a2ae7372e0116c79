"""The network's fast draws are those of its slow twin, and a calendar gives up its entries in one order."""

import pytest

from amcast.kernel.topology import Topology
from amcast.simulation.inputs.network import Network, NetworkConfig
from amcast.simulation.inputs.random_streams import make_stream
from amcast.simulation.schedulers.calendar import Calendar

TOPOLOGY = Topology.grid(2, 3, 2)


@pytest.mark.parametrize("links", ["fifo", "reordering"])
@pytest.mark.parametrize("spread", [0.05, 3.0])
def test_fast_draws_are_those_of_the_slow_twin(links: str, spread: float) -> None:
    config = NetworkConfig(links=links, distribution="normal", spread=spread, delay_ns=1_000, self_ns=0)  # type: ignore[arg-type]
    fast, slow = (Network(config, TOPOLOGY, make_stream(7)) for _ in range(2))
    assert fast.has_fast_draws
    draw = make_stream(1)
    late = 0
    for now in range(0, 40_000, 100):
        source = draw.choice(TOPOLOGY.processes)
        targets = tuple(draw.choice(TOPOLOGY.processes) for _ in range(draw.randint(1, 7)))
        before = slow.draw_arrival(source, source, 0, now)  # mixed calls share one stream and its cached second draw
        assert fast.draw_arrival(source, source, 0, now) == before
        expected = [slow.draw_arrival(source, target, 0, now) for target in targets]
        assert fast.fast_draw_arrivals(source, targets, now) == expected
        late += sum(at > now for at in expected)
    assert late > 500
    fast.set_loss(0.1)
    assert not fast.has_fast_draws


@pytest.mark.parametrize(
    "config",
    [
        NetworkConfig(distribution="uniform", spread=0.1),
        NetworkConfig(distribution="normal"),
        NetworkConfig(distribution="normal", spread=0.1, loss=0.1),
        NetworkConfig(distribution="normal", spread=0.1, bandwidth=1),
        NetworkConfig(distribution="normal", spread=0.1, links="raw"),
    ],
)
def test_other_networks_have_no_fast_draws(config: NetworkConfig) -> None:
    assert not Network(config, TOPOLOGY, make_stream(7)).has_fast_draws


def test_single_entry_is_popped_and_several_are_left_alone() -> None:
    calendar = Calendar()
    calendar.add(5, ("later",))
    calendar.add(3, ("alone",))
    assert calendar.pop_single() == ("alone",)
    assert calendar.peek() == 5
    calendar.add(5, ("second",))
    assert calendar.pop_single() is None
    assert list(calendar.pop_due()) == [("later",), ("second",)]
    assert calendar.peek() is None
