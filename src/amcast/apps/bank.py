"""A bank whose accounts are spread over all groups: transfers between any two of them, all or nothing.

    deposit, withdraw   the group of the account
    transfer            the groups of both accounts; that of the source votes at a `yield` whether it has enough
    balance             the group of the account; read without ordering
    audit               all groups, ordered: money in accounts, money paid in, money paid out

Whatever is called at the same time, an audit finds as much money in accounts as was paid in and not paid out: it has
one place in the order of all groups. `work` is a load that says so, live, in the simulator and under torture.
"""

from collections.abc import Generator, Mapping
from typing import Any, Final

from amcast.services.declaration import At, Key, Service, command, query

ACCOUNTS: Final = 24
"""Accounts that `work` uses."""
STEPS: Final = 4
"""Calls of one round of `work`."""


class Bank(Service):
    """The accounts of one group."""

    def __init__(self, group: str) -> None:
        self.accounts: dict[str, int] = {}
        """By name; never below zero."""
        self.deposited: int = 0
        self.withdrawn: int = 0

    @command
    def deposit(self, at: At, account: Key, amount: int) -> int:
        """Pays money in, and opens the account with the first; returns what the account has then."""
        _check_amount(amount)
        self.accounts[account] = self.accounts.get(account, 0) + amount
        self.deposited += amount
        return self.accounts[account]

    @command
    def withdraw(self, at: At, account: Key, amount: int) -> bool:
        """Pays money out, if the account has it; returns whether it did."""
        _check_amount(amount)
        if self.accounts.get(account, 0) < amount:
            return False
        self.accounts[account] -= amount
        self.withdrawn += amount
        return True

    @command
    def transfer(self, at: At, source: Key, target: Key, amount: int) -> Generator[bool, dict[str, bool], bool]:
        """Moves money between two accounts, of any groups, if the source has enough; returns whether it did."""
        _check_amount(amount)
        votes = yield not at.owns(source) or self.accounts.get(source, 0) >= amount
        if not all(votes.values()):
            return False
        if at.owns(source):
            self.accounts[source] -= amount
        if at.owns(target):
            self.accounts[target] = self.accounts.get(target, 0) + amount
        return True

    @query
    def balance(self, account: Key) -> int:
        """The money in an account."""
        return self.accounts.get(account, 0)

    @query
    def audit(self) -> tuple[int, int, int]:
        """Of a group: the money in accounts, the money that was paid in, the money that was paid out."""
        return sum(self.accounts.values()), self.deposited, self.withdrawn


def _check_amount(amount: int) -> None:
    if amount <= 0:
        raise ValueError(f"amount = {amount}; expected more than 0")


def find_loss(services: Mapping[str, Bank]) -> str | None:
    """An invariant: no account is overdrawn, and the money in all accounts is what was paid in and not paid out."""
    for group, bank in services.items():
        for name, amount in bank.accounts.items():
            if amount < 0:
                return f"account {name} of {group} has {amount}"
    return judge_audit({group: bank.audit() for group, bank in services.items()})


def judge_audit(by_group: Mapping[str, tuple[int, int, int]]) -> str | None:
    """What is wrong with an audit of all groups; None if nothing is."""
    kept, deposited, withdrawn = (sum(one[place] for one in by_group.values()) for place in range(3))
    if kept == deposited - withdrawn:
        return None
    return f"there is {kept} in all accounts; expected {deposited} - {withdrawn}"


async def work(client: Any) -> None:
    """One round of a client: a deposit, then transfers, withdrawals, balances and audits at random."""
    bank, random = client.service(Bank), client.random
    names = [f"account-{number}" for number in range(ACCOUNTS)]
    await bank.deposit(random.choice(names), random.randint(1, 100))
    for _ in range(STEPS):
        draw = random.random()
        if draw < 0.6:
            source, target = random.sample(names, 2)
            await bank.transfer(source, target, random.randint(1, 50))
        elif draw < 0.7:
            await bank.withdraw(random.choice(names), random.randint(1, 20))
        elif draw < 0.85:
            balance = (await bank.balance(random.choice(names))).value
            assert balance >= 0, f"a balance of {balance}"
        else:
            wrong = judge_audit((await bank.audit()).by_group)
            assert wrong is None, wrong
