"""Reads along on the topics of the demonstration, as a dashboard would: a consumer of its own, without a group."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Final, Self

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError

from loopwarden_models.errors import TransportError
from loopwarden_streams.demo_board import SOURCES, Board, Source
from loopwarden_streams.kafka_client import client_arguments
from loopwarden_streams.settings import Settings

_MAX_RECORDS: Final = 2_000


class Feed:
    """An async context manager; use it in one event loop."""

    def __init__(self, settings: Settings) -> None:
        """Read the topics that `settings` name."""
        self._brokers = settings.brokers
        self._consumer = AIOKafkaConsumer(
            group_id=None, enable_auto_commit=False, auto_offset_reset="earliest", **client_arguments(settings)
        )
        partitions = dict.fromkeys(SOURCES, settings.partitions)
        partitions["control.commands"] = settings.control_partitions
        self._sources: dict[TopicPartition, Source] = {
            TopicPartition(settings.topic(source), number): source
            for source in SOURCES
            for number in range(partitions[source])
        }

    async def __aenter__(self) -> Self:
        try:
            await self._consumer.start()
            self._consumer.assign(list(self._sources))
        except (KafkaError, OSError) as error:
            raise TransportError(f"cannot read along on {self._brokers}: {error!r}") from error
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self._consumer.stop()
        except asyncio.CancelledError:
            # A consumer that is stopped before its tasks have run awaits one that it has cancelled (aiokafka 0.14.0).
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise

    async def read(self, board: Board, timeout_s: float) -> int:
        """Add what has come to `board`, waiting for it at most `timeout_s`; return how many records it was.

        Raises:
            TransportError: The connection failed.
        """
        try:
            batches = await self._consumer.getmany(timeout_ms=int(timeout_s * 1000), max_records=_MAX_RECORDS)
        except (KafkaError, OSError) as error:
            raise TransportError(f"cannot read along on {self._brokers}: {error!r}") from error
        # Commands before their answers, where both came.
        for partition in sorted(batches, key=lambda each: SOURCES.index(self._sources[each])):
            for record in batches[partition]:
                board.read(self._sources[partition], record.partition, record.offset, record.value)
        return sum(map(len, batches.values()))
