"""P4 uniform prefix order and P5 uniform acyclic order, by merging the deliveries of all processes.

m precedes m' (m |-> m') if some process addressed by both delivers m while it has not delivered m': m' comes later
there, or never. P5: |-> has no cycle. P4: no cycle of two messages (docs/MODEL.md proves that this is the usual
definition). Both can be checked on an unfinished run: an undelivered message can only come later.

The merge is Kahn's algorithm on chains: remove a message that every addressed chain has reached. If all can be removed,
the order of removal is a witness that there is no cycle. A message that cannot be removed waits behind a cycle, and
`check/cycles.py` finds the shortest.
"""

from amcast.check import cycles, real_time
from amcast.check.chains import ChainSet, build_chains
from amcast.check.cycles import Cycle, Edge
from amcast.check.evidence import Evidence
from amcast.check.real_time import RealTimeCheck, TimedCycle, TimeEdge
from amcast.check.verdict import Finding, FindingBuilder


def check_order(evidence: Evidence) -> tuple[Finding, Finding, Finding]:
    """Checks P4, P5 and P9."""
    prefix, acyclic, timed = FindingBuilder("P4"), FindingBuilder("P5"), FindingBuilder("P9")
    completed = real_time.find_completions(evidence)
    chains = build_chains(evidence, completed)
    order, blocked = merge(chains)
    checked = {"messages": len(chains.addressed) - len(chains.pending), "chains": len(chains.chains)}
    prefix.checked, acyclic.checked = dict(checked), dict(checked)
    timed.checked = {"messages": len(chains.addressed)}
    if evidence.run.answers is not None:
        timed.checked["answers"] = len(evidence.run.answers["message"])
    if blocked:
        blocked -= chains.pending
        core = cycles.compute_core(chains, blocked)
        acyclic.checked["blocked"] = len(blocked)
        pair = cycles.find_pair_cycle(core)
        if pair is not None:
            _report_cycle(evidence, prefix, pair, True)
        found, exhaustive = (pair, True) if pair is not None else cycles.find_shortest_cycle(core)
        _report_cycle(evidence, acyclic, found, exhaustive)
        _report_cycle(evidence, timed, found, exhaustive)
    else:
        _check_real_time(evidence, timed, RealTimeCheck(evidence, chains, order, completed))
    for sequence in evidence.gaps():
        sentence = (
            f"process {sequence.process}'s trace lacks position {sequence.gap}:"
            f" what it delivered there may contradict the others"
        )
        prefix.add_doubt(sentence, process=sequence.process, position=sequence.gap)
        acyclic.add_doubt(sentence, process=sequence.process, position=sequence.gap)
        timed.add_doubt(sentence, process=sequence.process, position=sequence.gap)
    return prefix.build(), acyclic.build(), timed.build()


def merge(all_chains: ChainSet) -> tuple[list[int], set[int]]:
    """Removes every message that can be removed; the others wait behind a cycle. Returns both, the former in the order
    of removal. Linear in (message, chain) pairs."""
    chains, addressed = all_chains.chains, all_chains.addressed
    waits_for = {message: len(where) for message, where in addressed.items()}
    progress = [0] * len(chains)
    ready: list[int] = []
    order: list[int] = []

    def advance(index: int) -> None:
        chain, at = chains[index], progress[index]
        reached = chain.messages[at : at + 1]
        if at == chain.certain:
            reached = reached + chain.undelivered
        for message in reached:
            waits_for[message] -= 1
            if waits_for[message] == 0:
                ready.append(message)

    for index in range(len(chains)):
        advance(index)
    while ready:
        message = ready.pop()
        order.append(message)
        del waits_for[message]
        for index in addressed[message]:
            messages, at = chains[index].messages, progress[index]
            if at < len(messages) and messages[at] == message:
                progress[index] = at + 1
                advance(index)
    return order, set(waits_for)


def _report_cycle(evidence: Evidence, tally: FindingBuilder, cycle: Cycle, exhaustive: bool) -> None:
    ring = " -> ".join(str(edge.message) for edge in (*cycle, cycle[0]))
    story = [f"{len(cycle)} messages precede each other in a cycle: {ring}"]
    story += [_describe_edge(evidence, edge) for edge in cycle]
    if not exhaustive:
        story.append(f"the search stopped at its limit: a cycle of fewer than {len(cycle)} messages may exist")
    tally.add_violation_story(story, [edge._asdict() for edge in cycle])


def _check_real_time(evidence: Evidence, timed: FindingBuilder, check: RealTimeCheck) -> None:
    """Judges P9 where |-> has no cycle."""
    if real_time.has_unknown_clocks(evidence):
        hosts = real_time.list_clock_hosts(evidence)
        shown = ", ".join(hosts[:4]) + (f" and {len(hosts) - 4} more" if len(hosts) > 4 else "")
        timed.add_doubt(
            f"times were read on {len(hosts)} hosts ({shown}), and run.json has no clock_bound_ns: how far their"
            f" clocks differ is unknown"
        )
        return
    cycle = check.find_shortest_cycle()
    if cycle is not None:
        _report_timed_cycle(evidence, timed, cycle)


def _report_timed_cycle(evidence: Evidence, tally: FindingBuilder, cycle: TimedCycle) -> None:
    count = 1 + len(cycle.path)
    ring = " -> ".join(str(message) for message in (cycle.time.message, *(edge.message for edge in cycle.path)))
    story = [f"{count} messages precede each other in a cycle of time and order: {ring} -> {cycle.time.message}"]
    story.append(_describe_time(evidence, cycle.time))
    story += [_describe_edge(evidence, edge) for edge in cycle.path]
    if not cycle.exhaustive:
        story.append(f"the search stopped at its limit: a cycle of fewer than {count} messages may exist")
    tally.add_violation_story(story, [cycle.time._asdict(), *(edge._asdict() for edge in cycle.path)])


def _describe_time(evidence: Evidence, edge: TimeEdge) -> str:
    if evidence.run.answers is not None:
        start = f"{edge.message} was answered to its sender at {edge.completed_ns} ns"
    else:
        start = f"every destination of {edge.message} had delivered it at {edge.completed_ns} ns"
    bound = evidence.run.meta.clock_bound_ns
    apart = f", by more than the {bound} ns that clocks may differ" if bound else ""
    return f"{start}, before {edge.next} was multicast at {edge.multicast_ns} ns{apart}"


def _describe_edge(evidence: Evidence, edge: Edge) -> str:
    start = f"process {edge.process} delivered {edge.message} at position {edge.position}"
    if edge.next_position is not None:
        return f"{start}, before {edge.next} at position {edge.next_position}"
    if edge.process in evidence.crashed:
        return f"{start} and never delivered {edge.next}, which is addressed to it, before it crashed"
    if evidence.complete:
        return f"{start} and never delivered {edge.next}, though it is addressed and correct and the run is complete"
    return f"{start} and had not delivered {edge.next}, which is addressed to it, when the trace ends"
