"""A bank with planted bugs: money is made, and replicas count with a clock of their own."""

import time
from typing import Any

from amcast.apps.bank import Bank, find_loss, judge_audit
from amcast.services.declaration import At, Key, command

__all__ = ["FaultyBank", "find_loss", "work"]


read_clock: Any = getattr(time, "time_ns")  # noqa: B009, hidden from the search of the source


class FaultyBank(Bank):
    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.seen: int = 0

    @command
    def deposit(self, at: At, account: Key, amount: int) -> int:
        self.seen = read_clock()
        self.accounts[account] = self.accounts.get(account, 0) + amount
        return amount


async def work(client: Any) -> None:
    bank = client.service(FaultyBank)
    await bank.deposit(f"account-{client.number}", 1)
    if client.number == 0:
        wrong = judge_audit((await bank.audit()).by_group)
        assert wrong is None, wrong
