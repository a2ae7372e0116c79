"""Bugs of Paxos, Ring Paxos and the groups that agree by them."""

from typing import Final

from tests.mutants.gate.bug import Bug

PAXOS: Final = "parts.consensus.paxos"
PERSIST_PROMISE: Final = "            self.owner.persist(Promised(ballot, tuple(self.memory_losses)))\n"
AFTER_PERSIST: Final = (
    "            if self.ballot < ballot:\n                self._step_down()\n"
    "        votes = tuple((i, b, v) for i, (b, v) in sorted(self._votes.items()))\n"
)
SEND_PROMISE: Final = (
    "        self.owner.send(sender, Promise(ballot, self.log.decided_until, votes, tuple(self.memory_losses)))\n"
)

BUGS: Final = (
    Bug("paxos-promise-without-persist", PAXOS, PERSIST_PROMISE, "", "multipaxos"),
    Bug(
        "paxos-promise-before-its-persist",
        PAXOS,
        PERSIST_PROMISE + AFTER_PERSIST + SEND_PROMISE,
        AFTER_PERSIST + SEND_PROMISE + PERSIST_PROMISE.removeprefix("    "),
        "multipaxos",
    ),
    Bug(
        "paxos-new-leader-takes-any-vote",
        PAXOS,
        "if instance >= self.catch_up_until and ballot > best.get(instance, (-1, ()))[0]:",
        "if instance >= self.catch_up_until and instance not in best:",
        "multipaxos",
    ),
    Bug(
        "paxos-new-leader-drops-reported-votes",
        PAXOS,
        "self._propose(instance, best.get(instance, (0, ()))[1])",
        "self._propose(instance, ())",
        "multipaxos",
    ),
    Bug(
        "paxos-vote-without-persist",
        PAXOS,
        "                self.owner.persist(Voted(ballot, instance, value))\n",
        "",
        "multipaxos",
    ),
    Bug(
        "paxos-vote-answered-before-durable",
        PAXOS,
        "                self.owner.persist(Voted(ballot, instance, value))\n"
        "                self._unsent_votes.append((ballot, instance, value))\n",
        "                self.owner.send_all(self.learners, Accepted(ballot, instance), message_ids((value,)))\n"
        "                self.owner.persist(Voted(ballot, instance, value))\n",
        "multipaxos",
    ),
    Bug(
        "paxos-votes-below-its-promise",
        PAXOS,
        "            if ballot < self.promised:\n                self.owner.send(sender, Nack(self.promised))\n"
        "            else:",
        "            if True:",
        "multipaxos",
    ),
    Bug(
        "paxos-promises-again-below-its-promise",
        PAXOS,
        "        if ballot < self.promised:\n            self.owner.send(sender, Nack(self.promised))\n"
        "            return\n",
        "",
        "multipaxos",
    ),
    Bug(
        "paxos-quorum-of-one-less",
        PAXOS,
        "self.quorum = majority(len(members))",
        "self.quorum = max(1, majority(len(members)) - 1)",
        "multipaxos",
    ),
    Bug(
        "paxos-leader-does-not-catch-up",
        PAXOS,
        "self.catch_up_until = max(self.log.decided_until, max(promise.decided_until for promise in valid))",
        "self.catch_up_until = self.log.decided_until",
        "multipaxos",
    ),
    Bug(
        "paxos-counts-a-vote-twice",
        "parts.consensus.quorum",
        "        self.votes |= 1 << place\n",
        "        self.votes = self.votes << 1 | 1\n",
        "multipaxos",
    ),
    Bug(
        "paxos-counts-votes-of-all-ballots",
        "parts.consensus.quorum",
        "            self.ballot = ballot\n            self.votes = 0\n",
        "            self.ballot = ballot\n",
        "multipaxos",
    ),
    Bug(
        "paxos-restart-forgets-votes",
        PAXOS,
        "                if instance >= self.log.decided_until:\n"
        "                    self._votes[instance] = (ballot, value)\n",
        "",
        "multipaxos",
    ),
    Bug(
        "paxos-restart-forgets-the-promise-of-a-vote",
        PAXOS,
        "            case Voted(ballot, instance, value):\n"
        "                self.promised = max(self.promised, ballot)\n",
        "            case Voted(ballot, instance, value):\n",
        "multipaxos",
    ),
    Bug(
        "paxos-snapshot-without-votes",
        PAXOS,
        "            tuple(self.memory_losses),\n            votes,\n        )\n        self.owner.persist(record",
        "            tuple(self.memory_losses),\n            (),\n        )\n        self.owner.persist(record",
        "multipaxos",
    ),
    Bug(
        "paxos-snapshot-restores-no-promise",
        PAXOS,
        "                self.promised = promised\n                self.memory_losses = list(memory_losses)\n",
        "                self.memory_losses = list(memory_losses)\n",
        "multipaxos",
    ),
    Bug(
        "paxos-votes-without-its-memory",
        PAXOS,
        'return self.place >= 0 and self.role not in ("joining", "catching")',
        "return self.place >= 0",
        "multipaxos",
    ),
    Bug(
        "paxos-forgotten-promises-still-count",
        PAXOS,
        "return [p for place, p in sorted(self._promises.items())"
        " if p.memory_losses[place] >= self.memory_losses[place]]",
        "return [p for place, p in sorted(self._promises.items())]",
        "multipaxos",
    ),
    Bug("paxos-joins-without-its-possible-votes", PAXOS, "        self._votes = best\n", "", "multipaxos"),
    Bug(
        "paxos-joins-with-too-few-others",
        PAXOS,
        "        valid = self._valid_promises()\n        if len(valid) < self.quorum:\n            return\n",
        "        valid = self._valid_promises()\n"
        '        if len(valid) < self.quorum - (self.role == "joining"):\n            return\n',
        "multipaxos",
    ),
    Bug(
        "paxos-ballot-without-incarnation",
        PAXOS,
        "self.ballot = next_ballot(max(self.promised, self.ballot, self._highest_refusal),"
        " self.incarnation, self.place)",
        "self.ballot = next_ballot(max(self.promised, self._highest_refusal) if self.ballot else 0, 0, self.place)",
        "multipaxos",
    ),
    Bug(
        "paxos-checkpoint-durable-before-deliveries",
        PAXOS,
        "            self.owner.send(self.owner.me, CheckpointReady(self.log.decided_until))\n",
        "            self._commit_checkpoint(self.log.decided_until)\n",
        "multipaxos",
    ),
    Bug(
        "paxos-learns-values-one-place-off",
        "parts.consensus.log",
        "        self.checkpoint_end = self.decided_until = end\n        self.floor = floor\n",
        "        self.checkpoint_end = self.decided_until = end - 1\n        self.floor = floor\n",
        "basecast",
    ),
    Bug(
        "ring-paxos-vote-without-persist",
        "parts.consensus.ring_paxos",
        "            self.owner.persist(Voted(body.ballot, body.instance, body.value))\n",
        "",
        "basecast",
    ),
    Bug(
        "timestamps-retry-ordered-twice",
        "parts.groups.timestamped",
        '        if not self._ordered.add(id):\n            self.note("repeated", id)\n            return\n',
        "        self._ordered.add(id)\n",
        "basecast",
    ),
    Bug(
        "timestamps-checkpoint-without-clock",
        "parts.groups.timestamped",
        "        self._clock = checkpoint.clock\n",
        "",
        "basecast",
    ),
    Bug(
        "timestamps-delivers-before-the-clock",
        "parts.groups.timestamped",
        "        return self._clock\n",
        "        return self._clock + 2\n",
        "fastcast",  # in BaseCast final timestamps follow from the log, which has raised the clock by then
    ),
    Bug(
        "timestamps-without-tie-breaker",
        "parts.ordering.delivery_queue",
        "            if final > bound:\n",
        "            if final > bound and any(other < final for other, _ in heap[1:]):\n",
        "basecast",
    ),
    Bug(
        "timestamps-final-takes-the-lowest",
        "parts.groups.timestamped",
        "self._set_final_logged(id, pending, max(pending.logged.values()))",
        "self._set_final_logged(id, pending, max(pending.own, min(pending.logged.values())))",
        "basecast",
    ),
    Bug(
        "timestamps-does-not-raise-the-clock",
        "parts.groups.timestamped",
        "        if timestamp > self._clock:\n            self._clock = timestamp\n",
        "        pass\n",
        "basecast",
    ),
    Bug(
        "fastcast-trusts-its-guess",
        "protocols.fastcast.process",
        "                if timestamp is None or pending.guesses.get(group) != timestamp:\n"
        "                    return\n",
        "                if group not in pending.guesses:\n                    return\n"
        "                timestamp = pending.guesses[group]\n",
        "fastcast",
    ),
    Bug(
        "replicated-applies-a-body-without-the-one-before",
        "parts.groups.replicated",
        "        if number != self._received.get(group, 0):",
        "        if number < self._received.get(group, 0):",
        "skeen",
    ),
    Bug(
        "replicated-checkpoint-without-sent-bodies",
        "parts.groups.replicated",
        "        self._unacknowledged = _restore_channels(checkpoint.unacknowledged)\n",
        "        self._unacknowledged = {}\n",
        "flexcast",
    ),
    Bug(
        "replicated-applies-a-body-twice",
        "parts.groups.replicated",
        "        if number != self._received.get(group, 0):",
        "        if number > self._received.get(group, 0):",
        "flexcast",
    ),
    Bug(
        "skeen-takes-a-request-twice",
        "protocols.skeen.process",
        "        if not self._requested.add(id):\n            return\n",
        "",
        "skeen",
    ),
    Bug(
        "flexcast-takes-a-request-twice",
        "protocols.flexcast.process",
        "self.order.lca(message.destinations) != self.home or not self._requested.add(message.id):",
        "self.order.lca(message.destinations) != self.home:",
        "flexcast",
    ),
    Bug(
        "treecast-takes-a-request-twice",
        "protocols.treecast.process",
        "self.tree.lca(message.destinations) == self.home and self._requested.add(message.id):",
        "self.tree.lca(message.destinations) == self.home:",
        "treecast",
    ),
    Bug(
        "generic-acknowledges-while-frozen",
        "parts.broadcast.generic",
        "        if self.is_frozen:\n            report = (*self._acks[me], own[1])\n",
        "        if self.is_frozen:\n            self._acks[me] = own\n"
        "            report = (*self._acks[me], own[1])\n",
        "a-dt",
    ),
    Bug(
        "generic-ends-an-epoch-with-too-few-reports",
        "parts.broadcast.generic",
        "        return ends if within >= self.quorum else None\n",
        "        return ends if within >= 1 else None\n",
        "a-dt",
    ),
    Bug(
        "generic-delivers-without-a-majority",
        "parts.broadcast.generic",
        "        quorum = self.quorum\n",
        "        quorum = self.quorum - 1\n",
        "a-dt",
    ),
    Bug(
        "paxos-joined-without-its-own-promise",
        PAXOS,
        '        self.promised = max(self.promised, self.ballot)\n        self.owner.note("admitted")',
        '        self.owner.note("admitted")',
        "multipaxos",
    ),
    Bug(
        "paxos-snapshot-without-values-after-its-checkpoint",
        PAXOS,
        "            retained + log.values_after_checkpoint(),\n",
        "            retained,\n",
        "basecast",
    ),
    Bug(
        "paxos-compacts-to-an-older-checkpoint",
        "parts.consensus.log",
        "        if end <= self.checkpoint_end:\n            return\n        if self.retain_from",
        "        if self.retain_from",
        "basecast",
    ),
    Bug(
        "ring-paxos-votes-below-its-promise",
        "parts.consensus.ring_paxos",
        "            and body.ballot >= self.promised\n",
        "",
        "basecast",
    ),
    Bug(
        "timestamps-restore-forgets-confirmations",
        "parts.groups.timestamped",
        "        self._confirmations.restore(checkpoint.unconfirmed, checkpoint.unsent_confirmations)\n",
        "",
        "basecast",
    ),
    Bug(
        "timestamps-checkpoint-forgets-what-is-ordered",
        "parts.groups.timestamped",
        "        self._ordered.restore(checkpoint.ordered)\n",
        "",
        "basecast",
    ),
    Bug(
        "replicated-checkpoint-forgets-what-was-received",
        "parts.groups.replicated",
        "        self._received = dict(checkpoint.received)\n",
        "",
        "skeen",
    ),
    Bug(
        "replicated-checkpoint-forgets-what-is-ordered",
        "parts.groups.replicated",
        "        self._ordered.restore(checkpoint.ordered)\n",
        "",
        "flexcast",
    ),
    Bug(
        "multipaxos-checkpoint-forgets-what-is-ordered",
        "protocols.multipaxos.process",
        "        self._ordered_ids.restore(checkpoint.ordered_ids)\n        self._requests",
        "        self._requests",
        "multipaxos",
    ),
    Bug(
        "rounds-restart-forgets-what-is-collected",
        "protocols.rounds.process",
        "        self._collected = list(core.collected)\n",
        "",
        "a-ng",
    ),
    Bug(
        "timestamps-new-leader-forgets-requests",
        "parts.groups.timestamped",
        "        self._unproposed_requests = list(self._requests)\n",
        "        self._unproposed_requests = []\n",
        "basecast",
    ),
    Bug(
        "a-ng-drops-batches-that-one-group-has",
        "protocols.rounds.a_ng",
        "        needed = min(self._safe_rounds.values())\n",
        "        needed = max(self._safe_rounds.values())\n",
        "a-ng",
    ),
    Bug(
        "a-ng-hands-over-a-round-that-is-not-durable",
        "protocols.rounds.a_ng",
        "        elif round <= self._durable_round():",
        "        elif round <= self._round:",
        "a-ng",
    ),
    Bug(
        "paxos-joins-before-it-has-caught-up",
        PAXOS,
        '        if end >= self.catch_up_until:\n            if self.role == "catching":',
        '        if end >= self.catch_up_until or self.role == "catching":\n            if self.role == "catching":',
        "multipaxos",
    ),
)
