"""Faust's Kafka transport with one message per (partition, fetch) for the hot topics.

Ordinary Faust delivers one event at a time and carries about ten thousand a second, whatever the work. Here a hot
topic's agent gets a `Batch` of raw records. Everything else about the transport is unchanged.

Hot topics are declared with `acks=False`: streams acknowledge nothing, and the only thing that moves a committed
offset is `BatchConsumer.cover`, called by a checkpoint.

Private methods of `faust-streaming` 0.15 and `aiokafka` 0.14 are overridden. The pins in pyproject.toml hold until
tests/integration/test_transport.py passes on a newer release.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, ClassVar, cast

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.consumer import fetcher
from faust.transport.drivers import aiokafka as aiokafka_driver
from faust.types import TP, ConsumerMessage
from msgspec import Struct

# A waiting fetch is answered at once when a record comes: this costs an idle worker five requests a second, and no
# latency. judgement
FETCH_MAX_WAIT_MS = 200


class Record(Struct, gc=False):
    """A record of a fetch, with what our topics use. Times are Unix milliseconds.

    It takes the place of aiokafka's own class, a frozen dataclass of eleven fields that costs a microsecond to make:
    a fifteenth of all that a worker spends on an event.
    """

    topic: str
    partition: int
    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: tuple[tuple[str, bytes], ...] = ()
    checksum: int | None = None
    serialized_key_size: int = -1
    serialized_value_size: int = -1


class _PartitionRecords(fetcher.PartitionRecords):  # type: ignore[misc]  # aiokafka is not typed
    """Records of one partition from one fetch, unpacked into `Record`."""

    def _consumer_record(self, tp: Any, record: Any) -> Record:
        return Record(
            tp.topic,
            tp.partition,
            record.offset,
            record.timestamp,
            record.timestamp_type,
            record.key,
            record.value,
            tuple(record.headers),
        )


class Batch(list[Record]):
    """Raw records of one partition from one fetch: never empty, in offset order."""

    __slots__ = ()


class BatchConsumerThread(aiokafka_driver.AIOKafkaConsumerThread):
    """Waits for records in shorter fetches than the driver's 1.5 s.

    The broker answers the requests of one connection one after the other. Questions about offsets, of which a rebalance
    asks several, share a connection with the fetches, and wait behind one that has nothing to fetch yet.
    """

    def _create_worker_consumer(self, transport: aiokafka_driver.Transport) -> AIOKafkaConsumer:
        consumer = super()._create_worker_consumer(transport)
        consumer._fetch_max_wait_ms = FETCH_MAX_WAIT_MS  # noqa: SLF001 - the driver has no setting; read at its start
        return consumer


class BatchConsumer(aiokafka_driver.Consumer):
    """Delivers the topics in `batched` as one message per partition and fetch."""

    batched: ClassVar[frozenset[str]] = frozenset()

    def _new_consumer_thread(self) -> BatchConsumerThread:
        return BatchConsumerThread(self, loop=self.loop, beacon=self.beacon)

    async def _getmany(self, active_partitions: set[TP] | None, timeout: float) -> dict[TP, Any]:  # noqa: ASYNC109 - the signature of the base class, called by keyword
        fetched = await super()._getmany(active_partitions=active_partitions, timeout=timeout)
        return {
            tp: [Batch(records)] if records and tp.topic in self.batched else records for tp, records in fetched.items()
        }

    def _to_message(self, tp: TP, record: Any) -> ConsumerMessage:
        if type(record) is not Batch:
            return super()._to_message(tp, record)
        last = record[-1]
        # The offset of the last record: the drainer compares it with what was read before and books no gap,
        # because acknowledgements are off for this topic.
        return ConsumerMessage(
            last.topic,
            last.partition,
            last.offset,
            last.timestamp / 1000.0,
            last.timestamp_type,
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
    configuration phase. Process-wide, all aiokafka consumers deliver `Record` from then on.
    """
    fetcher.PartitionRecords = _PartitionRecords
    consumer = type("AppBatchConsumer", (BatchConsumer,), {"batched": frozenset(topics)})
    transport = type("AppBatchTransport", (BatchTransport,), {"Consumer": consumer})
    app.transport = transport(app.conf.broker_consumer, app)
