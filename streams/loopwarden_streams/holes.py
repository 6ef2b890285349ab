"""Holes in the offsets of a source: read again, or passed over because there is nothing to read."""

from __future__ import annotations

import logging
import time
from typing import Final

import faust
from aiokafka import TopicPartition
from aiokafka.errors import KafkaError
from faust.types import TP

from loopwarden_streams.kafka_client import first_offset
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.partition import TOOLS, Partition
from loopwarden_streams.settings import Settings
from loopwarden_streams.transport import BatchConsumer

log = logging.getLogger(__name__)

SEEK_EVERY_S: Final = 0.5


class Holes:
    """Decides about batches that begin above the expected offset.

    A fetch that was lost on the way comes again after a seek. If the same hole is there after it, the same fetch may
    have been lost once more, or it is real: a transaction marker, or compaction. The log itself is asked then. If the
    log begins above, retention has taken the records.
    """

    def __init__(self, app: faust.App, settings: Settings, metrics: Metrics) -> None:
        """Seek with the consumer of `app`."""
        self._app = app
        self._settings = settings
        self._metrics = metrics

    async def may_pass(self, partition: Partition, source: str, expected: int, first: int) -> bool:
        """Return whether a batch that begins above the expected offset is to be applied. See the class."""
        try:
            return await self._may_skip_hole(partition, source, expected, first)
        except (KafkaError, TimeoutError) as error:
            # The broker is away, or the partition is ours no more: the batch is let go, and will be missed again.
            log.warning("a hole in %s of partition %d could not be looked at: %r", source, partition.number, error)
            return False

    async def _may_skip_hole(self, partition: Partition, source: str, expected: int, first: int) -> bool:
        tp = TP(self._settings.topic(source), partition.number)
        consumer = self._app.consumer
        assert isinstance(consumer, BatchConsumer)  # noqa: S101 - checked at start-up
        if partition.sought.get(source) == (expected, first) and await self._is_real(tp, expected, first):
            self._metrics.count_hole("real")
            log.warning("hole in %s: offsets %d to %d do not exist", tp, expected, first - 1)
            return True
        earliest = (await consumer.earliest_offsets(tp)).get(tp) or 0
        if earliest > expected:
            if source != TOOLS:  # sums are kept for an hour, and are worth nothing any more after a minute
                self._metrics.count_hole("retention", first - expected)
                log.error("retention took offsets %d to %d of %s before they were read", expected, earliest - 1, tp)
            partition.next_offset[source] = earliest
            return first <= earliest or await self._may_skip_hole(partition, source, earliest, first)
        now = time.monotonic()
        if now - partition.sought_at >= SEEK_EVERY_S:
            partition.sought_at = now
            partition.sought[source] = (expected, first)
            self._metrics.count_hole("sought")
            log.info("fetch lost in %s: reading again from offset %d, %d came", tp, expected, first)
            await consumer.seek_wait({tp: expected})
        return False

    async def _is_real(self, tp: TP, expected: int, first: int) -> bool:
        found = await first_offset(self._settings, TopicPartition(tp.topic, tp.partition), expected)
        return found is not None and found >= first
