"""P6 minimality and P6' strict genuineness: which processes may take part, read from the packets.

P6, for the run as a whole: a process that sends or receives a packet about a message is concerned by some message of
the run, as its sender or as a member of its destinations. P6', packet by packet: every packet about m runs between m's
sender and the members of m's destinations. Packets about no message (heartbeats, link control, state transfer inside a
group) do not count. A lost packet involves its source, and for P6' its target as well, because it was addressed to it.
"""

from collections.abc import Iterator
from typing import NamedTuple

from amcast.check.evidence import Evidence, contradiction_error
from amcast.check.verdict import Finding, FindingBuilder
from amcast.trace.run import Columns


class MessagePacket(NamedTuple):
    """One packet about at least one message."""

    messages: tuple[int, ...]
    body: str
    source: int
    target: int
    sent_ns: int
    arrived: bool


def check_genuineness(evidence: Evidence) -> tuple[Finding, Finding]:
    """Checks P6 and P6'."""
    minimal, strict = FindingBuilder("P6"), FindingBuilder("P6'")
    packets = evidence.run.packets
    if packets is None:
        for tally in (minimal, strict):
            tally.add_doubt("the run has no table packets, so the processes that took part are unknown")
        return minimal.build(), strict.build()
    concerned = set(evidence.sender.values())
    for message in evidence.destinations:
        concerned.update(evidence.addressed_members(message))
    outsiders: set[int] = set()
    about = 0
    for packet in _iterate_packets(evidence):
        about += 1
        if packet is None:
            continue
        for process, took_part in ((packet.source, True), (packet.target, packet.arrived)):
            if took_part and process not in concerned and process not in outsiders:
                outsiders.add(process)
                minimal.add_violation(_describe_outsider(packet, process), process=process, **packet._asdict())
        _check_strict(evidence, packet, strict)
    total = len(packets)
    minimal.checked = {"packets": about, "about_none": total - about, "concerned": len(concerned)}
    strict.checked = {"packets": about, "about_none": total - about}
    if about == 0 and _has_remote_delivery(evidence):
        for tally in (minimal, strict):
            tally.add_doubt("no packet about a message was recorded, although messages reached other processes")
    return minimal.build(), strict.build()


def _iterate_packets(evidence: Evidence) -> Iterator[MessagePacket | None]:
    """All packets about messages; None for one about a single message between two processes that it concerns, which
    violates nothing and is the usual case."""
    packets = evidence.run.packets
    assert packets is not None
    concerned = _ConcernedProcesses(evidence)
    names = ("message", "messages", "body", "source", "target", "sent_ns", "received_ns")
    for batch in packets.batches(*names, "sender", "destinations"):
        _refuse_contradictions(evidence, batch)
        for message, messages, body, source, target, sent_ns, received_ns in zip(
            *(batch[name] for name in names), strict=True
        ):
            if not messages:
                if message is None:
                    continue
                processes = concerned[message]
                if source in processes and target in processes:
                    yield None
                    continue
            about = (message,) if message is not None else ()
            if messages:
                about = tuple(dict.fromkeys((*about, *messages)))
            if about:
                yield MessagePacket(about, body, source, target, sent_ns, received_ns is not None)


def _refuse_contradictions(evidence: Evidence, batch: Columns) -> None:
    """Refuses packets that state another sender or other destinations of their message than the multicasts."""
    if all(batch[name].count(None) == len(batch[name]) for name in ("sender", "destinations")):
        return
    for message, sender, stated in zip(batch["message"], batch["sender"], batch["destinations"], strict=True):
        known = evidence.destinations.get(message)
        if known is None:
            continue
        if sender is not None and sender != evidence.sender[message]:
            expected = evidence.sender[message]
            raise contradiction_error("sender", f"message {message}", sender, expected, stating="packets")
        if stated is not None and tuple(sorted(set(stated))) != known:
            subject = f"message {message}"
            raise contradiction_error("destinations", subject, list(stated), list(known), stating="packets")


class _ConcernedProcesses(dict[int, frozenset[int]]):
    """By message: its sender and the members of its destinations; nobody if nobody multicast it."""

    def __init__(self, evidence: Evidence) -> None:
        super().__init__()
        self._evidence = evidence

    def __missing__(self, message: int) -> frozenset[int]:
        found: frozenset[int] = frozenset()
        if message in self._evidence.destinations:
            found = frozenset((self._evidence.sender[message], *self._evidence.addressed_members(message)))
        self[message] = found
        return found


def _check_strict(evidence: Evidence, packet: MessagePacket, strict: FindingBuilder) -> None:
    for message in packet.messages:
        if message not in evidence.destinations:
            strict.add_violation(
                f"{_describe_packet(packet)} is about {message}, which nobody multicast", **packet._asdict()
            )
            continue
        addressed = evidence.addressed_members(message)
        sender = evidence.sender[message]
        for process in dict.fromkeys((packet.source, packet.target)):
            if process != sender and process not in addressed:
                strict.add_violation(
                    f"{_describe_packet(packet)} is about {message}, but process {process} is neither its sender"
                    f" (process {sender}) nor in {_format_groups(evidence.destinations[message])}",
                    process=process,
                    message=message,
                    **packet._asdict(),
                )


def _has_remote_delivery(evidence: Evidence) -> bool:
    return any(
        evidence.sender.get(message, process) != process
        for process in evidence.sequences
        for message in evidence.sequences[process].messages
    )


def _describe_packet(packet: MessagePacket) -> str:
    return f"a {packet.body} from process {packet.source} to process {packet.target} sent at {packet.sent_ns} ns"


def _describe_outsider(packet: MessagePacket, process: int) -> str:
    about = ", ".join(str(message) for message in packet.messages[:3])
    did = "sent" if process == packet.source else "received"
    return (
        f"process {process} {did} a packet ({_describe_packet(packet)}, about {about}),"
        f" but no message of the run has it as sender or destination"
    )


def _format_groups(groups: tuple[int, ...]) -> str:
    return f"group {groups[0]}" if len(groups) == 1 else f"groups {', '.join(map(str, groups))}"
