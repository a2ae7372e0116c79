"""What the processes delivered, as chains: the input of the merge that judges P4 and P5.

If the members of a group delivered prefixes of one sequence, the longest stands for all of them: its edges include
theirs (docs/MODEL.md). Only lawful deliveries count; a message delivered twice is P1's matter, and would only confuse.
"""

from collections import Counter
from dataclasses import dataclass, field

from amcast.check.evidence import DeliverySequence, Evidence


@dataclass
class DeliveryChain:
    """What one process (or a group that agrees) delivered, in order."""

    process: int
    messages: list[int]
    positions: list[int]
    certain: int
    """Entries before the first gap. Each precedes every addressed message that is not in the chain."""
    never: list[int] = field(default_factory=list)
    """Messages that others delivered and that are addressed to this chain, but not in it."""


@dataclass
class ChainSet:
    """All chains of a run, and which of them each delivered message is addressed to."""

    chains: list[DeliveryChain]
    addressed: dict[int, tuple[int, ...]]
    """message -> indices of chains."""


def build_chains(evidence: Evidence) -> ChainSet:
    """One chain per group whose members agree, else one per member."""
    chains: list[DeliveryChain] = []
    of_group: dict[int, list[int]] = {}
    for group, members in evidence.members.items():
        found = [_build_chain(evidence, evidence.sequences[member]) for member in members]
        longest = max(found, key=lambda chain: len(chain.messages))
        if all(_is_prefix(chain, longest) for chain in found):
            found = [longest]
        of_group[group] = list(range(len(chains), len(chains) + len(found)))
        chains += found
    addressed = _map_addressed(evidence, chains, of_group)
    _fill_undelivered(chains, addressed)
    return ChainSet(chains, addressed)


def _fill_undelivered(chains: list[DeliveryChain], addressed: dict[int, tuple[int, ...]]) -> None:
    counts: Counter[int] = Counter()
    for chain in chains:
        counts.update(chain.messages)
    there: dict[int, set[int]] = {}
    for message, where in addressed.items():
        if counts[message] == len(where):
            continue
        for index in where:
            if index not in there:
                there[index] = set(chains[index].messages)
            if message not in there[index]:
                chains[index].never.append(message)


def _build_chain(evidence: Evidence, sequence: DeliverySequence) -> DeliveryChain:
    messages, positions = evidence.lawful(sequence)
    if sequence.gap is None:
        return DeliveryChain(sequence.process, messages, positions, len(messages))
    return DeliveryChain(sequence.process, messages, positions, sum(position < sequence.gap for position in positions))


def _is_prefix(chain: DeliveryChain, longest: DeliveryChain) -> bool:
    exact = chain.certain == len(chain.messages)
    return exact and longest.messages[: len(chain.messages)] == chain.messages


def _map_addressed(
    evidence: Evidence, chains: list[DeliveryChain], of_group: dict[int, list[int]]
) -> dict[int, tuple[int, ...]]:
    by_destinations: dict[tuple[int, ...], tuple[int, ...]] = {}
    addressed: dict[int, tuple[int, ...]] = {}
    for chain in chains:
        for message in chain.messages:
            if message not in addressed:
                groups = evidence.destinations[message]
                where = by_destinations.get(groups)
                if where is None:
                    where = by_destinations[groups] = tuple(index for group in groups for index in of_group[group])
                addressed[message] = where
    return addressed
