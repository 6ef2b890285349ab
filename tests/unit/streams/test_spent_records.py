"""Which records of runs may go, and when."""

from __future__ import annotations

from typing import Any

import pytest

from loopwarden_models.codec import encode
from loopwarden_models.control_state import BlockedTool, RunRecord
from loopwarden_streams.spent_records import MAX_DELETED, SpentRecords

NOW = 1_800_000_000_000
DAY = 86_400_000
KEY = b"acme|run|r1"


def record(state: str, **fields: Any) -> bytes:
    """Return a record of run `r1`."""
    return encode(RunRecord(v=1, key=KEY.decode(), version=[1, 2], state=state, **fields))


def due_of(*values: bytes | None, after_ms: int = DAY) -> list[str]:
    """Return what may go so long after these records of one key were written."""
    spent = SpentRecords(DAY)
    for value in values:
        spent.take(KEY, value, NOW)
    return spent.due(NOW + after_ms)


def test_a_record_that_binds_nothing_goes_a_day_later() -> None:
    """A kill that nobody took up, and a run that ended by itself."""
    assert due_of(record("open")) == ["acme|run|r1"]
    assert due_of(record("open"), after_ms=DAY - 1) == []
    assert due_of(record("kill_wanted", expires_at_ms=NOW + 120_000)) == []
    assert due_of(record("kill_wanted", expires_at_ms=NOW + 120_000), after_ms=DAY + 120_000) == ["acme|run|r1"]
    blocked = record("open", blocked_tools=[BlockedTool("search", NOW + 60_000, "v")])
    assert due_of(blocked) == []
    assert due_of(blocked, after_ms=DAY + 60_000) == ["acme|run|r1"]


@pytest.mark.parametrize("state", ["killed", "paused", "released", "of a later version"])
def test_what_binds_until_somebody_says_otherwise_stays(state: str) -> None:
    """A killed run is brought back months later, and is refused."""
    assert due_of(record("kill_wanted"), record(state), after_ms=1_000 * DAY) == []


def test_what_a_person_wrote_is_lifted_by_a_person_only() -> None:
    """Also where it came after what the detector wrote under the same key."""
    assert due_of(record("open"), record("open", writer="operator"), after_ms=1_000 * DAY) == []


def test_what_is_gone_or_cannot_be_read_is_left_alone() -> None:
    """A deletion is not deleted again; other keys are none of its business."""
    assert due_of(record("open"), None) == []
    assert due_of(record("open"), b"{") == []
    spent = SpentRecords(DAY)
    for key in (None, b"", b"acme|breaker|search", b"*|fence|3", b"run"):
        spent.take(key, record("open"), NOW)
    assert len(spent) == 0


def test_many_go_in_turns() -> None:
    """The rest at the next look."""
    spent = SpentRecords(DAY)
    for n in range(MAX_DELETED + 5):
        spent.take(b"acme|run|r%d" % n, record("open"), NOW)

    assert len(spent.due(NOW + DAY)) == MAX_DELETED
