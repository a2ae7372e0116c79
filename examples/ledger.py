"""A ledger that keeps its accounts in SQLite: a service whose state need not fit into memory."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import amcast

ROWS = 1000


class Ledger(amcast.DiskService):
    """Accounts by name, in a database of each replica."""

    failures = (OSError, sqlite3.OperationalError)  # the disk is full, or the file is damaged

    def open(self, folder: Path) -> amcast.Applied | None:
        """Opens the database; returns what the last `save` put into it."""
        self.file = folder / "ledger.db"
        self.database = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        for statement in (
            "PRAGMA journal_mode = WAL",
            "PRAGMA synchronous = FULL",
            "CREATE TABLE IF NOT EXISTS accounts (name TEXT PRIMARY KEY, money INTEGER) WITHOUT ROWID",
            "CREATE TABLE IF NOT EXISTS applied (only INTEGER PRIMARY KEY, position INTEGER, record BLOB)",
            "BEGIN",
        ):
            self.database.execute(statement)
        row = self.database.execute("SELECT position, record FROM applied").fetchone()
        return None if row is None else amcast.Applied(*row)

    def save(self, applied: amcast.Applied) -> None:
        """Ends the transaction that has all commands since the last one, and begins the next."""
        self.database.execute("REPLACE INTO applied VALUES (1, ?, ?)", applied)
        self.database.execute("COMMIT")
        self.database.execute("BEGIN")

    def snapshot(self) -> Iterator[bytes]:
        """Reads in a transaction of its own, which sees what was saved when its first row was read."""
        reader = sqlite3.connect(self.file, isolation_level=None, check_same_thread=False)
        try:
            reader.execute("BEGIN")
            rows = reader.execute("SELECT name, money FROM accounts ORDER BY name")
            while some := rows.fetchmany(ROWS):
                yield json.dumps(some).encode()
        finally:
            reader.close()

    def restore(self, pieces: Iterator[bytes]) -> None:
        """Fills an empty database."""
        for piece in pieces:
            self.database.executemany("INSERT INTO accounts VALUES (?, ?)", json.loads(piece))

    def close(self) -> None:
        """Closes the database; the open transaction is lost."""
        self.database.close()

    @amcast.command
    def deposit(self, at: amcast.At, account: amcast.Key, amount: int) -> int:
        """Adds money to an account, and opens it with the first deposit; returns what is in it then."""
        self.database.execute(
            "INSERT INTO accounts VALUES (?, ?) ON CONFLICT DO UPDATE SET money = money + excluded.money",
            (account, amount),
        )
        return self._read(account)

    @amcast.query
    def balance(self, account: amcast.Key) -> int:
        """The money in an account."""
        return self._read(account)

    @amcast.query
    def total(self) -> int:
        """The money in all accounts of a group."""
        total: int = self.database.execute("SELECT coalesce(sum(money), 0) FROM accounts").fetchone()[0]
        return total

    def _read(self, account: str) -> int:
        row = self.database.execute("SELECT money FROM accounts WHERE name = ?", (account,)).fetchone()
        return 0 if row is None else int(row[0])
