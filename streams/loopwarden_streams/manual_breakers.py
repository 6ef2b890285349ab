"""What people ordered of breakers, read from `control.state`: the detector leaves it to them to lift it."""

from __future__ import annotations

import asyncio
import logging
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from loopwarden_detectors.fleet_breaker import MANUAL
from loopwarden_detectors.tool_fleet import ToolId
from loopwarden_models.codec import decode_message
from loopwarden_models.control_state import BreakerState, BreakerStateName
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.ids import control_partition
from loopwarden_streams.kafka_client import client_arguments
from loopwarden_streams.persons_records import PersonsRecords
from loopwarden_streams.question_board import QuestionBoard
from loopwarden_streams.settings import Settings
from loopwarden_streams.spent_records import SpentRecords

log = logging.getLogger(__name__)

_AGAIN_S: Final = 2.0
_WAIT_MS: Final = 1_000
_PARTS: Final = 3
_NAMES: Final[dict[str, BreakerStateName]] = {name: name for name in (*MANUAL, "closed")}
_OPERATOR: Final = "operator"


class Order(NamedTuple):
    """What a person wrote last of a breaker: a manual state, or `closed`, which gives it back to the detector.

    Attributes:
        version: People count by themselves.
        append_ms: When the broker got it, Unix milliseconds.
        partition: Of `tool-health`; its owner is meant.
    """

    state: BreakerStateName
    version: list[int]
    append_ms: int
    partition: int


class ManualBreakers:
    """Follows `control.state` without a group, from its beginning. Owned by one event loop.

    Attributes:
        orders: By (tenant, tool). A deleted record is none.
        is_ready: The topic was read to where it ended when the reading began.
    """

    def __init__(
        self,
        settings: Settings,
        spent: SpentRecords | None = None,
        persons: PersonsRecords | None = None,
        questions: QuestionBoard | None = None,
    ) -> None:
        """Prepare; nothing connects yet. What is read goes to the others as well."""
        self._settings = settings
        self._spent = spent
        self._persons = persons
        self._questions = questions
        self.orders: dict[ToolId, Order] = {}
        self.is_ready = False

    async def follow(self) -> None:
        """Read for ever. A broker that is away is asked again; what was ordered stays in force meanwhile."""
        while True:
            try:
                await self._follow()
            except (KafkaError, OSError, TimeoutError) as error:
                log.warning("orders about breakers cannot be read: %r", error)
            await asyncio.sleep(_AGAIN_S)

    async def _follow(self) -> None:
        reader = AIOKafkaConsumer(
            enable_auto_commit=False, auto_offset_reset="earliest", **client_arguments(self._settings)
        )
        await reader.start()
        try:
            topic = self._settings.topic("control.state")
            tps = [TopicPartition(topic, number) for number in range(self._settings.control_partitions)]
            reader.assign(tps)
            ends = await reader.end_offsets(tps)
            await reader.seek_to_beginning(*tps)
            while True:
                if not self.is_ready and all([await reader.position(tp) >= ends[tp] for tp in tps]):
                    self.is_ready = True
                for records in (await reader.getmany(timeout_ms=_WAIT_MS)).values():
                    for record in records:
                        self.take(record.key, record.value, record.timestamp)
                        if self._spent is not None:
                            self._spent.take(record.key, record.value, record.timestamp)
                        if self._persons is not None:
                            self._persons.take(record.key, record.value)
                        if self._questions is not None:
                            self._questions.take(record.key, record.value, record.timestamp)
        finally:
            await reader.stop()

    def take(self, key: bytes | None, value: bytes | None, append_ms: int) -> None:
        """Take one record. Of what is no breaker, and of what the detector writes itself, nothing is kept.

        Of a person's records the highest version holds, whatever the order.
        """
        known = _tool_of(key)
        if known is None:
            return
        if value is None:
            self.orders.pop(known, None)
            return
        try:
            record = decode_message(value, BreakerState)
        except InvalidEvent as error:
            log.warning("the record %r on control.state cannot be read: %s", key, error)
            return
        state = _NAMES.get(record.state)
        if state is None or (state not in MANUAL and record.writer != _OPERATOR):
            return
        order = self.orders.get(known)
        if order is None or record.version >= order.version:
            number = control_partition(known[0], self._settings.partitions)
            self.orders[known] = Order(state, record.version, append_ms, number)


def _tool_of(key: Any) -> ToolId | None:
    if key is None:
        return None
    parts = key.decode("utf-8", "replace").split("|", _PARTS - 1)
    return (parts[0], parts[2]) if len(parts) == _PARTS and parts[1] == "breaker" else None
