"""Bugs of the comparison of replicas: it raises false alarms."""

from typing import Final

from tests.mutants.gate.bug import Bug

COMPARISON: Final = "parts.node.replica_comparison"

BUGS: Final = (
    Bug(
        "chain-survives-an-installed-state",
        COMPARISON,
        "            self._next = position\n            self._lose_chain()\n",
        "            self._next = self._chain.position = position\n",
        "primcast",
    ),
    Bug(
        "chain-hashes-repeated-deliveries",
        COMPARISON,
        "            self._adopt(DeliveryChain(record.point), record.since)\n",
        "            self._adopt(DeliveryChain(record.point), record.since)\n"
        "            self._next = self._chain.position = 0\n",
        "primcast",
    ),
)
