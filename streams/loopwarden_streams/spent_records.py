"""Records of runs on `control.state` that bind nothing any more: deleted a day later, or the topic grows for ever."""

from __future__ import annotations

from typing import Final

from loopwarden_models.codec import decode_message
from loopwarden_models.control_state import RunRecord
from loopwarden_models.errors import InvalidEvent

# At a time: each is a record of its own, and there is no hurry.
MAX_DELETED: Final = 1_000
_PARTS: Final = 3


class SpentRecords:
    """Knows when each record of a run may go. Fed with every record of the topic, in its order.

    Only what the detector wrote itself goes, and never `killed`: a person releases that. A person's record that came
    later takes the place of the detector's, so it is never deleted with it.

    State: one number for each such record, about 150 bytes.
    """

    def __init__(self, ttl_ms: int) -> None:
        """Let a record go `ttl_ms` after the end of all that it binds."""
        self._ttl_ms = ttl_ms
        self._due_ms: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._due_ms)

    def take(self, key: bytes | None, value: bytes | None, append_ms: int) -> None:
        """Take one record of the topic, whatever it is about, and when the broker got it (Unix milliseconds)."""
        name = (key or b"").decode("utf-8", "replace")
        parts = name.split("|", _PARTS - 1)
        if len(parts) != _PARTS or parts[1] != "run":
            return
        self._due_ms.pop(name, None)
        if value is None:
            return
        try:
            record = decode_message(value, RunRecord)
        except InvalidEvent:
            return  # whoever wrote it may mean something by it
        if record.writer == "detector" and record.state in ("open", "kill_wanted"):
            ends_ms = [append_ms, record.expires_at_ms or 0, *(block.until_ms for block in record.blocked_tools)]
            self._due_ms[name] = max(ends_ms) + self._ttl_ms

    def due(self, now_ms: int) -> list[str]:
        """Return the keys of records that may go, at most `MAX_DELETED`. Cost: O(records), 10 ms for 100,000."""
        return [name for name, due_ms in self._due_ms.items() if due_ms <= now_ms][:MAX_DELETED]
