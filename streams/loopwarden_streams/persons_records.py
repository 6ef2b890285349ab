"""What people ordered, kept from compaction: a record of the detector on the same key must not be all that is left.

A person and the detector write runs and breakers under one key, and a runtime that reads both knows that the person's
stands. But compaction keeps the last record of a key only. A worker that writes while a person does, or that goes on
blocking tools of a run that a person has killed, would in the end have lifted what only a person may lift. So whoever
finds a standing order of a person under a later record of the detector writes it again, byte for byte: with the
signature that it had.
"""

from __future__ import annotations

import logging
from collections.abc import Container, Sequence
from typing import Final

from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from msgspec import Struct

from loopwarden.fencing import OPERATOR
from loopwarden_models.codec import decode_message
from loopwarden_models.control_state import ENFORCEMENT_KEY, BreakerState, EnforcementRecord, RunRecord
from loopwarden_models.errors import InvalidEvent, TransportError
from loopwarden_models.ids import control_partition
from loopwarden_streams.settings import Settings
from loopwarden_streams.standing_orders import HELD, OBSERVE_ONLY

log = logging.getLogger(__name__)

_BINDING: Final = frozenset({"killed", "kill_wanted", "paused"})
_PARTS: Final = 3
# Runs that people have killed and never released, over all tenants. About 1 KB each; the oldest leave.
MAX_STANDING: Final = 50_000


async def write_again(
    due: Sequence[tuple[bytes, bytes]], settings: Settings, producer: AIOKafkaProducer, owned: Container[int]
) -> None:
    """Write what `PersonsRecords.due` returned, if this worker is the one that does it for the tenant.

    Args:
        due: Key and value of each record.
        settings: Of the worker.
        producer: Of the control topics.
        owned: Partitions of steps that this worker owns: one of them stands for the tenant.

    Raises:
        TransportError: The broker refused it.
    """
    for key, value in due:
        tenant = key.partition(b"|")[0].decode("utf-8", "replace")
        if control_partition(tenant, settings.partitions) not in owned:
            continue
        log.info("what a person ordered, %r, was written over by the detector: it is written again", key)
        number = control_partition(tenant, settings.control_partitions)
        try:
            await producer.send_and_wait(settings.topic("control.state"), key=key, value=value, partition=number)
        except KafkaError as error:
            raise TransportError(f"the record {key!r} of a person could not be written again: {error!r}") from error


class _Standing(Struct, frozen=True):
    value: bytes
    version: list[int]
    expires_at_ms: int | None


class PersonsRecords:
    """Takes the records of `control.state` in the order of each partition. Not thread-safe.

    Attributes:
        is_enforcing: Whether the big switch lets orders have an effect. The detector judges and orders as ever; that
            its orders are noops is for the runtimes to say, and for an alert.
    """

    def __init__(self, *, max_standing: int = MAX_STANDING) -> None:
        self.is_enforcing = True
        self._switched: list[int] = [0, 0]
        self._max_standing = max_standing
        self._standing: dict[bytes, _Standing] = {}
        self._covered: set[bytes] = set()

    def take(self, key: bytes | None, value: bytes | None) -> None:
        """Take one record; what is neither of a run nor of a breaker, or cannot be read, changes nothing."""
        if key is None:
            return
        if key == ENFORCEMENT_KEY.encode():
            self._switch(value)
            return
        if value is None:
            self._forget(key)
            return
        parts = key.split(b"|", _PARTS - 1)
        kind = parts[1] if len(parts) == _PARTS else b""
        try:
            if kind == b"run":
                run = decode_message(value, RunRecord)
                is_binding = run.state in _BINDING
                self._put(key, value, run.version, run.writer == OPERATOR, is_binding, run.expires_at_ms)
            elif kind == b"breaker":
                breaker = decode_message(value, BreakerState)
                is_held = breaker.state in HELD
                self._put(key, value, breaker.version, breaker.writer == OPERATOR or is_held, is_held, None)
        except InvalidEvent:
            return  # the runtimes count it

    def due(self, now_ms: int) -> list[tuple[bytes, bytes]]:
        """Return `(key, value)` of what has to be written again, each once.

        Args:
            now_ms: Unix milliseconds; what has expired by then binds nobody.
        """
        covered, self._covered = self._covered, set()
        found = [(key, self._standing[key]) for key in covered]
        return [(key, one.value) for key, one in found if one.expires_at_ms is None or one.expires_at_ms > now_ms]

    def _switch(self, value: bytes | None) -> None:
        try:
            switch = None if value is None else decode_message(value, EnforcementRecord)
        except InvalidEvent:
            return
        if switch is None:
            self._switched, self.is_enforcing = [0, 0], True
        elif switch.version >= self._switched:
            self._switched, self.is_enforcing = switch.version, switch.state != OBSERVE_ONLY

    def _put(
        self, key: bytes, value: bytes, version: list[int], is_person: bool, binds: bool, expires_at_ms: int | None
    ) -> None:
        standing = self._standing.get(key)
        if not is_person:
            if standing is not None:
                self._covered.add(key)
            return
        if standing is not None and version < standing.version:
            self._covered.add(key)
            return
        self._forget(key)
        if binds:
            self._standing[key] = _Standing(value, version, expires_at_ms)
            if len(self._standing) > self._max_standing:
                self._forget(next(iter(self._standing)))

    def _forget(self, key: bytes) -> None:
        self._standing.pop(key, None)
        self._covered.discard(key)
