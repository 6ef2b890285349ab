"""How far behind each partition is, whether it moves, and what was fetched and never came."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

import faust
from aiokafka.errors import KafkaError
from faust.types import TP

from loopwarden_streams.metrics import Metrics
from loopwarden_streams.partition import ACKS, SOURCES, STEPS, Partition
from loopwarden_streams.settings import Settings
from loopwarden_streams.transport import BatchConsumer

log = logging.getLogger(__name__)


class LagWatch:
    """Compares, every few seconds, what the broker has with what was applied."""

    def __init__(
        self, app: faust.App, settings: Settings, partitions: Mapping[int, Partition], metrics: Metrics
    ) -> None:
        """Watch `partitions`."""
        self._app = app
        self._settings = settings
        self._partitions = partitions
        self._metrics = metrics
        self._before: dict[TP, int] = {}
        self._behind_since: dict[TP, float] = {}
        self._waiting_since: dict[TP, float] = {}

    async def look(self) -> None:
        """Measure the lag, and read again what was fetched and lost in a partition that stands still.

        A fetch can be lost without a later batch that would show the hole: then the client's position is beyond what
        was applied, and nothing moves. See `ingest` for holes that show.

        Cost: one request for end offsets, and a call into the consumer thread per partition.
        """
        try:
            await self._look()
        except (KafkaError, TimeoutError) as error:
            # The broker is away, or a rebalance came in between: neither is a reason to end, and we look again.
            log.warning("the lag could not be measured: %r", error)

    async def _look(self) -> None:
        consumer = self._app.consumer
        assert isinstance(consumer, BatchConsumer)  # noqa: S101 - checked at start-up
        tps = {TP(self._settings.topic(s), number): (number, s) for number in self._partitions for s in SOURCES}
        if not tps:
            return
        ends = await consumer.highwaters(*tps)
        now = time.monotonic()
        for tp, (number, source) in tps.items():
            partition = self._partitions.get(number)
            end = ends.get(tp)
            if partition is None or end is None:
                continue
            expected = partition.next_offset[source]
            lag = max(0, end - expected)
            if not lag and source == STEPS:
                partition.caught_up_at = now
            elif not lag and source == ACKS:
                partition.answered_at = now
            stood_still = self._before.get(tp) == expected
            self._before[tp] = expected
            if lag and stood_still:
                is_new = self._behind_since.setdefault(tp, now) == now
                # At the first look the fetch may have come a moment ago, and wait for its turn.
                position = None if is_new else await consumer.position(tp)
                if position is not None and position > expected and self._partitions.get(number) is partition:
                    self._metrics.count_hole("sought")
                    log.info("fetch lost in quiet %s: reading again from offset %d", tp, expected)
                    await consumer.seek_wait({tp: expected})
            else:
                self._behind_since.pop(tp, None)
            age_s = self._commit_age(tp, partition, source, lag, now)
            self._metrics.set_lag(tp.topic, number, records=lag, commit_age_seconds=age_s)
        for tp in [tp for tp in self._behind_since if tp not in tps]:
            del self._behind_since[tp]

    def stuck(self) -> list[str]:
        """Return what has lag and has not moved for longer than allowed, as `topic/partition` texts."""
        limit_s = self._settings.stuck_after_ms / 1000
        now = time.monotonic()
        return [f"{tp.topic}/{tp.partition}" for tp, since in self._behind_since.items() if now - since > limit_s]

    def _commit_age(self, tp: TP, partition: Partition, source: str, lag: int, now: float) -> float:
        """Return for how long something has waited to be committed: a quiet partition has nothing to commit."""
        if not lag and partition.next_offset[source] - 1 <= partition.covered.get(source, -1):
            self._waiting_since.pop(tp, None)
            return 0.0
        return now - max(partition.covered_at, self._waiting_since.setdefault(tp, now))
