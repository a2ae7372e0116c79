"""The one-line view and the picture show what is there, and say what they leave out."""

import xml.etree.ElementTree as ET
from dataclasses import replace

import pytest
from msgspec import structs

from amcast.kernel.errors import UsageError
from amcast.trace.run import Run
from amcast.trace.spacetime_diagram import choose_tick_step, draw_spacetime
from amcast.trace.view import Selection, format_time, render_lines
from tests.mutants.planted import Trace, healthy

SVG = "{http://www.w3.org/2000/svg}"


def example_run() -> Run:
    """One message to two groups of one, the second of which loses a packet."""
    trace = Trace({0: [0], 1: [1]}, [6])
    trace.multicast(6_000_000_000, 0, 1, sender=6)
    trace.packets = [
        [6_000_000_000, "Request", 6, 0, 0, 1_000_000],
        [6_000_000_000, "Request", 6, 1, 0, None],
        [6_000_000_000, "Propose", 0, 0, 1_000_000, 1_000_000],
        [None, "Heartbeat", 0, 1, 1_500_000, 2_500_000],
    ]
    trace.sequences = {0: [(0, 6_000_000_000, 2_000_000)]}
    trace.notes = [(0, "waited", 6_000_000_000, 2.5)]
    trace.crashed[1] = 2_600_000
    return trace.run()


def test_one_line_per_step_in_time_order() -> None:
    assert list(render_lines(example_run())) == [
        "0.000 ms  client 6        multicasts 6000000000 to groups 0, 1 (0 bytes)",
        "0.000 ms  client 6 -> p0  Request about 6000000000, 40 bytes",
        "0.000 ms  client 6 -> p1  Request about 6000000000, 40 bytes, which is lost",
        "0.002 ms  p0              notes waited about 6000000000 = 2.5",
        "1.000 ms  p0 <- client 6  Request about 6000000000, 1.000 ms on its way",
        "1.000 ms  p0 -> p0        Propose about 6000000000, 40 bytes",
        "1.000 ms  p0 <- p0        Propose about 6000000000, at once",
        "1.500 ms  p0 -> p1        Heartbeat, 40 bytes",
        "2.000 ms  p0              delivers 6000000000 at position 0",
        "2.500 ms  p1 <- p0        Heartbeat, 1.000 ms on its way",
    ]


def live_run() -> Run:
    """The same as a cluster records it: the clock counts from 1970, groups have names, and a kill is noted."""
    start = 1_700_000_000 * 10**9
    trace = Trace({0: [0], 1: [1]}, [6])
    trace.multicast(6_000_000_000, 0, 1, sender=6)
    trace.multicasts[6_000_000_000]["at_ns"] = start
    trace.sequences = {0: [(0, 6_000_000_000, start + 2_000_000)]}
    run = trace.run()
    notes = {"process": [1], "at_ns": [start + 1_000_000], "name": ["fault-crash"], "message": [None], "value": [None]}
    groups = [{"id": 0, "name": "orders", "members": [0]}, {"id": 1, "name": "stock", "members": [1]}]
    return replace(run, notes=notes, meta=structs.replace(run.meta, topology={"groups": groups}))


def test_live_run_counts_from_its_first_multicast_and_names_its_replicas() -> None:
    run = live_run()
    assert list(render_lines(run)) == [
        "0.000 ms  client 6  multicasts 6000000000 to groups 0, 1 (0 bytes)",
        "1.000 ms  stock/1   notes fault-crash",
        "2.000 ms  orders/1  delivers 6000000000 at position 0",
    ]
    svg = draw_spacetime(run)
    assert ">orders/1</text>" in svg
    assert ">crash of stock/1</text>" in svg
    assert "orders/1 delivers 6000000000 at position 0 and 2.000 ms" in svg
    assert "1,700,000" not in svg


@pytest.mark.parametrize(
    "topology", [None, [], {"groups": 3}, {"groups": [4, {"name": 1}, {"name": "a", "members": ["x"]}]}]
)
def test_any_topology_in_run_json_can_be_shown(topology: object) -> None:
    run = example_run()
    run = replace(run, meta=structs.replace(run.meta, topology=topology))
    assert "p0" in "".join(render_lines(run))


def test_selection_narrows_the_view() -> None:
    run = example_run()
    assert len(list(render_lines(run, Selection(message=6_000_000_000)))) == 8
    assert [line[10:12] for line in render_lines(run, Selection(process=1))] == ["p1"]
    assert len(list(render_lines(run, Selection(since_ns=1_000_000, until_ns=1_600_000)))) == 4
    assert list(render_lines(run, Selection(since_ns=10**9))) == ["no step matches (from 1,000.000 ms to the end)"]
    assert Selection(message=3, process=2, until_ns=0).describe() == "message 3, process 2, from the start to 0.000 ms"


def test_limit_reports_omitted_steps() -> None:
    shown = list(render_lines(example_run(), limit=3))
    assert len(shown) == 4
    assert shown[-1] == "... 7 of 10 steps left out after these 3 (the limit)"


@pytest.mark.parametrize(
    ("selection", "words"),
    [(Selection(process=9), "process 9 is not in run"), (Selection(message=5), "message 5 is not")],
)
def test_unknown_selection_is_refused(selection: Selection, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        list(render_lines(example_run(), selection))
    with pytest.raises(UsageError, match=words):
        draw_spacetime(example_run(), selection)


def test_invalid_windows_and_limits_are_refused() -> None:
    with pytest.raises(UsageError, match="upside down"):
        Selection(since_ns=2, until_ns=1)
    with pytest.raises(UsageError, match="limit 0"):
        list(render_lines(example_run(), limit=0))
    with pytest.raises(UsageError, match="arrows 0"):
        draw_spacetime(example_run(), arrows=0)


def count_elements(svg: str) -> dict[str, int]:
    """How many things of each kind a picture has outside its legend."""
    root = ET.fromstring(svg)
    titles = [group.findtext(f"{SVG}title") or "" for group in root.iter(f"{SVG}g")]
    return {
        "multicasts": sum("multicasts" in title for title in titles),
        "deliveries": sum("delivers" in title for title in titles),
        "packets": sum(", sent at" in title for title in titles),
        "lost": sum(title.endswith(", lost") for title in titles),
        "crashes": sum("crashed" in title for title in titles),
    }


def test_diagram_shows_every_event() -> None:
    svg = draw_spacetime(example_run())
    assert count_elements(svg) == {"multicasts": 1, "deliveries": 1, "packets": 4, "lost": 1, "crashes": 0}
    assert "not all is shown" not in svg
    assert "prefers-color-scheme:dark" in svg
    assert "6.0</tspan> = 6000000000" in svg
    assert count_elements(draw_spacetime(example_run(), Selection(until_ns=3_000_000)))["crashes"] == 1
    assert count_elements(draw_spacetime(example_run(), Selection(message=6_000_000_000)))["packets"] == 3


def test_diagram_reports_its_limits() -> None:
    run = healthy().run()
    everything = count_elements(draw_spacetime(run, arrows=10_000, marks=10_000))
    capped = draw_spacetime(run, arrows=10, marks=12)
    assert count_elements(capped)["packets"] == 10
    assert count_elements(capped)["multicasts"] + count_elements(capped)["deliveries"] <= 12
    total = f"{everything['packets']:,} packets"
    assert "not all is shown" in capped
    assert total in capped


def test_empty_diagram_is_valid() -> None:
    trace = Trace({0: [0]}, [])
    assert count_elements(draw_spacetime(trace.run()))["packets"] == 0
    assert "&lt;b&gt;" in draw_spacetime(Run.from_recorder(trace.recorder(), trace.meta("<b>")))


def test_equal_runs_give_equal_diagrams() -> None:
    assert draw_spacetime(example_run()) == draw_spacetime(example_run())


@pytest.mark.parametrize(("span", "ticks", "step"), [(10, 10, 1), (11, 10, 2), (6_000_000, 9, 1_000_000), (1, 1, 1)])
def test_ticks_are_round_numbers(span: int, ticks: int, step: int) -> None:
    assert choose_tick_step(span, ticks) == step


def test_format_time_uses_needed_digits() -> None:
    assert format_time(1_500_000) == "1.500 ms"
    assert format_time(1_500_001) == "1.500001 ms"


def test_group_without_a_name_goes_by_the_number_of_its_process() -> None:
    run = live_run()
    groups = [{"id": 0, "name": "", "members": [0]}, {"id": 1, "name": "", "members": [1]}]
    unnamed = replace(run, meta=structs.replace(run.meta, topology={"groups": groups}))
    assert any(" p0 " in line for line in render_lines(unnamed))
    assert not any("/1" in line for line in render_lines(unnamed))


def test_messages_behind_the_last_colour_share_a_neutral_one() -> None:
    trace = Trace({0: [0]}, [6])
    for number in range(12):
        trace.multicast(6_000_000_000 + number, 0, sender=6)
    drawn = draw_spacetime(trace.run())
    assert 'class="mark f7"' in drawn
    assert drawn.count('class="mark f8"') == 4
    chosen = draw_spacetime(trace.run(), Selection(message=6_000_000_011))
    assert 'class="mark f0"' in chosen
