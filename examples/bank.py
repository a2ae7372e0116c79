"""A bank whose accounts are spread over all groups of a cluster."""

from collections.abc import Generator, Mapping

import amcast


class Bank(amcast.Service):
    """Accounts by name; each is kept by the group that owns its name."""

    def __init__(self, group: str) -> None:
        self.accounts: dict[str, int] = {}

    @amcast.command
    def deposit(self, at: amcast.At, account: amcast.Key, amount: int) -> int:
        """Adds money to an account, and opens it with the first deposit."""
        self.accounts[account] = self.accounts.get(account, 0) + amount
        return self.accounts[account]

    @amcast.command
    def transfer(
        self, at: amcast.At, source: amcast.Key, target: amcast.Key, amount: int
    ) -> Generator[bool, dict[str, bool], bool]:
        """Moves money between two accounts, of any groups, if the source has enough; returns whether it did."""
        mine = not at.owns(source) or self.accounts.get(source, 0) >= amount > 0
        votes = yield mine
        if not all(votes.values()):
            return False
        if at.owns(source):
            self.accounts[source] -= amount
        if at.owns(target):
            self.accounts[target] = self.accounts.get(target, 0) + amount
        return True

    @amcast.query
    def balance(self, account: amcast.Key) -> int:
        """The money in an account."""
        return self.accounts.get(account, 0)

    @amcast.query
    def total(self) -> int:
        """The money in all accounts of a group."""
        return sum(self.accounts.values())


def total_is_constant(services: Mapping[str, Bank]) -> str | None:
    """An invariant of the simulation (test_bank.py), which deposits 60: nothing is lost or made."""
    total = sum(bank.total() for bank in services.values())
    return None if total == 60 else f"there is {total} in all accounts; expected 60"
