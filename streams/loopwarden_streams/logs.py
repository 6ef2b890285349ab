"""Structured logs: one JSON object a line, or plain text for people."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Collection
from datetime import UTC, datetime
from typing import Final

# "abc": where mode's services log if they name no logger of their own.
LIBRARIES: Final = ("faust", "aiokafka", "mode", "kafka", "abc")
REPEAT_EVERY_S: Final = 5.0
MAX_MESSAGES: Final = 1_000


class JsonFormatter(logging.Formatter):
    """Formats a record as one JSON object: time, level, logger, message, and the exception if there is one."""

    def format(self, record: logging.LogRecord) -> str:
        """Return the line for `record`."""
        entry = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return json.dumps(entry, ensure_ascii=False)


class RepeatFilter(logging.Filter):
    """Lets each message of a client library through once in a while, and counts what it holds back.

    While no broker can be reached, aiokafka writes what it tries: two thousand lines a second were seen.
    """

    def __init__(self, libraries: Collection[str]) -> None:
        """Look at the loggers of `libraries` and below."""
        super().__init__()
        self._libraries = frozenset(libraries)
        self._seen: dict[tuple[str, int, str], tuple[float, int]] = {}

    def filter(self, record: logging.LogRecord) -> bool:
        """Return whether `record` is to be written."""
        if record.name.partition(".")[0] not in self._libraries:
            return True
        # The template, not the text: addresses and numbers in it make no other message of it.
        key = (record.name, record.levelno, str(record.msg))
        due, held_back = self._seen.get(key, (0.0, 0))
        if record.created < due:
            self._seen[key] = (due, held_back + 1)
            return False
        if len(self._seen) >= MAX_MESSAGES:
            self._seen.clear()
        self._seen[key] = (record.created + REPEAT_EVERY_S, 0)
        if held_back:
            record.msg, record.args = f"{record.getMessage()} ({held_back} more were held back)", ()
        return True


def configure_logs(level: str, log_format: str) -> None:
    """Send all logs to standard error, Faust's and aiokafka's from warnings on."""
    handler = logging.StreamHandler(sys.stderr)
    if log_format == "json":
        handler.setFormatter(JsonFormatter())
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    logging.basicConfig(level=level.upper(), handlers=[handler], force=True)
    if level != "debug":
        handler.addFilter(RepeatFilter(LIBRARIES))
        for name in LIBRARIES:
            logging.getLogger(name).setLevel(logging.WARNING)
