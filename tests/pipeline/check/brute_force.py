"""Judges the rows of a trace straight from docs/MODEL.md: quantifiers and loops, no chains, no merge, no hashing.

It knows the rows before they are written, so it shares neither the reader nor a checker with the product. For small
traces only.
"""

from itertools import product
from math import isfinite
from typing import Any

Row = dict[str, Any]
LIMIT = 2**62


class RefusedError(Exception):
    """The trace contradicts itself, or has a value that no trace may have."""


def refuse(condition: bool, why: str) -> None:
    if condition:
        raise RefusedError(why)


class BruteForce:
    """The verdicts about one run. `tables` has a list of rows per table; a table that is not recorded is absent."""

    def __init__(self, tables: dict[str, list[Row]], claims: dict[str, Any], clock_bound_ns: int | None) -> None:
        self.tables, self.claims, self.clock_bound_ns = tables, claims, clock_bound_ns
        self.refuse_values()
        self.group_of: dict[int, int | None] = {}
        for row in tables["processes"]:
            known = self.group_of.setdefault(row["process"], row["group"])
            refuse(known != row["group"], "process in two groups")
        self.crashed = {row["process"] for row in tables["processes"] if row["crashed_at_ns"] is not None}
        self.members: dict[int, list[int]] = {}
        for process, group in sorted(self.group_of.items()):
            if group is not None:
                self.members.setdefault(group, []).append(process)
        self.sent: dict[int, Row] = {}
        for row in tables["multicasts"]:
            self.add_multicast(row)
        for row in self.sent.values():
            refuse(not row["destinations"], "no destinations")
            refuse(any(group not in self.members for group in row["destinations"]), "unknown group")
        self.refuse_statements()
        members = {process for process, group in self.group_of.items() if group is not None}
        noted = {row["process"] for row in tables.get("notes", []) if row["name"] in ("installed", "trace-gap")}
        self.processes = sorted(members | noted | {row["process"] for row in tables["deliveries"]})
        self.gap: dict[int, int | None] = {}
        self.sequence = {process: self.build_sequence(process) for process in self.processes}

    # The rows

    def refuse_values(self) -> None:
        for rows in self.tables.values():
            for row, (name, value) in product(rows, rows[0].items() if rows else ()):
                value = row[name]
                if name.endswith("_ns") and value is not None:
                    refuse(not -LIMIT <= value <= LIMIT, name)
                if name == "position":
                    refuse(not 0 <= value <= LIMIT, name)

    def add_multicast(self, row: Row) -> None:
        fresh = {**row, "destinations": set(row["destinations"])}
        known = self.sent.setdefault(row["message"], fresh)
        for column in ("sender", "destinations", "session", "sequence"):
            refuse(known[column] != fresh[column], f"two values of {column}")
        known["at_ns"] = min(known["at_ns"], row["at_ns"])

    def refuse_statements(self) -> None:
        for row in self.tables["deliveries"]:
            group = self.group_of.get(row["process"])
            refuse(group is not None and row["group"] != group, "group")
            known = self.sent.get(row["message"])
            if known is not None:
                stated = row["destinations"]
                refuse(stated is not None and set(stated) != known["destinations"], "destinations")
                refuse(row["multicast_ns"] not in (None, known["at_ns"]), "multicast_ns")
        for row in self.tables.get("packets", []):
            known = self.sent.get(row["message"])
            if known is not None:
                stated = row["destinations"]
                refuse(stated is not None and set(stated) != known["destinations"], "destinations")
                refuse(row["sender"] not in (None, known["sender"]), "sender")

    def own_rows(self, process: int) -> list[Row]:
        return [row for row in self.tables["deliveries"] if row["process"] == process]

    def build_sequence(self, process: int) -> list[tuple[int, int, int | None]]:
        """(position, message, time) in order; None is the time of what a snapshot stands for."""
        first: dict[tuple[int, int], int] = {}
        for row in self.own_rows(process):
            key = (row["position"], row["message"])
            first[key] = min(row["at_ns"], first.get(key, row["at_ns"]))
        entries: list[tuple[int, int, int | None]] = [(*key, at) for key, at in first.items()]
        notes = [row for row in self.tables.get("notes", []) if row["process"] == process]
        installed = [row["value"] for row in notes if row["name"] == "installed"]
        reached = max([0, *(int(v) for v in installed if v is not None and isfinite(v))])
        reached = min(reached, LIMIT)
        taken = {position for position, _ in first}
        for peer in self.members.get(self.group_of.get(process), []):  # type: ignore[arg-type]
            for row in self.own_rows(peer):
                if row["position"] < reached and row["position"] not in taken:
                    entries.append((row["position"], self.first_at(peer, row["position"]), None))
                    taken.add(row["position"])
        end = max([reached, *(position + 1 for position in taken)])
        missing = next((at for at in range(min(end, len(taken) + 1)) if at not in taken), None)
        lost = [row["value"] for row in notes if row["name"] == "trace-gap"]
        if any(value is None or not isfinite(value) for value in lost):
            missing = 0
        elif missing is None and any(int(value) not in taken for value in lost):
            missing = end
        self.gap[process] = missing
        return sorted(entries, key=lambda entry: (entry[0], entry[2] is not None, entry[2] or 0, entry[1]))

    def first_at(self, process: int, position: int) -> int:
        """The message that a peer recorded at a position: the first in the order of the file."""
        return next(row["message"] for row in self.own_rows(process) if row["position"] == position)

    # Definitions

    def addressed(self, process: int, message: int) -> bool:
        group = self.group_of.get(process)
        return message in self.sent and group is not None and group in self.sent[message]["destinations"]

    def delivered(self, process: int) -> list[int]:
        return [message for _, message, _ in self.sequence[process]]

    def place(self, process: int, message: int) -> int | None:
        """The position of the first valid delivery of a message."""
        if not self.addressed(process, message):
            return None
        return next((at for at, other, _ in self.sequence[process] if other == message), None)

    def index(self, process: int, message: int) -> int | None:
        if not self.addressed(process, message) or message not in self.delivered(process):
            return None
        return self.delivered(process).index(message)

    def precedes(self, process: int, m: int, other: int) -> bool:
        """Whether m |-> other is certain by what this process recorded."""
        if m == other or not self.addressed(process, other):
            return False
        at, after = self.index(process, m), self.index(process, other)
        if at is None:
            return False
        if after is not None:
            return at < after
        gap = self.gap[process]
        return gap is None or self.sequence[process][at][0] < gap

    def edges(self) -> dict[int, set[int]]:
        messages = list(self.sent)
        return {m: {n for n in messages if any(self.precedes(p, m, n) for p in self.processes)} for m in messages}

    # Verdicts

    def verdicts(self) -> dict[str, str]:
        edges = self.edges()
        gapped = any(gap is not None for gap in self.gap.values())
        unless = "unknown" if gapped else "holds"
        cyclic = has_cycle(edges)
        found = {
            "P1": "violated" if self.violates_integrity() else unless,
            "P2": self.judge_missing(self.validity_cases()),
            "P3": self.judge_missing(self.agreement_cases()),
            "P4": "violated" if any(m in edges[n] for m in edges for n in edges[m]) else unless,
            "P5": "violated" if cyclic else unless,
        }
        found |= self.judge_packets() | self.judge_sessions(unless)
        found["P9"] = "violated" if cyclic else self.judge_real_time(edges, unless)
        return found

    def counts(self) -> dict[str, dict[str, int]]:
        """How much a judge of the order and of sessions has to look at, by property."""
        edges = self.edges()
        placed = {m for m in self.sent if any(self.place(process, m) is not None for process in self.processes)}
        complete = {m for m in self.sent if self.completed(m) is not None}
        order = {"messages": len(placed)}
        blocked = find_blocked({m: edges[m] & placed for m in placed})
        found = {"P4": order, "P5": {**order, **({"blocked": len(blocked)} if blocked else {})}}
        found["P9"] = {"messages": len(placed | complete)}
        if "answers" in self.tables:
            found["P9"]["answers"] = len(self.tables["answers"])
        keys = {m: row["session"] for m, row in self.sent.items() if None not in (row["session"], row["sequence"])}
        if keys:
            recorded = [(p, m) for p in self.processes for m in self.delivered(p) if m in keys]
            numbers = [(p, m) for p, m in recorded if self.is_expected(p, m)]
            found["P7"] = found["P8"] = {"deliveries": len(numbers), "sessions": len(set(keys.values()))}
        return found

    def is_expected(self, process: int, message: int) -> bool:
        """Whether some message with this one's number of its session is addressed to the process."""
        row = self.sent[message]
        return any(
            self.addressed(process, other)
            and (known["session"], known["sequence"]) == (row["session"], row["sequence"])
            for other, known in self.sent.items()
        )

    def violates_integrity(self) -> bool:
        for process, entries in self.sequence.items():
            messages = [message for _, message, _ in entries]
            positions = [position for position, _, _ in entries]
            if len(set(messages)) < len(messages) or len(set(positions)) < len(positions):
                return True
            for _, message, at in entries:
                if not self.addressed(process, message):
                    return True
                if at is not None and at < self.sent[message]["at_ns"]:
                    return True
        return False

    def missing(self, message: int) -> list[int]:
        return [
            p
            for p in self.processes
            if self.addressed(p, message) and p not in self.crashed and message not in self.delivered(p)
        ]

    def describe_missing(self, message: int) -> str:
        late = self.missing(message)
        if not late:
            return "holds"
        if self.claims.get("complete") and any(self.gap[process] is None for process in late):
            return "violated"
        return "unknown"

    def validity_cases(self) -> list[str]:
        cases = []
        for message, row in self.sent.items():
            if row["sender"] not in self.crashed:
                case = self.describe_missing(message)
                cases.append("unknown" if case == "violated" and row["sender"] not in self.group_of else case)
        return cases

    def agreement_cases(self) -> list[str]:
        cases = []
        for message in self.sent:
            if any(message in self.delivered(process) for process in self.processes):
                cases.append(self.describe_missing(message))
            elif any(gap is not None for gap in self.gap.values()) and self.missing(message):
                cases.append("unknown")
        return cases

    @staticmethod
    def judge_missing(cases: list[str]) -> str:
        return next((verdict for verdict in ("violated", "unknown") if verdict in cases), "holds")

    def judge_packets(self) -> dict[str, str]:
        if "packets" not in self.tables:
            return {"P6": "unknown", "P6'": "unknown"}
        concerned = {row["sender"] for row in self.sent.values()}
        concerned |= {p for p in self.processes for m in self.sent if self.addressed(p, m)}
        outsiders = unconcerned = 0
        about_any = False
        for row in self.tables["packets"]:
            about = {*([] if row["message"] is None else [row["message"]]), *(row["messages"] or [])}
            if not about:
                continue
            about_any = True
            ends = [row["source"]] + ([row["target"]] if row["received_ns"] is not None else [])
            outsiders += any(end not in concerned for end in ends)
            for message, end in product(about, (row["source"], row["target"])):
                known = self.sent.get(message)
                unconcerned += known is None or not (end == known["sender"] or self.addressed(end, message))
        found = {"P6": "violated" if outsiders else "holds", "P6'": "violated" if unconcerned else "holds"}
        remote = any(
            message in self.sent and self.sent[message]["sender"] != process
            for process in self.processes
            for message in self.delivered(process)
        )
        return {"P6": "unknown", "P6'": "unknown"} if not about_any and remote else found

    def judge_sessions(self, unless: str) -> dict[str, str]:
        keys = {
            message: (row["session"], row["sequence"])
            for message, row in self.sent.items()
            if row["session"] is not None and row["sequence"] is not None
        }
        if not keys:
            return dict.fromkeys(("P7", "P8"), "unknown" if self.sent else "holds")
        found = {"P7": unless, "P8": unless}
        for process, entries in self.sequence.items():
            group = self.group_of.get(process)
            if group is None:
                continue
            expected = {key for m, key in keys.items() if group in self.sent[m]["destinations"]}
            recorded = [(position, keys[m], m) for position, m, _ in entries if m in keys]
            gap = self.gap[process]
            for at, (position, key, message) in enumerate(recorded):
                if any(other == key and m != message for _, other, m in recorded[:at]):
                    found["P8"] = "violated"
                if key not in expected:
                    continue
                for lower in expected:
                    if lower[0] != key[0] or lower[1] >= key[1] or any(k == lower for _, k, _ in recorded[:at]):
                        continue
                    # What was not recorded by now may be in the gap, unless it is recorded later.
                    if gap is None or position < gap or any(k == lower for _, k, _ in recorded[at:]):
                        found["P7"] = "violated"
        return found

    def completed(self, message: int) -> int | None:
        sent = self.sent[message]["at_ns"]
        if "answers" in self.tables:
            times = [row["at_ns"] for row in self.tables["answers"] if row["message"] == message]
            return max(sent, min(times)) if times else None
        moment = sent
        for group in self.sent[message]["destinations"]:
            recorded = [entry for process in self.members[group] for entry in self.sequence[process]]
            times = [at for _, other, at in recorded if other == message and at is not None]
            if not times:
                return None
            moment = max(moment, min(times))
        return moment

    def judge_real_time(self, edges: dict[int, set[int]], unless: str) -> str:
        hosts = {row["process"]: row["host"] for row in self.tables["processes"]}
        compared = {row["sender"] for row in self.sent.values()}
        if "answers" not in self.tables:
            compared |= {process for members in self.members.values() for process in members}
        read_on = {hosts.get(process) or None for process in compared}
        if any(hosts.values()) and self.clock_bound_ns is None and len(read_on) > 1:
            return "unknown"
        both = {m: set(after) for m, after in edges.items()}
        for m in self.sent:
            complete = self.completed(m)
            if complete is not None:
                apart = complete + (self.clock_bound_ns or 0)
                both[m] |= {n for n, row in self.sent.items() if row["at_ns"] > apart}
        return "violated" if has_cycle(both) else unless


def find_blocked(edges: dict[int, set[int]]) -> set[int]:
    """The messages in a cycle, or behind one."""
    left = set(edges)
    while left:
        free = left - {n for m in left for n in edges[m]}
        if not free:
            return left
        left -= free
    return left


def find_shortest_cycle(edges: dict[int, set[int]]) -> int | None:
    """The length of a shortest cycle, by powers of the relation."""
    reach = edges
    for length in range(1, len(edges) + 1):
        if any(m in reach[m] for m in edges):
            return length
        reach = {m: {n for step in reach[m] for n in edges[step]} for m in edges}
    return None


def has_cycle(edges: dict[int, set[int]]) -> bool:
    left = dict(edges)
    while left:
        free = [m for m in left if not left[m] & left.keys()]
        if not free:
            return True
        for m in free:
            del left[m]
    return False
