"""The deliveries of processes as chains: the input of the merge that checks P4, P5 and P9.

If the members of a group delivered prefixes of one sequence, the longest stands for all of them: its edges include
theirs (docs/MODEL.md). A chain has valid deliveries only: a message delivered twice violates P1, and would only add
false edges here.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from amcast.check.evidence import DeliverySequence, Evidence


@dataclass
class DeliveryChain:
    """The deliveries of one process, or of a group whose members agree, in order."""

    process: int
    messages: list[int]
    positions: list[int]
    certain: int
    """Number of entries before the first gap. Each precedes every addressed message that is not in the chain."""
    undelivered: list[int] = field(default_factory=list)
    """Messages that are addressed to this chain and that other chains delivered, but not this one."""


@dataclass
class ChainSet:
    """All chains of a run, and the chains that each delivered or complete message is addressed to."""

    chains: list[DeliveryChain]
    addressed: dict[int, tuple[int, ...]]
    """message -> indices of chains."""
    pending: set[int] = field(default_factory=set)
    """Complete messages that no process has delivered: they are in no chain and precede nothing by |->."""


def build_chains(evidence: Evidence, complete: Iterable[int] = ()) -> ChainSet:
    """Builds one chain per group whose members agree, else one per member. Messages that are complete belong to the
    set even if no process has delivered them."""
    chains: list[DeliveryChain] = []
    indices_of_group: dict[int, list[int]] = {}
    for group, members in evidence.members.items():
        found = [_build_chain(evidence, evidence.sequences[member]) for member in members]
        longest = max(found, key=lambda chain: len(chain.messages))
        if all(_is_prefix(chain, longest) for chain in found):
            found = [longest]
        indices_of_group[group] = list(range(len(chains), len(chains) + len(found)))
        chains += found
    addressed = _map_addressed(evidence, chains, indices_of_group)
    pending = {message for message in complete if message not in addressed}
    for message in sorted(pending):
        groups = evidence.destinations[message]
        addressed[message] = tuple(index for group in groups for index in indices_of_group[group])
    _fill_undelivered(chains, addressed)
    return ChainSet(chains, addressed, pending)


def _fill_undelivered(chains: list[DeliveryChain], addressed: dict[int, tuple[int, ...]]) -> None:
    counts: Counter[int] = Counter()
    for chain in chains:
        counts.update(chain.messages)
    delivered: dict[int, set[int]] = {}
    for message, where in addressed.items():
        if counts[message] == len(where):
            continue
        for index in where:
            if index not in delivered:
                delivered[index] = set(chains[index].messages)
            if message not in delivered[index]:
                chains[index].undelivered.append(message)


def _build_chain(evidence: Evidence, sequence: DeliverySequence) -> DeliveryChain:
    messages, positions = evidence.valid_deliveries(sequence)
    if sequence.gap is None:
        return DeliveryChain(sequence.process, messages, positions, len(messages))
    return DeliveryChain(sequence.process, messages, positions, sum(position < sequence.gap for position in positions))


def _is_prefix(chain: DeliveryChain, longest: DeliveryChain) -> bool:
    exact = chain.certain == len(chain.messages)
    return exact and longest.messages[: len(chain.messages)] == chain.messages


def _map_addressed(
    evidence: Evidence, chains: list[DeliveryChain], indices_of_group: dict[int, list[int]]
) -> dict[int, tuple[int, ...]]:
    by_destinations: dict[tuple[int, ...], tuple[int, ...]] = {}
    addressed: dict[int, tuple[int, ...]] = {}
    for chain in chains:
        for message in chain.messages:
            if message not in addressed:
                groups = evidence.destinations[message]
                where = by_destinations.get(groups)
                if where is None:
                    where = by_destinations[groups] = tuple(
                        index for group in groups for index in indices_of_group[group]
                    )
                addressed[message] = where
    return addressed
