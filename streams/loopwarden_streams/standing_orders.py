"""What binds now, as `control.state` says: runs, tools and the big switch, with what each writer said last.

A person and the detector count versions by themselves: among records of one writer the highest version wins, and what a
person ordered stands until a person releases it. It is the runtime's own rule that decides here, too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final, Generic, TypeVar

from msgspec import Struct

from loopwarden.fencing import OPERATOR
from loopwarden.run_records import RunRecords
from loopwarden_models.codec import decode_message
from loopwarden_models.control_state import ENFORCEMENT_KEY, BreakerState, EnforcementRecord, RunRecord
from loopwarden_models.errors import InvalidEvent

# What a person sets, and a person alone takes back.
HELD: Final = frozenset({"forced_open", "disabled", "observe_only"})
OBSERVE_ONLY: Final = "observe_only"

R = TypeVar("R", RunRecord, BreakerState, EnforcementRecord)


class Said(Struct, Generic[R], frozen=True):
    """A record and when the broker appended it, in Unix milliseconds."""

    record: R
    append_ms: int


class _Breaker(Struct):
    person: Said[BreakerState] | None = None
    detector: Said[BreakerState] | None = None


class StandingOrders:
    """Takes the records of `control.state` in the order of each partition. Not thread-safe.

    Attributes:
        enforcement: What the big switch says; `None` = it was never touched, so enforcement is on.
        unreadable: Records that are none of the contract.
    """

    def __init__(self) -> None:
        self.enforcement: Said[EnforcementRecord] | None = None
        self.unreadable = 0
        self._runs: dict[str, RunRecords] = {}
        self._breakers: dict[tuple[str, str], _Breaker] = {}
        # Newest version of a person for each key: what comes next has to be higher, whatever is in force.
        self._persons: dict[str, list[int]] = {}

    @property
    def is_enforcing(self) -> bool:
        """Whether the big switch lets commands have an effect."""
        return self.enforcement is None or self.enforcement.record.state != OBSERVE_ONLY

    def put(self, key: bytes | None, value: bytes | None, append_ms: int) -> None:
        """Take one record; `value` is `None` for a deletion. What cannot be read is counted and passed over."""
        name = (key or b"").decode("utf-8", "replace")
        tenant, _, rest = name.partition("|")
        kind, _, subject = rest.partition("|")
        try:
            if name == ENFORCEMENT_KEY:
                self._put_enforcement(name, value, append_ms)
            elif kind == "run":
                self._put_run(name, tenant, subject, value, append_ms)
            elif kind == "breaker":
                self._put_breaker(name, tenant, subject, value, append_ms)
        except InvalidEvent:
            self.unreadable += 1

    def run(self, tenant: str, run_id: str) -> Said[RunRecord] | None:
        """Return the record in force for a run."""
        records = self._runs.get(tenant)
        stored = None if records is None else records.get(run_id)
        return None if stored is None else Said(stored.record, stored.append_ms)

    def breaker(self, tenant: str, tool: str) -> Said[BreakerState] | None:
        """Return the record in force for a tool: what a person holds, else what the detector said since."""
        slots = self._breakers.get((tenant, tool))
        return None if slots is None else _in_force(slots)

    def breakers(self) -> Iterator[tuple[str, str, Said[BreakerState]]]:
        """Yield `(tenant, tool, record in force)`, in order of the names."""
        for (tenant, tool), slots in sorted(self._breakers.items()):
            said = _in_force(slots)
            if said is not None:
                yield tenant, tool, said

    def newest_version(self, key: str) -> list[int] | None:
        """Return the highest version that a person has given a key."""
        return self._persons.get(key)

    def _put_enforcement(self, key: str, value: bytes | None, append_ms: int) -> None:
        if value is None:
            self.enforcement = None
            return
        record = decode_message(value, EnforcementRecord)
        self._note(key, record.version)
        if self.enforcement is None or record.version >= self.enforcement.record.version:
            self.enforcement = Said(record, append_ms)

    def _put_run(self, key: str, tenant: str, run_id: str, value: bytes | None, append_ms: int) -> None:
        records = self._runs.setdefault(tenant, RunRecords())
        if value is None:
            records.remove(run_id)
            return
        record = decode_message(value, RunRecord)
        if record.writer == OPERATOR:
            self._note(key, record.version)
        records.put(run_id, record, append_ms)

    def _put_breaker(self, key: str, tenant: str, tool: str, value: bytes | None, append_ms: int) -> None:
        if value is None:
            self._breakers.pop((tenant, tool), None)
            return
        record = decode_message(value, BreakerState)
        slots = self._breakers.setdefault((tenant, tool), _Breaker())
        said = Said(record, append_ms)
        if record.writer == OPERATOR or record.state in HELD:
            self._note(key, record.version)
            if slots.person is None or record.version >= slots.person.record.version:
                slots.person = said
        elif slots.detector is None or record.version >= slots.detector.record.version:
            slots.detector = said

    def _note(self, key: str, version: list[int]) -> None:
        known = self._persons.get(key)
        if known is None or version > known:
            self._persons[key] = version


def _in_force(slots: _Breaker) -> Said[BreakerState] | None:
    person, detector = slots.person, slots.detector
    if person is None or detector is None:
        return person or detector
    if person.record.state in HELD or detector.append_ms <= person.append_ms:
        return person
    return detector
