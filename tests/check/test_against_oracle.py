"""The checker against the definitions, on random small traces with swaps, holes, prefixes, crashes and repetitions."""

import os

from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from amcast.check import judge
from amcast.check.incremental import check_chains
from tests.check.oracle import Oracle
from tests.mutants.planted import Trace

SETTINGS = settings(
    deadline=None,
    max_examples=int(os.environ.get("AMCAST_EXAMPLES", "80")),
    suppress_health_check=[HealthCheck.too_slow],
)


@st.composite
def traces(draw: st.DrawFn, valid: bool = False) -> Trace:
    """A trace that follows one order, then up to four mistakes."""
    replicas = draw(st.integers(1, 2))
    count = draw(st.integers(2, 4))
    groups = {g: list(range(g * replicas, (g + 1) * replicas)) for g in range(count)}
    clients = [90, 91]
    trace = Trace(groups, clients)
    for message in range(1, draw(st.integers(1, 6)) + 1):
        destinations = draw(st.sets(st.sampled_from(sorted(groups)), min_size=1, max_size=min(3, count)))
        trace.multicast(message, *sorted(destinations), sender=draw(st.sampled_from(clients)))
    processes = [p for members in groups.values() for p in members]
    order = draw(st.permutations(sorted(trace.multicasts)))
    for process in processes:
        trace.order(process, *(m for m in order if process in trace.members(m)))
    for _ in range(draw(st.integers(0, 4))):
        _apply_mistake(draw, trace, processes, valid)
    trace.claims["complete"] = draw(st.booleans())
    _draw_times(draw, trace)
    return trace


def _draw_times(draw: st.DrawFn, trace: Trace) -> None:
    """Times of multicasts, deliveries and answers on a short clock, so that many are equal and many are not."""
    for row in trace.multicasts.values():
        row["at_ns"] = draw(st.integers(0, 12))
    for process, rows in trace.sequences.items():
        step, at_ns = draw(st.integers(0, 4)), draw(st.integers(0, 6))
        trace.sequences[process] = [
            (position, message, max(at_ns + step * position, trace.multicasts.get(message, {"at_ns": 0})["at_ns"]))
            for position, message, _ in rows
        ]
    if draw(st.booleans()):
        some = st.tuples(st.sampled_from(sorted(trace.multicasts)), st.integers(0, 14))
        trace.answers = draw(st.lists(some, max_size=6))
    trace.clock_bound_ns = draw(st.sampled_from((None, 0, 1, 4)))


def _apply_mistake(draw: st.DrawFn, trace: Trace, processes: list[int], valid: bool) -> None:
    process = draw(st.sampled_from(processes))
    mine = trace.delivered(process)
    kinds = ["swap", "hole", "prefix", "crash", "sender"] + ([] if valid else ["again", "foreign"])
    kind = draw(st.sampled_from(kinds))
    at = draw(st.integers(0, max(len(mine) - 1, 0)))
    if kind == "swap" and len(mine) > 1:
        at = min(at, len(mine) - 2)
        mine[at], mine[at + 1] = mine[at + 1], mine[at]
    elif kind == "hole" and mine:
        del mine[at]
    elif kind == "prefix":
        del mine[at:]
    elif kind == "crash":
        trace.crashed[process] = 5000
        del mine[at:]
    elif kind == "sender":
        trace.crashed[draw(st.sampled_from(trace.clients))] = 5000
    elif kind == "again" and mine:
        mine.append(mine[at])
    elif kind == "foreign":
        mine.insert(at, draw(st.integers(1, 8)))
    trace.order(process, *mine)


def verdicts(trace: Trace) -> dict[str, str]:
    return {name: finding.verdict for name, finding in judge(trace.run()).properties.items()}


def expected_verdict(violated: bool, otherwise: str = "holds", instead: str = "violated") -> str:
    return instead if violated else otherwise


@given(traces())
@SETTINGS
def test_checker_agrees_with_definitions(trace: Trace) -> None:
    oracle, found = Oracle(trace), verdicts(trace)
    note(f"{trace}")
    missing = "violated" if trace.claims["complete"] else "unknown"
    assert found["P1"] == expected_verdict(oracle.integrity())
    assert found["P2"] == expected_verdict(oracle.validity(), instead=missing)
    assert found["P3"] == expected_verdict(oracle.agreement(), instead=missing)
    assert found["P4"] == expected_verdict(oracle.prefix_order())
    assert found["P5"] == expected_verdict(oracle.shortest_cycle() is not None)
    assert found["P7"] == expected_verdict(oracle.fifo())
    assert found["P8"] == "holds"
    assert found["P9"] == expected_verdict(oracle.shortest_timed_cycle() is not None)


@given(traces())
@SETTINGS
def test_reported_cycle_of_time_and_order_is_real_and_shortest(trace: Trace) -> None:
    oracle, finding = Oracle(trace), judge(trace.run()).properties["P9"]
    length = oracle.shortest_timed_cycle()
    if length is None:
        assert finding.witness == []
        return
    note(f"{finding.story}")
    edges = finding.witness
    for edge, after in zip(edges, [*edges[1:], edges[0]], strict=True):
        assert edge["next"] == after["message"]
        if "process" in edge:
            assert edge["process"] in oracle.precedes(edge["message"], edge["next"])
        else:
            assert oracle.precedes_in_time(edge["message"], edge["next"])
            assert edge["completed_ns"] == oracle.completed(edge["message"])
            assert edge["multicast_ns"] == trace.multicasts[edge["next"]]["at_ns"]
    # Where order alone has a cycle, the story tells that one.
    assert len(edges) == (oracle.shortest_cycle() or length)
    assert len(finding.story) == len(edges) + 1


@given(traces())
@SETTINGS
def test_reported_cycle_is_real_and_shortest(trace: Trace) -> None:
    oracle, finding = Oracle(trace), judge(trace.run()).properties["P5"]
    length = oracle.shortest_cycle()
    if length is None:
        assert finding.witness == []
        return
    note(f"{finding.story}")
    edges = finding.witness
    assert len(edges) == length
    for edge, after in zip(edges, [*edges[1:], edges[0]], strict=True):
        assert edge["next"] == after["message"]
        assert edge["process"] in oracle.precedes(edge["message"], edge["next"])
        assert trace.delivered(edge["process"])[edge["position"]] == edge["message"]
    assert len(finding.story) == length + 1


@given(traces())
@SETTINGS
def test_prefix_order_holds_without_cycles_of_two(trace: Trace) -> None:
    oracle = Oracle(trace)
    assert oracle.prefix_order() == (oracle.shortest_cycle() == 2)


@given(traces())
@SETTINGS
def test_incremental_check_finds_exactly_safety_violations(trace: Trace) -> None:
    oracle = Oracle(trace)
    group_of = {p: trace.group_of(p) for p in oracle.processes}
    destinations = {m: row["destinations"] for m, row in trace.multicasts.items()}
    sentence = check_chains({p: trace.delivered(p) for p in oracle.processes}, destinations, group_of)
    note(f"{sentence}")
    assert (sentence is not None) == (oracle.integrity() or oracle.shortest_cycle() is not None)


@given(traces(valid=True), st.data())
@SETTINGS
def test_order_violation_persists_as_run_continues(trace: Trace, data: st.DataObject) -> None:
    whole = verdicts(trace)
    for process in trace.sequences:
        length = data.draw(st.integers(0, len(trace.sequences[process])))
        trace.sequences[process] = trace.sequences[process][:length]
    early = verdicts(trace)
    for name in ("P1", "P4", "P5", "P7", "P9"):
        assert not (early[name] == "violated" and whole[name] != "violated")


@given(traces(valid=True), st.data())
@SETTINGS
def test_missing_rows_never_invert_a_verdict(trace: Trace, data: st.DataObject) -> None:
    """Removed rows, with the gap noted or visible in the positions, leave a verdict or make it unknown."""
    whole = verdicts(trace)
    hidden = False
    for process in sorted(trace.sequences):
        rows = trace.sequences[process]
        lost = data.draw(st.sets(st.integers(0, max(len(rows) - 1, 0)), max_size=len(rows)))
        if lost:
            hidden = True
            trace.notes.append((process, "trace-gap", None, float(min(lost))))
            trace.sequences[process] = [row for row in rows if row[0] not in lost]
    blurred = verdicts(trace)
    note(f"{trace}")
    for name, verdict in blurred.items():
        assert verdict in (whole[name], "unknown") or name in ("P6", "P6'")
    if hidden:
        assert {blurred[name] for name in ("P1", "P4", "P5", "P9")} <= {"violated", "unknown"}


@given(traces(valid=True), st.data())
@SETTINGS
def test_snapshot_replaces_the_deliveries_it_covers(trace: Trace, data: st.DataObject) -> None:
    """A member whose peer recorded the same beginning may replace its own by a note: nothing changes."""
    whole = verdicts(trace)
    for members in trace.groups.values():
        if len(members) < 2:
            continue
        mine, peers = trace.delivered(members[0]), trace.delivered(members[1])
        shared = 0
        while shared < min(len(mine), len(peers)) and mine[shared] == peers[shared]:
            shared += 1
        reached = data.draw(st.integers(0, shared))
        if reached:
            trace.sequences[members[0]] = trace.sequences[members[0]][reached:]
            trace.notes.append((members[0], "installed", None, float(reached)))
    if trace.answers is None:
        del whole["P9"]  # a snapshot has no time: here it may be the earlier one that is lost
    assert whole.items() <= verdicts(trace).items()
