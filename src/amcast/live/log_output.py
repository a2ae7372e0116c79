"""What goes to the log, and how often: a stranger must not be able to fill the disk with our complaints.

`complain` writes like `log.warning`, but of each kind only so many lines per while; then one line tells how many were
left out. `configure` chooses between lines for people and one JSON object per line for machines.
"""

import json
import logging
import sys
import time
from typing import Any, Final, Literal, TextIO

log = logging.getLogger("amcast.live")

Format = Literal["text", "json"]
MAX_LINES: Final = 20
WINDOW_S: Final = 5.0
"""At most so many lines of one kind in so many seconds."""


class RateLimitedLog:
    """Counts lines of each kind, and holds back what is too much."""

    def __init__(self, lines: int = MAX_LINES, while_s: float = WINDOW_S) -> None:
        self.suppressed = 0
        self._max_lines = lines
        self._window_s = while_s
        self._kinds: dict[str, tuple[float, int]] = {}
        """Kind -> when its while began, and how many lines it had since."""

    def warn(self, kind: str, text: str, *values: object) -> None:
        """One warning of a kind that a program knows by heart: never make the kind from what a peer sent."""
        now = time.monotonic()
        began, count = self._kinds.get(kind, (now, 0))
        if now - began >= self._window_s:
            if count > self._max_lines:
                log.warning("%d more of %r in %.1f s were not logged", count - self._max_lines, kind, now - began)
            began, count = now, 0
        self._kinds[kind] = (began, count + 1)
        if count < self._max_lines:
            log.warning(text, *values, extra={"kind": kind})
        else:
            self.suppressed += 1

    def reset(self) -> None:
        """Count anew from here."""
        self._kinds.clear()


rate_limited_log: Final = RateLimitedLog()
warn_rate_limited: Final = rate_limited_log.warn


class JsonLines(logging.Formatter):
    """One object per line: at (seconds), node, level, text, and what else a line carries."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """As JSON, on one line whatever the text holds."""
        fields: dict[str, Any] = {
            "at": round(record.created, 6),
            "node": self._node,
            "level": record.levelname.lower(),
            "text": record.getMessage(),
        }
        kind = getattr(record, "kind", None)
        if kind is not None:
            fields["kind"] = kind
        if record.exc_info and record.exc_info[0] is not None:
            fields["error"] = self.formatException(record.exc_info)
        return json.dumps(fields, ensure_ascii=False)


class TextLines(logging.Formatter):
    """For people; what a peer sent cannot break out of its line."""

    def __init__(self, node: str) -> None:
        super().__init__(f"%(asctime)s {node} %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """The line itself, control characters shown and not sent to a terminal."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def configure_logging(node: str, form: Format = "text", stream: TextIO | None = None) -> None:
    """Send this program's log to its standard error, in one of the two forms."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(node) if form == "json" else TextLines(node))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
