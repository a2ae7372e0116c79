"""Histories of a bank: every read of all accounts shows the same total, and no account below zero.

A `read` has the balances by account as its value; `transfer` and others are not looked at. A read that mixes two states
of the bank shows another total.
"""

from collections.abc import Sequence

from amcast.check.histories.history import HistoryOperation
from amcast.check.histories.report import HistoryReport
from amcast.kernel.errors import UsageError


def check_bank(history: Sequence[HistoryOperation]) -> HistoryReport:
    """Judges the totals of a history."""
    reads = [operation for operation in history if operation.f == "read" and operation.is_certain]
    checked = {"operations": len(history), "reads": len(reads)}
    if not reads:
        return HistoryReport("unknown", checked, ["nothing was read: no total is known"])
    first = reads[0]
    for operation in reads:
        balances = operation.value
        if not isinstance(balances, dict) or not all(isinstance(one, int) for one in balances.values()):
            raise UsageError(f"line {operation.end}: {balances!r}; expected a table of accounts with whole numbers")
        below = [account for account, money in balances.items() if money < 0]
        if below:
            return HistoryReport("violated", checked, [f"the {operation} saw {balances[below[0]]} in {below[0]!r}"])
        if sum(balances.values()) != sum(first.value.values()):
            sentence = f"the {operation} saw {sum(balances.values())} in all, the {first} {sum(first.value.values())}"
            return HistoryReport("violated", checked, [sentence])
    return HistoryReport("holds", checked)
