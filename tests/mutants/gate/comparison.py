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
    Bug(
        "comparison-majority-of-one-less",
        "parts.node.comparison_results",
        ">= majority(len(self._members))",
        ">= majority(len(self._members)) - 1",
        "primcast",
    ),
    Bug(
        "comparison-finds-no-difference-of-states",
        COMPARISON,
        "                    self._states.add_difference(Difference(member, position, own[position], digest))\n",
        "                    pass\n",
        "primcast",
    ),
    Bug(
        "comparison-takes-the-others-for-wrong",
        "parts.node.comparison_results",
        "            if wrong == self._me == finder:\n",
        "            if wrong == finder != self._me:\n",
        "primcast",
    ),
    Bug(
        "divergence-is-not-remembered",
        "parts.node.admission",
        "        self._refuse_diverged(divergence)\n        self._must_remember = True\n",
        "        self._refuse_diverged(divergence)\n",
        "primcast",
    ),
    Bug(
        "diverged-replica-goes-on",
        "parts.node.node",
        "            self.admission.stop(self.comparison.describe())\n",
        "",
        "primcast",
    ),
    Bug(
        "restart-ignores-its-divergence",
        "parts.node.admission",
        "            self._refuse_diverged(folder.reason)\n            return\n",
        "            pass\n",
        "primcast",
    ),
)
