"""Log output: its rate and its format. A peer must not be able to fill the disk with warnings.

`warn_rate_limited` writes like `log.warning`, but only a limited number of lines of each kind per window; a later line
says how many were suppressed. `configure_logging` selects lines of text or one JSON object per line.
"""

import json
import logging
import sys
import time
from collections.abc import Callable
from typing import Any, Final, Literal, TextIO

log = logging.getLogger("amcast.live")

Format = Literal["text", "json"]
MAX_LINES: Final = 20
WINDOW_S: Final = 5.0
"""At most MAX_LINES lines of one kind are logged in WINDOW_S seconds."""


class RateLimitedLog:
    """Counts lines of each kind and suppresses those over the limit."""

    def __init__(
        self,
        max_lines: int = MAX_LINES,
        window_s: float = WINDOW_S,
        read_clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.suppressed = 0
        self._read_clock = read_clock
        self._max_lines = max_lines
        self._window_s = window_s
        self._kinds: dict[str, tuple[float, int]] = {}
        """Kind -> start of its window, and number of lines since."""

    def warn(self, kind: str, text: str, *values: object) -> None:
        """Logs one warning. The kind must be a constant of the program, never text from a peer."""
        now = self._read_clock()
        began, count = self._kinds.get(kind, (now, 0))
        if now - began >= self._window_s:
            if count > self._max_lines:
                log.warning(
                    "%d more lines of kind %r were suppressed in %.1f s", count - self._max_lines, kind, now - began
                )
            began, count = now, 0
        self._kinds[kind] = (began, count + 1)
        if count < self._max_lines:
            log.warning(text, *values, extra={"kind": kind})
        else:
            self.suppressed += 1

    def reset(self) -> None:
        """Starts new windows."""
        self._kinds.clear()


rate_limited_log: Final = RateLimitedLog()
warn_rate_limited: Final = rate_limited_log.warn


class JsonLines(logging.Formatter):
    """One JSON object per line: at (seconds), node, level, text, kind, error."""

    def __init__(self, node: str) -> None:
        super().__init__()
        self._node = node

    def format(self, record: logging.LogRecord) -> str:
        """Formats a record as JSON, on one line whatever its text contains."""
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
    """Lines of text; text from a peer cannot break out of its line."""

    def __init__(self, node: str) -> None:
        super().__init__(f"%(asctime)s {node} %(levelname)s %(message)s")

    def formatMessage(self, record: logging.LogRecord) -> str:  # noqa: N802
        """Formats the line with control characters escaped."""
        line = super().formatMessage(record)
        return line if line.isprintable() else "".join(c if c.isprintable() else repr(c)[1:-1] for c in line)


def configure_logging(node: str, form: Format = "text", stream: TextIO | None = None) -> None:
    """Sends this program's log to its standard error, in one of the two formats."""
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(JsonLines(node) if form == "json" else TextLines(node))
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(logging.INFO)
