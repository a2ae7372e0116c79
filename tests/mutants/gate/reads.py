"""Bugs of reads without ordering, which seeds find that read from servers."""

from typing import Final

from tests.mutants.gate.bug import Bug

READS: Final = "parts.node.read_index"

BUGS: Final = (
    Bug(
        "reads-confirmed-by-too-few",
        READS,
        "        if len(reports) < quorum:\n",
        "        if len(reports) < quorum - 1:\n",
        "primcast",
    ),
    Bug(
        "reads-count-reports-of-earlier-rounds",
        READS,
        "        if body.round == self._round and self._asking:\n",
        "        if self._asking:\n",
        "primcast",
    ),
    Bug(
        "reads-do-not-wait-for-deliveries",
        READS,
        " or own.delivered < confirmed.position:\n",
        ":\n",
        "primcast",
    ),
    Bug(
        "reads-do-not-wait-for-accepted-messages",
        READS,
        "        messages = sorted({message for report in reports for message in report.messages})\n",
        "        messages: list[MessageId] = []\n",
        "primcast",
    ),
    Bug(
        "reads-keep-the-reports-of-the-round-before",
        READS,
        "        self._asking, self._waiting, self._reports = tuple(self._waiting), [], {}\n",
        "        self._asking, self._waiting = tuple(self._waiting), []\n",
        "primcast",
    ),
    Bug(
        "primcast-states-as-accepted-what-is-delivered",
        "protocols.primcast.process",
        "        undelivered = tuple([pending.id for pending in self._log.list_undelivered()])\n",
        "        undelivered = ()\n",
        "primcast",
    ),
)
