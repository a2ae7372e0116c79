"""Bugs of real-time order: rules that look right, answers that leak, and what restarts and state transfers forget.

All are looked for with `--order real-time`, in which every run judges P9.
"""

from functools import partial
from typing import Final

from tests.mutants.gate.bug import Bug

PART: Final = "parts.node.real_time_order"
CUT: Final = "parts.ordering.consistent_cut"
NODE: Final = "parts.node.node"
_bug = partial(Bug, order="real-time")

RULES: Final = (
    _bug(
        "real-time-answers-when-every-destination-has-delivered",
        PART,
        "            if all(next(iter(order.open)) == first.id for order in others):\n",
        "            if others:\n",
        "primcast",
    ),
    _bug(
        "real-time-answers-when-clocks-have-passed",
        PART,
        "            if any(first.id not in order.open for order in others):\n                return\n"
        "            if all(next(iter(order.open)) == first.id for order in others):\n",
        "            if others:\n",
        "skeen",
    ),
    _bug(
        "real-time-cut-without-frontiers",
        CUT,
        "    while shrunk:\n        group, before = shrunk.popleft()\n",
        "    while False:\n        group, before = shrunk.popleft()\n",
        "primcast",
    ),
    _bug(
        "real-time-cut-shrinks-one-step",
        CUT,
        "                    shrunk.append((other, sizes[other]))\n",
        "",
        "flexcast",
    ),
    _bug(
        "real-time-cut-behind-a-gap",
        CUT,
        "            if absent is not None or message.position >= limit:\n",
        "            if absent is not None:\n",
        "primcast",
    ),
    _bug(
        "real-time-reports-only-what-the-receiver-is-sent",
        PART,
        "        messages += [message for message in own.open.values() if message.position >= begin]\n"
        "        self._sent[group] = own.end\n",
        "        messages += [m for m in own.open.values() if m.position >= begin and group in m.destinations]\n"
        "        self._sent[group] = own.end\n",
        "fastcast",
    ),
    _bug(
        "real-time-reports-only-what-is-new",
        PART,
        "        messages += [message for message in own.open.values() if message.position >= begin]\n"
        "        self._sent[group] = own.end\n",
        "        messages += [m for m in own.open.values() if m.position >= begin and m in self._fresh]\n"
        "        self._sent[group] = own.end\n",
        "skeen",
    ),
    _bug(
        "real-time-takes-what-is-not-listed-for-closed",
        PART,
        "        self._close_before(group, body.closed)\n        for message in body.messages:\n",
        "        self._close_before(group, body.begin)\n        for message in body.messages:\n",
        "primcast",
    ),
    _bug(
        "real-time-two-destinations-are-a-barrier",
        PART,
        "            if len(message.destinations) > len(others) and all(",
        "            others = [self._orders[group] for group in message.destinations]\n"
        "            if len(message.destinations) > 1 and all(",
        "primcast",
    ),
    _bug(
        "real-time-accepts-reports-that-do-not-follow",
        CUT,
        "        if begin > max(self.end, closed):\n            return False\n",
        "",
        "primcast",
    ),
    _bug(
        "real-time-forgets-what-is-open-and-not-where-it-ends",
        CUT,
        "        self.end = kept[count].position\n",
        "",
        "primcast",
    ),
)

ANSWERS: Final = (
    _bug(
        "real-time-answers-early-where-the-order-is-certain",
        NODE,
        '            order.deliver(delivery, "gateway" if gateway == self.me else "delivery", gateway)\n',
        '            order.deliver(delivery, "gateway" if gateway == self.me else "delivery", gateway)\n'
        "            certain = {self.home, *delivery.ordered_elsewhere}\n"
        "            if gateway == self.me and certain.issuperset(message.destinations):\n"
        "                self._gateway_events.append(Receive(self.me, Done((message.id,))))\n",
        "primcast",
    ),
    _bug(
        "real-time-answers-retries-of-what-is-delivered",
        NODE,
        "        if self.real_time is None:\n            self.send(receiver, Reply(",
        "        if True:\n            self.send(receiver, Reply(",
        "primcast",
    ),
    _bug(
        "real-time-retries-wait-for-what-is-closed-now",
        PART,
        '            self._held.append(HeldAnswer(self._position, "retry", receiver, message, destinations))\n',
        '            self._held.append(HeldAnswer(self._own.closed, "retry", receiver, message, destinations))\n',
        "whitebox",
    ),
    _bug(
        "real-time-passes-on-replies-of-the-protocol",
        NODE,
        "            elif kind is Send and type(effect.body) is Reply:  # type: ignore[attr-defined]\n",
        "            elif False:\n",
        "treecast",
    ),
    _bug(
        "real-time-answers-one-delivery-too-early",
        PART,
        "        while self._held and self._held[0].end <= closed:\n",
        "        while self._held and self._held[0].end <= closed + 1:\n",
        "primcast",
    ),
    _bug(
        "real-time-states-closed-what-is-delivered",
        PART,
        "        closed = self.closed\n        if closed > self._stated:\n",
        "        closed = self._own.end\n        if closed > self._stated:\n",
        "primcast",
    ),
)

MEMORY: Final = (
    _bug(
        "real-time-calls-closed-what-is-delivered",
        PART,
        "        return self._own.gap is None and message not in self._own.open and self._has_delivered(message)\n",
        "        return self._has_delivered(message)\n",
        "primcast",
    ),
    _bug(
        "real-time-calls-closed-what-is-in-the-gap",
        PART,
        "        return self._own.gap is None and message not in self._own.open and self._has_delivered(message)\n",
        "        return message not in self._own.open and self._has_delivered(message)\n",
        "primcast",
    ),
    _bug(
        "real-time-checkpoint-without-open-messages",
        PART,
        "        record = self._checkpoint_type(effect.record, self._own.snapshot())\n",
        "        record = self._checkpoint_type(effect.record, GroupOrder().snapshot())\n",
        "primcast",
    ),
    _bug(
        "real-time-restart-closes-the-checkpoint",
        PART,
        "            self._own.restore(envelopes[-1].order)\n",
        "            self._own.end = envelopes[-1].order.end\n",
        "primcast",
    ),
    _bug(
        "real-time-transfer-without-a-gap",
        PART,
        "            if self._adopts_past:\n                self._own.end = position\n",
        "            if True:\n                self._own.end = position\n",
        "primcast",
    ),
    _bug(
        "real-time-transfer-to-an-empty-member-without-a-gap",
        PART,
        "            if self._adopts_past:\n                self._own.end = position\n",
        "            if self._adopts_past or self._own.end == 0:\n                self._own.end = position\n",
        "primcast",
    ),
    _bug(
        "real-time-reports-behind-its-gap",
        PART,
        "        if order.gap is not None:\n            end = order.gap[0]\n"
        "            messages = tuple(message for message in messages if message.position < end)\n",
        "",
        "primcast",
    ),
    _bug(
        "real-time-leads-with-a-gap",
        PART,
        "        leads = leads and self._own.gap is None\n",
        "",
        "primcast",
    ),
    _bug(
        "real-time-fills-a-gap-with-half-a-statement",
        CUT,
        "        if self.gap is not None and begin <= first and end >= last:\n",
        "        if self.gap is not None and begin <= first and end > first:\n",
        "primcast",
    ),
    _bug(
        "real-time-gap-is-forgotten-when-part-of-it-closes",
        CUT,
        "            self.gap = None if position >= self.gap[1] else (position, self.gap[1])\n        removed:",
        "            self.gap = None\n        removed:",
        "primcast",
    ),
    _bug(
        "real-time-copy-forgets-what-is-open",
        CUT,
        "        return GroupOrderState(self.end, tuple(self.open.values()), self.gap)\n",
        "        return GroupOrderState(self.end, (), self.gap)\n",
        "primcast",
    ),
)

BUGS: Final = RULES + ANSWERS + MEMORY
