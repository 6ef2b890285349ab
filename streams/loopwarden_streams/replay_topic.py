"""Recorded steps from a Kafka topic: what it holds now, and then an end. Joins no group and commits nothing."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Self

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from loopwarden_models.errors import ConfigError, TransportError
from loopwarden_streams.kafka_client import client_arguments
from loopwarden_streams.replay_core import Source, SourceRecord
from loopwarden_streams.settings import Settings

_MAX_RECORDS: Final = 5_000
_FETCH_BYTES: Final = 8_388_608  # of one partition; the client's own 1 MB is a round trip per thousand events
_WAIT_MS: Final = 1_000
# A partition without a leader looks like one without records.
_STALLED_AFTER_S: Final = 60.0

# What the client has to say comes as an exception too; without a handler its log would be printed besides.
logging.getLogger("aiokafka").addHandler(logging.NullHandler())


@dataclass(frozen=True, slots=True)
class Span:
    """Part of a topic by the broker's record timestamps, both ends included, in Unix milliseconds."""

    from_ms: int | None = None
    to_ms: int | None = None

    def holds(self, timestamp_ms: int) -> bool:
        """Return whether a record of this time belongs to the span."""
        return (self.from_ms is None or timestamp_ms >= self.from_ms) and (
            self.to_ms is None or timestamp_ms <= self.to_ms
        )


class TopicReader:
    """Reads every partition of a topic from its beginning to where it ended when `open` was called.

    A context manager: it holds connections and an event loop of its own, which runs only inside its methods. Not
    thread-safe.

    Attributes:
        total: Offsets to read, known after `open`: an upper bound of the records.
    """

    def __init__(self, settings: Settings, topic: str, span: Span) -> None:
        self._settings = settings
        self._topic = topic
        self._span = span
        self._runner = asyncio.Runner()
        self._consumer: AIOKafkaConsumer | None = None
        self._ends: dict[TopicPartition, int] = {}
        self.total = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        try:
            if self._consumer is not None:
                self._runner.run(self._consumer.stop())
        finally:
            self._runner.close()

    def open(self) -> None:
        """Connect and find out what there is to read.

        Raises:
            ConfigError: The topic does not exist.
            TransportError: The brokers cannot be reached.
        """
        self._run(self._open())

    def blocks(self, advance: Callable[[int], None]) -> Iterator[list[SourceRecord]]:
        """Yield the records, partition by partition as they come; within one partition in order.

        Args:
            advance: Called with the number of records that were read.

        Raises:
            TransportError: The brokers cannot be reached, or gave nothing for a minute although there is more.
        """
        ahead_ms = self._settings.max_clock_ahead_ms
        sources = {tp: Source(tp.topic, tp.partition, is_topic=True) for tp in self._ends}
        moved_at = time.monotonic()
        while self._ends:
            fetched: dict[TopicPartition, list[ConsumerRecord[bytes, bytes]]] = self._run(self._fetch())
            if fetched:
                moved_at = time.monotonic()
            elif time.monotonic() - moved_at > _STALLED_AFTER_S:
                left = ", ".join(f"{tp.topic}/{tp.partition}" for tp in self._ends)
                raise TransportError(f"no record for {_STALLED_AFTER_S:g} s, although more was there at first: {left}")
            for tp, records in fetched.items():
                end = self._ends[tp]
                advance(len(records))
                yield [
                    SourceRecord(
                        record.value, sources[tp], record.offset, _latest_ms(record.timestamp, ahead_ms), record.key
                    )
                    for record in records
                    if record.offset < end and self._span.holds(record.timestamp)
                ]
            self._run(self._drop_finished())

    def _run(self, work: Any) -> Any:
        try:
            return self._runner.run(work)
        except KafkaError as error:
            raise TransportError(f"{self._settings.brokers}: {error}") from None

    async def _open(self) -> None:
        partitions = await self._partitions()
        self._consumer = consumer = AIOKafkaConsumer(
            group_id=None,
            enable_auto_commit=False,
            # Only where retention takes away records between the look and the read.
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
            **client_arguments(self._settings),
        )
        await consumer.start()
        first = await consumer.beginning_offsets(partitions)
        ends = await consumer.end_offsets(partitions)
        if self._span.from_ms is not None:
            found = await consumer.offsets_for_times(dict.fromkeys(partitions, self._span.from_ms))
            first = {tp: found[tp].offset if found.get(tp) is not None else ends[tp] for tp in partitions}
        self._ends = {tp: ends[tp] for tp in partitions if first[tp] < ends[tp]}
        self.total = sum(ends[tp] - first[tp] for tp in self._ends)
        if self._ends:
            consumer.assign(list(self._ends))
        for tp in self._ends:
            consumer.seek(tp, first[tp])

    async def _partitions(self) -> list[TopicPartition]:
        # All topics are asked for: naming one that is unknown would make it, where brokers make topics on demand.
        admin = AIOKafkaAdminClient(**client_arguments(self._settings))
        try:
            await admin.start()
            known = {topic["topic"]: topic["partitions"] for topic in await admin.describe_topics()}
        finally:
            await admin.close()
        if self._topic not in known:
            raise ConfigError(f"topic {self._topic!r} does not exist on {self._settings.brokers}")
        return [TopicPartition(self._topic, each["partition"]) for each in known[self._topic]]

    async def _fetch(self) -> dict[TopicPartition, list[ConsumerRecord[bytes, bytes]]]:
        assert self._consumer is not None  # noqa: S101 - open() made it
        fetched: dict[TopicPartition, list[ConsumerRecord[bytes, bytes]]] = await self._consumer.getmany(
            *self._ends, timeout_ms=_WAIT_MS, max_records=_MAX_RECORDS
        )
        return fetched

    async def _drop_finished(self) -> None:
        """Leave partitions that were read to their end. The position says it: the last offsets may hold no record."""
        assert self._consumer is not None  # noqa: S101 - open() made it
        for tp, end in list(self._ends.items()):
            if await self._consumer.position(tp) >= end:
                del self._ends[tp]
                self._consumer.pause(tp)


def _latest_ms(timestamp_ms: int, ahead_ms: int) -> int | None:
    """Return the bound of a step's time, as the worker has it: none where a producer gave no time (-1)."""
    return timestamp_ms + ahead_ms if timestamp_ms >= 0 else None
