"""P1 integrity, P2 validity, P3 uniform agreement: what may be delivered, and what must be.

P1 concerns every delivery: of a message that was multicast, not before it was, at a member of its destinations, once,
and one message per position. P2 and P3 concern every message: a message of a correct sender (P2), or one that any
process delivered (P3), is delivered by every correct member of its destinations. "Eventually" has no last moment: a
missing delivery is a violation only in a run that claims to be complete, and only if no gap in the trace may hide it.
"""

from collections.abc import Iterable

from amcast.check.evidence import DeliverySequence, Evidence
from amcast.check.verdict import Finding, FindingBuilder


def check_integrity(evidence: Evidence) -> Finding:
    """Checks P1."""
    tally = FindingBuilder("P1")
    deliveries = 0
    for sequence in evidence.sequences.values():
        deliveries += len(sequence.entries)
        _check_deliveries(evidence, sequence, tally)
        if sequence.gap is not None:
            tally.add_doubt(
                f"process {sequence.process}'s trace lacks position {sequence.gap}: what it delivered there is unknown",
                process=sequence.process,
                position=sequence.gap,
            )
    tally.checked = {"deliveries": deliveries, "processes": len(evidence.sequences)}
    return tally.build()


def _check_deliveries(evidence: Evidence, sequence: DeliverySequence, tally: FindingBuilder) -> None:
    process, group = sequence.process, evidence.group_of.get(sequence.process)
    destinations, multicast_ns = evidence.destinations, evidence.multicast_ns
    seen: dict[int, int] = {}
    last = -1
    for position, message, at_ns in sequence.entries:
        groups = destinations.get(message)
        sentence = None
        if groups is None:
            sentence = f"process {process} delivered {message} at position {position}, but nobody multicast {message}"
        elif group not in groups:
            sentence = (
                f"process {process} ({_describe_group(evidence, process)}) delivered {message} at position {position},"
                f" but {message} is addressed to {_format_list('group', groups)}"
            )
        elif at_ns is not None and at_ns < multicast_ns[message]:
            sentence = (
                f"process {process} delivered {message} at position {position} and time {at_ns} ns,"
                f" before it was multicast at {multicast_ns[message]} ns"
            )
        if sentence is not None:
            tally.add_violation(sentence, process=process, message=message, position=position)
        if message in seen:
            tally.add_violation(
                f"process {process} delivered {message} twice, at positions {seen[message]} and {position}",
                process=process,
                message=message,
                position=position,
                first_position=seen[message],
            )
        elif position == last:
            tally.add_violation(
                f"process {process} delivered {message} at position {position}, where it had delivered another message",
                process=process,
                message=message,
                position=position,
            )
        seen.setdefault(message, position)
        last = position


def check_validity(evidence: Evidence) -> Finding:
    """Checks P2."""
    tally = FindingBuilder("P2")
    correct = [m for m, sender in evidence.sender.items() if sender not in evidence.crashed]
    tally.checked = {"messages": len(correct)}
    for message, missing in _find_missing(evidence, correct):
        sender = evidence.sender[message]
        if sender in evidence.group_of:
            why = f"although its sender, process {sender}, is correct"
            _report_missing(evidence, tally, message, missing, why)
        else:
            tally.add_doubt(
                f"{_format_list('process', missing)} did not deliver {message}, and processes does not say"
                f" whether its sender, process {sender}, is correct",
                message=message,
                processes=missing,
            )
    return tally.build()


def check_agreement(evidence: Evidence) -> Finding:
    """Checks P3."""
    tally = FindingBuilder("P3")
    delivered_by: dict[int, int] = {}
    for process in sorted(evidence.sequences):
        for message in evidence.delivered_messages(process):
            delivered_by.setdefault(message, process)
    messages = [message for message in evidence.destinations if message in delivered_by]
    tally.checked = {"messages": len(messages)}
    for message, missing in _find_missing(evidence, messages):
        why = f"although process {delivered_by[message]} did"
        _report_missing(evidence, tally, message, missing, why)
    gaps = evidence.gaps()
    if gaps:
        for message, missing in _find_missing(evidence, (m for m in evidence.destinations if m not in delivered_by)):
            tally.add_doubt(
                f"{_format_list('process', missing)} did not deliver {message}, and whether process"
                f" {gaps[0].process} did is lost in a gap of its trace",
                message=message,
                processes=missing,
            )
    return tally.build()


def _find_missing(evidence: Evidence, messages: Iterable[int]) -> Iterable[tuple[int, list[int]]]:
    """(message, correct addressed processes that are not known to have delivered it), where there are any."""
    witnesses: dict[tuple[int, ...], list[tuple[int, frozenset[int]]]] = {}
    for message in messages:
        groups = evidence.destinations[message]
        correct = witnesses.get(groups)
        if correct is None:
            processes = [process for process in evidence.addressed_members(message) if process not in evidence.crashed]
            correct = witnesses[groups] = [(process, evidence.delivered_messages(process)) for process in processes]
        missing = [process for process, delivered in correct if message not in delivered]
        if missing:
            yield message, missing


def _report_missing(evidence: Evidence, tally: FindingBuilder, message: int, missing: list[int], why: str) -> None:
    certain = [process for process in missing if evidence.sequences[process].gap is None]
    witness = {"message": message, "processes": certain or missing}
    names = _format_list("process", certain or missing)
    if not evidence.complete:
        tally.add_doubt(f"{names} did not deliver {message} yet, {why}: the run is not complete", **witness)
    elif certain:
        tally.add_violation(f"{names} never delivered {message}, {why}, and the run is complete", **witness)
    else:
        tally.add_doubt(f"{names} may have delivered {message} in a gap of the trace", **witness)


def _describe_group(evidence: Evidence, process: int) -> str:
    if process not in evidence.group_of:
        return "which the table processes does not list"
    group = evidence.group_of[process]
    return "of no group" if group is None else f"of group {group}"


def _format_list(word: str, numbers: Iterable[int]) -> str:
    numbers = list(numbers)
    plural = {"process": "processes", "group": "groups"}[word]
    if len(numbers) == 1:
        return f"{word} {numbers[0]}"
    shown = ", ".join(str(number) for number in numbers[:6])
    return f"{plural} {shown}" + (f" and {len(numbers) - 6} more" if len(numbers) > 6 else "")
