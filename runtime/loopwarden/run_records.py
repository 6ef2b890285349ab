"""The levels of `control.state`: what binds a run however long ago it was ordered."""

from __future__ import annotations

from msgspec import Struct

from loopwarden.fencing import OPERATOR
from loopwarden_models.commands import ANY_INCARNATION
from loopwarden_models.control_state import RunRecord


class StoredRecord(Struct, frozen=True):
    """A run's record and when the broker appended it (Unix ms)."""

    record: RunRecord
    append_ms: int


class RunRecords:
    """The record in force for each run. For one thread at a time.

    The higher version wins among records of one writer, whatever their order of arrival. Between a person and the
    detector versions mean nothing: a person's record stands until a person's `released`, after which the detector
    may speak again.
    """

    def __init__(self) -> None:
        self._records: dict[str, StoredRecord] = {}

    def __len__(self) -> int:
        return len(self._records)

    def get(self, run_id: str) -> StoredRecord | None:
        """Return the record in force for the run."""
        return self._records.get(run_id)

    def remove(self, run_id: str) -> None:
        """Forget a run whose record was deleted from the topic."""
        self._records.pop(run_id, None)

    def put(self, run_id: str, record: RunRecord, append_ms: int) -> bool:
        """Take a record that was read; returns whether it is now the one in force."""
        new = StoredRecord(record, append_ms)
        old = self._records.get(run_id)
        if old is not None and not _replaces(old, new):
            return False
        self._records[run_id] = new
        return True


def _replaces(old: StoredRecord, new: StoredRecord) -> bool:
    old_is_person = old.record.writer == OPERATOR
    new_is_person = new.record.writer == OPERATOR
    if old_is_person == new_is_person:
        return new.record.version >= old.record.version
    if new_is_person:
        # Read late, a person's release must not lift what the detector has ordered since.
        return new.record.state != "released" or new.append_ms >= old.append_ms
    return old.record.state == "released" and new.append_ms > old.append_ms


def binds(record: RunRecord, incarnation: str, broker_ms: float | None) -> bool:
    """Return whether a run that starts now under `incarnation` is bound by a `kill_wanted`, `killed` or `paused`.

    Args:
        record: The record in force for the run or for one of its ancestors.
        incarnation: Of the run whose record it is; empty if unknown.
        broker_ms: The broker's time; `None` (unknown) lets nothing expire.
    """
    if record.state == "killed":
        # Every later incarnation, whichever it was written for.
        return True
    if record.state not in {"kill_wanted", "paused"}:
        return False
    if record.expires_at_ms is not None and broker_ms is not None and broker_ms >= record.expires_at_ms:
        return False
    return record.state == "paused" or record.incarnation in {ANY_INCARNATION, incarnation} or not incarnation
