"""P4 uniform prefix order and P5 uniform acyclic order, by merging the deliveries of all processes.

m precedes m' (m |-> m') if some process addressed by both delivers m while it has not delivered m': m' comes later
there, or never. P5: |-> has no cycle. P4: no cycle of two messages (docs/MODEL.md proves that this is the usual
definition). Both can be checked on an unfinished run: an undelivered message can only come later.

The merge is Kahn's algorithm on chains: remove a message that every addressed chain has reached. If all can be removed,
the order of removal is a witness that there is no cycle. A message that cannot be removed waits behind a cycle, and
`check/cycles.py` finds the shortest.
"""

from amcast.check import cycles
from amcast.check.chains import ChainSet, build_chains
from amcast.check.cycles import Cycle, Edge
from amcast.check.evidence import Evidence
from amcast.check.verdict import Finding, FindingBuilder


def check_order(evidence: Evidence) -> tuple[Finding, Finding]:
    """Checks P4 and P5."""
    prefix, acyclic = FindingBuilder("P4"), FindingBuilder("P5")
    chains = build_chains(evidence)
    blocked = merge(chains)
    checked = {"messages": len(chains.addressed), "chains": len(chains.chains)}
    prefix.checked, acyclic.checked = dict(checked), dict(checked)
    if blocked:
        core = cycles.compute_core(chains, blocked)
        acyclic.checked["blocked"] = len(blocked)
        pair = cycles.find_pair_cycle(core)
        if pair is not None:
            _report_cycle(evidence, prefix, pair, True)
        found, exhaustive = (pair, True) if pair is not None else cycles.find_shortest_cycle(core)
        _report_cycle(evidence, acyclic, found, exhaustive)
    for sequence in evidence.gaps():
        sentence = (
            f"process {sequence.process}'s trace lacks position {sequence.gap}:"
            f" what it delivered there may contradict the others"
        )
        prefix.add_doubt(sentence, process=sequence.process, position=sequence.gap)
        acyclic.add_doubt(sentence, process=sequence.process, position=sequence.gap)
    return prefix.build(), acyclic.build()


def merge(all_chains: ChainSet) -> set[int]:
    """Removes every message that can be removed; the others wait behind a cycle. Linear in (message, chain) pairs."""
    chains, addressed = all_chains.chains, all_chains.addressed
    waits_for = {message: len(where) for message, where in addressed.items()}
    progress = [0] * len(chains)
    ready: list[int] = []

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
        del waits_for[message]
        for index in addressed[message]:
            messages, at = chains[index].messages, progress[index]
            if at < len(messages) and messages[at] == message:
                progress[index] = at + 1
                advance(index)
    return set(waits_for)


def _report_cycle(evidence: Evidence, tally: FindingBuilder, cycle: Cycle, exhaustive: bool) -> None:
    ring = " -> ".join(str(edge.message) for edge in (*cycle, cycle[0]))
    story = [f"{len(cycle)} messages precede each other in a cycle: {ring}"]
    story += [_describe_edge(evidence, edge) for edge in cycle]
    if not exhaustive:
        story.append(f"the search stopped at its limit: a cycle of fewer than {len(cycle)} messages may exist")
    tally.add_violation_story(story, [edge._asdict() for edge in cycle])


def _describe_edge(evidence: Evidence, edge: Edge) -> str:
    start = f"process {edge.process} delivered {edge.message} at position {edge.position}"
    if edge.next_position is not None:
        return f"{start}, before {edge.next} at position {edge.next_position}"
    if edge.process in evidence.crashed:
        return f"{start} and never delivered {edge.next}, which is addressed to it, before it crashed"
    if evidence.complete:
        return f"{start} and never delivered {edge.next}, though it is addressed and correct and the run is complete"
    return f"{start} and had not delivered {edge.next}, which is addressed to it, when the trace ends"
