"""A checker for searches, called after every step: do the deliveries so far already violate safety?

It checks integrity (delivered once, by a destination) and order (|-> without a cycle, see `check/order.py`), which are
sound on an unfinished run. It returns the first violation as one sentence, or None.
"""

from collections.abc import Mapping, Sequence


def check_chains(
    deliveries_by_process: Mapping[int, Sequence[int]],
    destinations_by_message: Mapping[int, Sequence[int]],
    group_of: Mapping[int, int | None],
) -> str | None:
    """The first safety violation among the deliveries of some processes, in order of processes; or None."""
    longest: dict[int | None, tuple[int, Sequence[int]]] = {}
    for process in sorted(deliveries_by_process):
        messages = deliveries_by_process[process]
        group = group_of.get(process)
        other = longest.get(group)
        if not messages or (other is not None and other[1][: len(messages)] == messages):
            continue
        for message in messages:
            if group is None or group not in destinations_by_message.get(message, ()):
                return _describe_unaddressed(process, message, message in destinations_by_message)
        if len(set(messages)) != len(messages):
            return _describe_duplicate(process, messages)
        if other is not None and messages[: len(other[1])] != other[1]:
            return _describe_divergence(other, (process, messages))
        longest[group] = (process, messages)
    return _merge_chains(longest, destinations_by_message) if len(longest) > 1 else None


LongestByGroup = Mapping[int | None, tuple[int, Sequence[int]]]
"""group -> the member that delivered most, and what it delivered."""


def _merge_chains(chains: LongestByGroup, destinations: Mapping[int, Sequence[int]]) -> str | None:
    """Merges the groups' chains; each round removes every head that no other chain holds back. Describes a cycle if it
    gets stuck.
    """
    heads = dict.fromkeys(chains, 0)
    has_moved = True
    while has_moved:
        has_moved = False
        for group, (_, messages) in chains.items():
            while heads[group] < len(messages):
                message = messages[heads[group]]
                holders = [g for g in destinations[message] if g in chains and heads[g] < len(chains[g][1])]
                if any(chains[g][1][heads[g]] != message for g in holders):
                    break
                for g in holders:
                    heads[g] += 1
                has_moved = True
    waiting = [group for group in chains if heads[group] < len(chains[group][1])]
    return _describe_cycle(chains, destinations, heads, waiting[0]) if waiting else None


def _describe_cycle(
    chains: LongestByGroup,
    destinations: Mapping[int, Sequence[int]],
    heads: Mapping[int | None, int],
    start: int | None,
) -> str:
    """Every head is held back by another group's head: following these heads closes a cycle."""
    message = chains[start][1][heads[start]]
    path: list[tuple[int, int, int]] = []  # (group, its head, the message that this head holds back)
    seen: dict[int, int] = {}
    while message not in seen:
        seen[message] = len(path)
        for group in destinations[message]:
            if group in chains and heads[group] < len(chains[group][1]):
                head = chains[group][1][heads[group]]
                if head != message:
                    path.append((group, head, message))
                    message = head
                    break
    edges = [_describe_edge(chains[group], head, after) for group, head, after in reversed(path[seen[message] :])]
    return f"{len(edges)} messages precede each other in a cycle: " + "; ".join(edges)


def _describe_edge(chain: tuple[int, Sequence[int]], head: int, after: int) -> str:
    process, messages = chain
    start = f"process {process} delivered {head} at position {messages.index(head)}"
    if after in messages:
        return f"{start}, before {after} at position {messages.index(after)}"
    return f"{start} and has not delivered {after}"


def _describe_unaddressed(process: int, message: int, known: bool) -> str:
    if known:
        return f"process {process} delivered {message}, which is not addressed to it"
    return f"process {process} delivered {message}, which nobody multicast"


def _describe_duplicate(process: int, messages: Sequence[int]) -> str:
    again = next(m for at, m in enumerate(messages) if m in messages[:at])
    first = messages.index(again)
    return f"process {process} delivered {again} twice, at positions {first} and {messages.index(again, first + 1)}"


def _describe_divergence(one: tuple[int, Sequence[int]], other: tuple[int, Sequence[int]]) -> str:
    at = next(i for i, pair in enumerate(zip(one[1], other[1], strict=False)) if pair[0] != pair[1])
    return (
        f"at position {at} process {one[0]} delivered {one[1][at]}, but process {other[0]} of the same group"
        f" delivered {other[1][at]}"
    )
