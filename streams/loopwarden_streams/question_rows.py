"""A question as scripts and webhooks read it."""

from __future__ import annotations

from typing import Any, Final

import msgspec

from loopwarden_streams.question_book import Entry

_WIRE: Final = frozenset({"v", "key", "version", "sig", "kid"})


def row_of(entry: Entry, now_ms: int) -> dict[str, Any]:
    """Return the fields of a question, how it stands at `now_ms` (Unix ms), and its answer if there is one."""
    row: dict[str, Any] = {
        "tenant": entry.tenant,
        "question_id": entry.question_id,
        "status": entry.status(now_ms),
    }
    if entry.question is not None:
        row |= _fields(entry.question)
    if entry.answer is not None:
        row["answer"] = _fields(entry.answer)
    return row


def _fields(record: msgspec.Struct) -> dict[str, Any]:
    return {name: value for name, value in msgspec.to_builtins(record).items() if name not in _WIRE}
