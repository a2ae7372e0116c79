"""Bugs of PrimCast, White-Box, and what they share."""

from typing import Final

from tests.mutants.gate.bug import Bug

GROUP: Final = "parts.groups.leader_group"
PRIMCAST: Final = "protocols.primcast.process"
WHITEBOX: Final = "protocols.whitebox.process"

SHARED: Final = (
    Bug(
        "primcast-replay-forgets-the-clock",
        GROUP,
        "        self._clock = max(self._clock, record.clock)\n        self._memory_losses = record.memory_losses\n",
        "        self._memory_losses = record.memory_losses\n",
        "primcast",
    ),
    Bug(
        "primcast-checkpoint-forgets-the-clock",
        GROUP,
        "        self._clock = checkpoint.clock\n",
        "",
        "primcast",
    ),
    Bug(
        "whitebox-checkpoint-forgets-the-clock",
        GROUP,
        "        self._clock = checkpoint.clock\n",
        "",
        "whitebox",
    ),
    Bug(
        "primcast-replay-forgets-the-promise",
        GROUP,
        "        self._promised = record.promised\n",
        "        self._promised = self._epoch\n",
        "primcast",
    ),
    Bug(
        "primcast-replay-forgets-memory-losses",
        GROUP,
        "        self._memory_losses = record.memory_losses\n",
        "",
        "primcast",
    ),
    Bug(
        "primcast-promise-without-persist",
        GROUP,
        "            or self._promised > self._durable_promised\n",
        "",
        "primcast",
    ),
    Bug(
        "whitebox-promise-without-persist",
        GROUP,
        "            or self._promised > self._durable_promised\n",
        "",
        "whitebox",
    ),
    Bug("primcast-clock-without-persist", GROUP, "self._clock > self._durable_clock\n", "False\n", "primcast"),
    Bug(
        "primcast-promises-without-its-memory",
        GROUP,
        '        if self._role == "joining":\n            return False\n        if ballot < self._promised:',
        "        if ballot < self._promised:",
        "primcast",
    ),
    Bug(
        "primcast-promises-below-its-promise",
        GROUP,
        "            self._send_after_persist((sender,), Nack(self._promised))\n            return False\n",
        "            self._promised = ballot\n",
        "primcast",
    ),
    Bug(
        "primcast-forgotten-promises-still-count",
        GROUP,
        " if one.memory_losses[place] == losses[place]]\n",
        "]\n",
        "primcast",
    ),
    Bug(
        "primcast-admission-forgets-the-clock",
        GROUP,
        "        self._clock = max(self._clock, body.clock)\n        if self._has_admission_quorum()",
        "        if self._has_admission_quorum()",
        "primcast",
    ),
    Bug(
        "primcast-admitted-with-one-vote",
        GROUP,
        "return len(self._admission_votes) > len(self._members) - self._quorum",
        "return len(self._admission_votes) >= 1",
        "primcast",
    ),
    Bug(
        "primcast-admitted-to-any-epoch",
        GROUP,
        "            and ballot >= self._min_admission_epoch()\n",
        "",
        "primcast",
    ),
    Bug(
        "whitebox-admitted-to-any-epoch",
        GROUP,
        "            and ballot >= self._min_admission_epoch()\n",
        "",
        "whitebox",
    ),
    Bug(
        "primcast-ballot-without-incarnation",
        GROUP,
        "next_ballot(max(self._promised, self._highest_epoch), self._incarnation, self._place)",
        "next_ballot(self._promised, 0, self._place)",
        "primcast",
    ),
    Bug(
        "whitebox-restore-forgets-what-is-delivered",
        GROUP,
        "        self._delivered.restore(prefix.delivered)\n",
        "",
        "whitebox",
    ),
    Bug(
        "primcast-restore-forgets-the-last-rank",
        GROUP,
        "        self._last_delivered_rank = (prefix.time, prefix.tie)\n",
        "",
        "primcast",
    ),
)

PRIMCAST_BUGS: Final = (
    Bug(
        "primcast-epoch-takes-the-first-clock",
        PRIMCAST,
        "        clock = max(promise.clock for promise in valid)\n",
        "        clock = valid[0].clock\n",
        "primcast",
    ),
    Bug(
        "primcast-trims-what-one-member-delivered",
        PRIMCAST,
        "log.trim(sorted(self._positions)[self._progress.quorum_index])",
        "log.trim(max(self._positions))",
        "primcast",
    ),
    Bug(
        "primcast-settles-when-one-member-delivered",
        "protocols.primcast.progress",
        "return sorted(self.delivered_ranks)[self.quorum_index]",
        "return max(self.delivered_ranks)",
        "primcast",
    ),
    Bug(
        "primcast-sends-before-its-record",
        PRIMCAST,
        "            self._persist_changes()\n            for targets, body, about in self._sends_after_persist:\n"
        "                self.send_all(targets, body, about)\n            self._sends_after_persist = []\n"
        "            self._send_acknowledgements(is_proposed)\n",
        "            for targets, body, about in self._sends_after_persist:\n"
        "                self.send_all(targets, body, about)\n            self._sends_after_persist = []\n"
        "            self._send_acknowledgements(is_proposed)\n            self._persist_changes()\n",
        "primcast",
    ),
    Bug(
        "primcast-epoch-takes-any-log",
        PRIMCAST,
        "longest = max(valid, key=lambda promise: (promise.current, promise.base + len(promise.entries)))",
        "longest = valid[0]",
        "primcast",
    ),
    Bug(
        "primcast-epoch-takes-the-longest-log-of-any-epoch",
        PRIMCAST,
        "key=lambda promise: (promise.current, promise.base + len(promise.entries))",
        "key=lambda promise: promise.base + len(promise.entries)",
        "primcast",
    ),
    Bug(
        "primcast-decides-with-too-few-acknowledgements",
        "protocols.primcast.progress",
        "        return sorted(lengths)[self.quorum_index]\n",
        "        return max(lengths)\n",
        "primcast",
    ),
    Bug(
        "primcast-decides-with-acknowledgements-of-other-epochs",
        "protocols.primcast.progress",
        "lengths = [length if at == epoch else 0 for at, length in zip(self.epochs, lengths, strict=True)]",
        "lengths = list(lengths)",
        "primcast",
    ),
    Bug(
        "primcast-delivers-without-the-clock-of-a-majority",
        PRIMCAST,
        "return self._clocks.delivery_limit(self._primary_clock)",
        "return self._primary_clock",
        "primcast",
    ),
    Bug(
        "primcast-delivers-without-the-clock-of-its-primary",
        PRIMCAST,
        "return self._clocks.delivery_limit(self._primary_clock)",
        "return self._clocks.majority_value()",
        "primcast",
    ),
    Bug(
        "primcast-accepts-a-stale-epoch",
        PRIMCAST,
        "        elif body.epoch < self._promised:\n"
        "            self._send_after_persist((sender,), Nack(self._promised))\n",
        "",
        "primcast",
    ),
    Bug(
        "primcast-acknowledges-after-its-promise",
        PRIMCAST,
        "        if not (appended or clock_due) or not self._is_active():\n",
        "        if not (appended or clock_due):\n",
        "primcast",
    ),
    Bug(
        "primcast-clocks-of-lost-memories-count",
        PRIMCAST,
        "        self._clocks.forget(place)\n",
        "",
        "primcast",
    ),
    Bug(
        "primcast-checkpoint-without-log",
        PRIMCAST,
        "            self._memory_losses,\n            log.list_entries(log.base),\n"
        "            self._delivered_until,\n",
        "            self._memory_losses,\n            (),\n            self._delivered_until,\n",
        "primcast",
    ),
    Bug(
        "primcast-replay-forgets-entries",
        PRIMCAST,
        "            if index == log.length:\n"
        "                self._add_entry(self._pending_of_entry(entry), entry.timestamp)\n",
        "            pass\n",
        "primcast",
    ),
    Bug(
        "primcast-delivers-before-its-epoch-is-established",
        PRIMCAST,
        "        if not heap or not self._is_established or self._promised",
        "        if not heap or self._promised",
        "primcast",
    ),
    Bug(
        "primcast-promises-of-earlier-epochs-count",
        PRIMCAST,
        'if self._role != "candidate" or body.epoch != self._promised or self._sent_state is not None:',
        'if self._role != "candidate" or self._sent_state is not None:',
        "primcast",
    ),
    Bug(
        "primcast-acknowledgements-of-other-remote-epochs-decide",
        PRIMCAST,
        "if undecided and length > undecided[0][0] and epoch == progress.epoch:",
        "if undecided and length > undecided[0][0]:",
        "primcast",
    ),
    Bug(
        "primcast-installs-an-older-state",
        PRIMCAST,
        "        if body.position <= self.position:\n            return\n",
        "",
        "primcast",
    ),
)

WHITEBOX_BUGS: Final = (
    Bug(
        "whitebox-ballot-takes-the-first-clock",
        WHITEBOX,
        "        clock = max(promise.clock for promise in promises)\n",
        "        clock = promises[0].clock\n",
        "whitebox",
    ),
    Bug(
        "whitebox-merges-all-ballots",
        WHITEBOX,
        "            if promise.current == current:\n",
        "            if promise.current <= current:\n",
        "whitebox",
    ),
    Bug(
        "whitebox-takes-the-entries-of-one-promise",
        WHITEBOX,
        "            if promise.current == current:\n",
        "            if promise.current == current and not merged:\n",
        "whitebox",
    ),
    Bug(
        "whitebox-delivers-on-the-word-of-other-groups",
        WHITEBOX,
        "            elif not pending.is_committed:\n                break\n",
        "            elif pending.final < 0:\n                break\n",
        "whitebox",
    ),
    Bug(
        "whitebox-sends-before-its-record",
        WHITEBOX,
        "            self._persist_changes()\n            for targets, body, about in self._sends_after_persist:\n"
        "                self.send_all(targets, body, about)\n            self._sends_after_persist = []\n"
        "            self._send_step_bodies()\n",
        "            for targets, body, about in self._sends_after_persist:\n"
        "                self.send_all(targets, body, about)\n            self._sends_after_persist = []\n"
        "            accepted = list(self._accepted)\n            self._send_step_bodies()\n"
        "            self._accepted = accepted\n            self._persist_changes()\n            self._accepted = []\n",
        "whitebox",
    ),
    Bug(
        "whitebox-commits-with-one-acceptance-less",
        "protocols.whitebox.pending_multicast",
        "return all(acks.get(group, 0).bit_count() >= topology.quorum(group) for",
        "return all(acks.get(group, 0).bit_count() >= topology.quorum(group) - 1 for",
        "whitebox",
    ),
    Bug(
        "whitebox-acceptance-does-not-raise-the-clock",
        WHITEBOX,
        "        self._clock = max(self._clock, pending.highest_timestamp())\n",
        "",
        "whitebox",
    ),
    Bug(
        "whitebox-new-leader-gives-new-timestamps",
        WHITEBOX,
        "        for pending in self._sorted_pending():\n            if pending.accepted:\n"
        "                pending.proposed",
        "        for pending in self._sorted_pending():\n            if False:\n                pending.proposed",
        "whitebox",
    ),
    Bug(
        "whitebox-acceptances-of-lost-memories-count",
        WHITEBOX,
        "            for place in find_new_losses(known, memory_losses):\n"
        "                self._discard_acks(group, place)\n",
        "            pass\n",
        "whitebox",
    ),
    Bug(
        "whitebox-accepts-in-a-stale-ballot",
        WHITEBOX,
        "            if body.ballot != self._epoch or not self._is_active():\n                return\n        else:",
        "            if body.ballot > self._epoch:\n                return\n        else:",
        "whitebox",
    ),
    Bug(
        "whitebox-checkpoint-without-accepted-messages",
        WHITEBOX,
        "            self._accepted_entries(),\n            self._delivered_until,\n",
        "            (),\n            self._delivered_until,\n",
        "whitebox",
    ),
    Bug(
        "whitebox-holders-of-earlier-ballots-count",
        WHITEBOX,
        "        if ballot != self._promised or ballot != self._epoch:\n            return\n        self._holders",
        "        self._holders",
        "whitebox",
    ),
    Bug(
        "whitebox-delivers-over-a-gap",
        WHITEBOX,
        "            if position > self.position or pending is None:",
        "            if pending is None:",
        "whitebox",
    ),
    Bug(
        "whitebox-rank-of-one-member-settles",
        WHITEBOX,
        "stable = sorted(self._member_ranks)[len(self._member_ranks) - self._quorum]",
        "stable = max(self._member_ranks)",
        "whitebox",
    ),
)

BUGS: Final = (*SHARED, *PRIMCAST_BUGS, *WHITEBOX_BUGS)
