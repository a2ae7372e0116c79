"""The audit log: who did what at a node, one line of JSON for each action.

    {"at": 1763420000.123456, "node": "orders/1", "action": "connected", "who": "client till", "address": "10.0.0.9:47"}

`docs/operate.md` lists the actions. Lines go to the logger `amcast.audit`: to the node's log, or to a file of their own
where cluster.toml sets `audit`. What peers can cause is limited to MAX_LINES lines of each action and name in WINDOW_S
seconds, and a later line counts those that were left out: a flood of one peer, or of unknown ones, hides nothing that
others do. What operators do is always written.
"""

import json
import logging
import os
import time
from pathlib import Path
from typing import Any, Final, TextIO

from amcast.live.private_files import open_private

log = logging.getLogger("amcast.audit")

OPERATOR_ACTIONS: Final = frozenset(
    {
        "started",
        "stopped",
        "reloaded",
        "reload failed",
        "change requested",
        "members changed",
        "replacement prepared",
        "loss accepted",
    }
)
"""Actions that are never left out."""
MAX_LINES: Final = 200
WINDOW_S: Final = 5.0
MAX_NAMES: Final = 1000
"""Pairs of an action and a name that are limited apart; with more, the rest of them count as unknown peers."""


class AuditLog:
    """Writes audit lines and counts those that it leaves out."""

    def __init__(self, max_lines: int = MAX_LINES, window_s: float = WINDOW_S) -> None:
        self.omitted = 0
        """Lines that were left out, over all actions."""
        self._max_lines = max_lines
        self._window_s = window_s
        self._began = time.monotonic()
        """When this window began."""
        self._counts: dict[tuple[str, str], int] = {}
        """By action and name: lines since. The name of unknown peers is empty."""

    def record(self, action: str, who: str = "", address: str = "", **details: Any) -> None:
        """Writes one line. The action is a constant of the program; empty fields are left out."""
        fields = {"action": action, "who": who, "address": address, **details}
        entry = {name: value for name, value in fields.items() if value not in ("", None)}
        if action in OPERATOR_ACTIONS:
            log.info("audit", extra={"audit": entry})
            return
        now = time.monotonic()
        if now - self._began >= self._window_s:
            self.flush()
            self._began = now
        counts, key = self._counts, (action, who)
        if key not in counts and len(counts) >= MAX_NAMES:
            key = (action, "")
        count = counts[key] = counts.get(key, 0) + 1
        if count <= self._max_lines:
            log.info("audit", extra={"audit": entry})
        else:
            self.omitted += 1

    def flush(self) -> None:
        """Writes how many lines were left out so far, and starts a new window."""
        for (action, who), count in self._counts.items():
            if count > self._max_lines:
                omitted = {"action": "omitted", "of": action, "who": who, "lines": count - self._max_lines}
                log.info("audit", extra={"audit": {name: value for name, value in omitted.items() if value != ""}})
        self._counts.clear()


audit_log: Final = AuditLog()
record_audit: Final = audit_log.record


class AuditLines(logging.Formatter):
    """One JSON object per line: at (seconds), node, action, who, address, and what the action adds."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Formats an entry as JSON, on one line whatever a peer put into it."""
        entry = getattr(record, "audit", {"action": record.getMessage()})
        return json.dumps({"at": round(record.created, 6), "node": self._node, **entry}, ensure_ascii=True, default=str)


class _AuditFile(logging.StreamHandler[TextIO]):
    """Appends to a file that only its owner can read."""

    def __init__(self, file: Path) -> None:
        super().__init__(os.fdopen(open_private(file, os.O_WRONLY | os.O_APPEND), "a"))

    def close(self) -> None:
        """Closes the file."""
        super().close()
        self.stream.close()


def configure_audit(node: str, folder: Path | None, stream: TextIO | None = None) -> None:
    """Sends audit lines to a file of the node in this folder; without a folder, to its log."""
    close_audit()
    handler: logging.Handler
    if folder is None:
        handler = logging.StreamHandler(stream)
    else:
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        handler = _AuditFile(folder / f"{node.replace('/', '-')}.log")
    handler.setFormatter(AuditLines(node))
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    log.propagate = False


def close_audit() -> None:
    """Writes what is left to say and closes the handlers that `configure_audit` added."""
    audit_log.flush()
    for handler in list(log.handlers):
        log.removeHandler(handler)
        handler.close()
