"""Faust's Kafka transport with one message per (partition, fetch) for the hot topics.

Ordinary Faust delivers one event at a time and carries about ten thousand a second, whatever the work. Here a hot
topic's agent gets a `Batch` of raw records. Everything else about the transport is unchanged.

Hot topics are declared with `acks=False`: streams acknowledge nothing, and the only thing that moves a committed
offset is `BatchConsumer.cover`, called by a checkpoint.

Private methods of `faust-streaming` 0.15 and `aiokafka` 0.14 are overridden. The pins in pyproject.toml hold until
tests/integration/test_transport.py passes on a newer release.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextvars import ContextVar
from typing import Any, ClassVar, Protocol, cast

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from faust.transport.drivers import aiokafka as aiokafka_driver
from faust.types import TP, ConsumerMessage

# A waiting fetch is answered at once when a record comes: this costs an idle worker five requests a second, and no
# latency. judgement
FETCH_MAX_WAIT_MS = 200


class Record(Protocol):
    """A record of a batch, as aiokafka's own parser yields it. `timestamp` is in Unix milliseconds, if there is one."""

    @property
    def offset(self) -> int: ...  # noqa: D102 - Kafka's words
    @property
    def timestamp(self) -> int | None: ...  # noqa: D102
    @property
    def key(self) -> bytes | None: ...  # noqa: D102
    @property
    def value(self) -> bytes | None: ...  # noqa: D102


class Batch:
    """What one fetch brought of one partition: at least one record batch of the log, still packed.

    The thread that judges unpacks it, a chunk at a time: a record lives and dies in one core's cache. Unpacked where
    it was fetched, its way from core to core costs as much as a rule does.

    Attributes:
        last_offset: Everything up to here is in the batch, or does not exist.
        timestamp_ms: The newest that the log gives, in Unix milliseconds.
    """

    __slots__ = ("_first_offset", "_packed", "last_offset", "timestamp_ms")

    def __init__(self, first_offset: int, packed: list[Any]) -> None:
        """Hold the record batches `packed`; their records below `first_offset` were not asked for."""
        self._first_offset = first_offset
        self._packed = packed
        self.last_offset: int = packed[-1].next_offset - 1
        self.timestamp_ms: int = packed[-1].max_timestamp or 0

    def __iter__(self) -> Iterator[Record]:
        """Unpack the records in offset order. Once: aiokafka's batches are spent then. Cost: 0.4 µs for a record."""
        first_offset = self._first_offset
        for batch in self._packed:
            if batch.base_offset >= first_offset:
                yield from batch
            else:
                yield from (record for record in batch if record.offset >= first_offset)


# Topics that the consumer at work wants in batches. Other consumers of the process read the same topics by records.
_batched: ContextVar[frozenset[str]] = ContextVar("_batched", default=frozenset())


class _FetchResult(fetcher.FetchResult):  # type: ignore[misc]  # aiokafka is not typed
    """What was fetched of one partition; of a batched topic it is handed over as it is."""

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> list[Any]:
        if self._topic_partition.topic not in _batched.get():
            return cast("list[Any]", super().getall(max_records))
        if not self.check_assignment(self._topic_partition) or not self.has_more():
            return []
        batch = self._partition_records.take()
        self._update_position()
        self._partition_records = None
        return [] if batch is None else [batch]


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # aiokafka is not typed
    """The record batches of one partition from one fetch."""

    next_fetch_offset: int

    def take(self) -> Batch | None:
        """Return all of them but control batches, `None` if nothing is left.

        Raises:
            CorruptRecordException: A checksum is wrong; the fetch is done again.
        """
        first_offset = self.next_fetch_offset
        packed = []
        while self._records.has_next():
            batch = self._records.next_batch()
            if self._check_crcs and not batch.validate_crc():
                raise CorruptRecordException(f"wrong checksum in {self._tp} at {batch.base_offset}")
            if not batch.is_control_batch:
                packed.append(batch)
            self.next_fetch_offset = batch.next_offset
        return Batch(first_offset, packed) if packed else None


class BatchConsumerThread(aiokafka_driver.AIOKafkaConsumerThread):
    """Waits for records in shorter fetches than the driver's 1.5 s.

    The broker answers the requests of one connection one after the other. Questions about offsets, of which a rebalance
    asks several, share a connection with the fetches, and wait behind one that has nothing to fetch yet.
    """

    def _create_worker_consumer(self, transport: aiokafka_driver.Transport) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_MAX_WAIT_MS  # noqa: SLF001 - the driver has no setting; read at its start
        # A fetch is limited in bytes; counted in records, a batch would have to be unpacked to be cut.
        consumer._max_poll_records = None  # noqa: SLF001
        return consumer

    async def _fetch_records(
        self,
        consumer: AIOKafkaConsumer,
        active_partitions: set[TP],
        timeout: float | None = None,  # noqa: ASYNC109 - the signature of the base class
        max_records: int | None = None,
    ) -> Any:
        _batched.set(cast("BatchConsumer", self.consumer).batched)
        return await super()._fetch_records(consumer, active_partitions, timeout, max_records)


class BatchConsumer(aiokafka_driver.Consumer):
    """Delivers the topics in `batched` as one message per partition and fetch."""

    batched: ClassVar[frozenset[str]] = frozenset()

    def _new_consumer_thread(self) -> BatchConsumerThread:
        return BatchConsumerThread(self, loop=self.loop, beacon=self.beacon)

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        if type(record) is not Batch:
            return super()._to_message(tp, record)
        # The offset of the last record: the drainer compares it with what was read before and books no gap,
        # because acknowledgements are off for this topic.
        return ConsumerMessage(
            tp.topic,
            tp.partition,
            record.last_offset,
            record.timestamp_ms / 1000.0,
            0,
            [],
            None,
            cast("Any", record),
            None,
            0,
            0,
            tp,
            generation_id=self.app.consumer_generation_id,
        )

    def cover(self, tp: TP, offset: int) -> None:
        """Say that everything of `tp` up to and including `offset` is durable and may be committed."""
        self._acked[tp].append(offset)

    async def commit_covered(self) -> None:
        """Commit what was covered up to now.

        Cost: one round trip to the group coordinator; two if the interval's own commit was under way, which
        `commit` waits for instead of doing its work.
        """
        await self.commit()
        if any(self._acked.get(tp) for tp in list(self._acked) if tp.topic in self.batched):
            await self.commit()

    def _new_offset(self, tp: TP) -> int | None:
        if tp.topic not in self.batched:
            return super()._new_offset(tp)
        covered = self._acked[tp]
        if not covered:
            return None
        top = max(covered)
        covered.clear()
        return top + 1

    async def commit_exactly(self, offsets: Mapping[TP, int]) -> bool:
        """Commit `offsets` as they are, also what is committed already, which `commit` would skip.

        Returns:
            False if this worker is no member of the group any more, or one of the partitions is not assigned to it: a
            commit is the one question that the group answers with the truth.

        Cost: one round trip to the group coordinator.
        """
        # Faust leaves out what is not assigned, and ends itself over a commit of nothing. A member that knows of its
        # removal commits as nobody, which the broker accepts as long as the group is empty.
        coordinator = self._thread._ensure_consumer()._coordinator  # noqa: SLF001 - there is no public way to it
        if not offsets.keys() <= self.assignment() or coordinator.generation < 0:
            return False
        return await self._commit(dict(offsets))

    async def committed_offsets(self, partitions: Iterable[TP]) -> dict[TP, int | None]:
        """Return the group's committed offsets, asked from the broker; `None` where there is none."""
        thread = self._thread
        consumer = thread._ensure_consumer()  # noqa: SLF001 - there is no public way through the thread

        async def ask() -> dict[TP, int | None]:
            return {tp: await consumer.committed(TopicPartition(tp.topic, tp.partition)) for tp in partitions}

        return cast("dict[TP, int | None]", await thread.call_thread(ask))


class BatchTransport(aiokafka_driver.Transport):
    """The transport of the detector's app."""

    Consumer: ClassVar[type[BatchConsumer]] = BatchConsumer


def use_batches(app: faust.App, topics: Iterable[str]) -> None:
    """Put the batched transport into `app`, for `topics`.

    Must be called directly after the app was made and before any topic, agent or table: it ends the app's
    configuration phase.
    """
    fetcher.PartitionRecords = _PartitionRecords
    fetcher.FetchResult = _FetchResult
    consumer = type("AppBatchConsumer", (BatchConsumer,), {"batched": frozenset(topics)})
    transport = type("AppBatchTransport", (BatchTransport,), {"Consumer": consumer})
    app.transport = transport(app.conf.broker_consumer, app)
