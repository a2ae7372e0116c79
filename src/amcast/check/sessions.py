"""P7 FIFO and P8 exactly-once delivery of client sessions.

A client numbers the messages of its session. A retry may be a new message with the old (session, sequence number). P7:
a process delivers a number of a session only after every lower number that is addressed to it. P8: no process delivers
two messages with one (session, sequence number). Messages without a session are not checked; a run without any session
says nothing about either property.
"""

from amcast.check.evidence import DeliverySequence, Evidence
from amcast.check.verdict import Finding, FindingBuilder

SequenceNumbers = dict[int, list[int]]
"""session -> its sequence numbers addressed to one group, ascending."""


def check_sessions(evidence: Evidence) -> tuple[Finding, Finding]:
    """Checks P7 and P8."""
    fifo, once = FindingBuilder("P7"), FindingBuilder("P8")
    if not evidence.session:
        for tally in (fifo, once):
            if evidence.destinations:
                tally.add_doubt("no message has a session and a sequence number")
        return fifo.build(), once.build()
    expected = _map_expected_numbers(evidence)
    judged = 0
    for process, sequence in evidence.sequences.items():
        group = evidence.group_of.get(process)
        if group is not None:
            judged += _check_fifo(evidence, sequence, expected.get(group, {}), fifo)
            _check_exactly_once(evidence, sequence, once)
        if sequence.gap is not None:
            sentence = f"process {process}'s trace lacks position {sequence.gap}: a message out of order may be there"
            for tally in (fifo, once):
                tally.add_doubt(sentence, process=process, position=sequence.gap)
    for tally in (fifo, once):
        tally.checked = {"deliveries": judged, "sessions": len({session for session, _ in evidence.session.values()})}
    return fifo.build(), once.build()


def _map_expected_numbers(evidence: Evidence) -> dict[int, SequenceNumbers]:
    found: dict[int, dict[int, set[int]]] = {}
    for message, (session, number) in evidence.session.items():
        for group in evidence.destinations[message]:
            found.setdefault(group, {}).setdefault(session, set()).add(number)
    return {group: {session: sorted(numbers) for session, numbers in by.items()} for group, by in found.items()}


def _check_fifo(evidence: Evidence, sequence: DeliverySequence, expected: SequenceNumbers, fifo: FindingBuilder) -> int:
    """Checks one process' deliveries: each session must go through its expected numbers without skipping one. Returns
    how many deliveries were checked.
    """
    index = {session: {number: at for at, number in enumerate(numbers)} for session, numbers in expected.items()}
    due = dict.fromkeys(expected, 0)
    later: set[tuple[int, int]] | None = None
    judged = 0
    for position, message, _ in sequence.entries:
        if message not in evidence.session:
            continue
        session, number = evidence.session[message]
        at = index.get(session, {}).get(number)
        if at is None:
            continue
        judged += 1
        skipped = expected[session][due[session] : at]
        due[session] = max(due[session], at + 1)
        if not skipped:
            continue
        witness = {"process": sequence.process, "message": message, "position": position, "session": session}
        start = f"process {sequence.process} delivered {message} (number {number} of session {session}) at {position}"
        if sequence.gap is not None and position > sequence.gap:
            if later is None:
                later = {evidence.session[m] for m in sequence.messages if m in evidence.session}
            # A skipped number may be in the gap, unless it is delivered later.
            skipped = [number for number in skipped if (session, number) in later]
            if not skipped:
                continue
        fifo.add_violation(f"{start}, before number {skipped[0]} of that session", **witness, skipped=skipped[0])
    return judged


def _check_exactly_once(evidence: Evidence, sequence: DeliverySequence, once: FindingBuilder) -> None:
    first: dict[tuple[int, int], tuple[int, int]] = {}
    for position, message, _ in sequence.entries:
        key = evidence.session.get(message)
        if key is None:
            continue
        before = first.setdefault(key, (message, position))
        if before[0] != message:
            once.add_violation(
                f"process {sequence.process} delivered {before[0]} at position {before[1]} and {message} at position"
                f" {position}: both are number {key[1]} of session {key[0]}",
                process=sequence.process,
                messages=(before[0], message),
                positions=(before[1], position),
                session=key[0],
                sequence=key[1],
            )
