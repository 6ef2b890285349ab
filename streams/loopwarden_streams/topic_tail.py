"""Topics read by a plain consumer of our own: from a chosen place to their end, and then on. Joins no group."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, Literal

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError

from loopwarden_models.errors import ConfigError, TransportError
from loopwarden_streams.kafka_client import client_arguments
from loopwarden_streams.settings import Settings

Start = Literal["beginning", "end"] | int
"""Where reading begins: at an end of the topic, or with the first record of a time in Unix milliseconds."""

Records = list[ConsumerRecord[bytes, bytes]]

_FETCH_BYTES: Final = 8_388_608  # of one partition; the client's own 1 MB is a round trip per thousand records
_MAX_RECORDS: Final = 5_000
_WAIT_MS: Final = 1_000
# A partition without a leader looks like one without records.
_STALLED_AFTER_S: Final = 60.0


class TopicTail:
    """Reads all partitions of some topics. One event loop owns it.

    Attributes:
        partitions: Number of partitions by topic, known after `open`.
    """

    def __init__(self, settings: Settings, starts: Mapping[str, Start]) -> None:
        """Read the topics that `starts` names in full, each from where it says."""
        self._settings = settings
        self._starts = starts
        self._consumer: AIOKafkaConsumer | None = None
        self.partitions: dict[str, int] = {}

    async def open(self) -> None:
        """Connect, and go to where reading begins.

        Raises:
            ConfigError: A topic does not exist.
            TransportError: The brokers cannot be reached.
        """
        try:
            self.partitions = await self._look_up()
            await self._seek()
        except (KafkaError, OSError) as error:
            await self.close()
            raise TransportError(
                f"brokers {self._settings.brokers}: {error}; are they up, and reachable from here?"
            ) from error

    async def close(self) -> None:
        """Disconnect."""
        if self._consumer is not None:
            await self._consumer.stop()
            self._consumer = None

    async def to_end(self) -> Records:
        """Return what lies between the position and where the topics end now, in order within each partition.

        Raises:
            TransportError: The brokers cannot be reached, or gave nothing for a minute although there is more.
        """
        consumer = self._opened()
        records: Records = []
        try:
            ends = await consumer.end_offsets(consumer.assignment())
            moved_at = time.monotonic()
            while left := [tp for tp, end in ends.items() if await consumer.position(tp) < end]:
                fetched = await consumer.getmany(*left, timeout_ms=_WAIT_MS, max_records=_MAX_RECORDS)
                if fetched:
                    moved_at = time.monotonic()
                elif time.monotonic() - moved_at > _STALLED_AFTER_S:
                    raise TransportError(f"no record for {_STALLED_AFTER_S:g} s, although there is more: {left}")
                records += [record for some in fetched.values() for record in some]
        except KafkaError as error:
            raise TransportError(f"{self._settings.brokers}: {error}") from error
        return records

    async def next(self, timeout_s: float) -> Records:
        """Return what came, as soon as anything did, or nothing after `timeout_s`.

        Raises:
            TransportError: The brokers cannot be reached.
        """
        try:
            fetched = await self._opened().getmany(timeout_ms=int(timeout_s * 1000), max_records=_MAX_RECORDS)
        except KafkaError as error:
            raise TransportError(f"{self._settings.brokers}: {error}") from error
        return [record for some in fetched.values() for record in some]

    def _opened(self) -> AIOKafkaConsumer:
        assert self._consumer is not None, "open() was not called"  # noqa: S101 - a fault of ours
        return self._consumer

    async def _look_up(self) -> dict[str, int]:
        # All topics are asked for: naming one that is unknown would make it, where brokers make topics on demand.
        admin = AIOKafkaAdminClient(**client_arguments(self._settings))
        try:
            await admin.start()
            known = {topic["topic"]: len(topic["partitions"]) for topic in await admin.describe_topics()}
        finally:
            await admin.close()
        missing = [name for name in self._starts if name not in known]
        if missing:
            raise ConfigError(
                f"topic {', '.join(missing)} does not exist on {self._settings.brokers}: run `loopwarden topics`, or "
                "name the right --topic-prefix and --app-id"
            )
        return {name: known[name] for name in self._starts}

    async def _seek(self) -> None:
        consumer = self._consumer = AIOKafkaConsumer(
            group_id=None,
            enable_auto_commit=False,
            # Only where retention takes away records between the look and the read.
            auto_offset_reset="earliest",
            max_partition_fetch_bytes=_FETCH_BYTES,
            **client_arguments(self._settings),
        )
        await consumer.start()
        by_topic = {name: [TopicPartition(name, n) for n in range(count)] for name, count in self.partitions.items()}
        consumer.assign([tp for tps in by_topic.values() for tp in tps])
        for name, tps in by_topic.items():
            for tp, offset in (await self._offsets(consumer, tps, self._starts[name])).items():
                consumer.seek(tp, offset)

    async def _offsets(self, consumer: AIOKafkaConsumer, tps: list[Any], start: Start) -> dict[Any, int]:
        if start == "beginning":
            return dict(await consumer.beginning_offsets(tps))
        ends: dict[Any, int] = await consumer.end_offsets(tps)
        if start == "end":
            return ends
        found = await consumer.offsets_for_times(dict.fromkeys(tps, start))
        return {tp: ends[tp] if found.get(tp) is None else found[tp].offset for tp in tps}


@asynccontextmanager
async def tail(settings: Settings, starts: Mapping[str, Start]) -> AsyncIterator[TopicTail]:
    """Open a `TopicTail` for the length of a `with` block.

    Raises:
        ConfigError: As `TopicTail.open`.
        TransportError: Likewise.
    """
    reader = TopicTail(settings, starts)
    await reader.open()
    try:
        yield reader
    finally:
        await asyncio.shield(reader.close())
