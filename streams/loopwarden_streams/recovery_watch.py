"""Sees to it that a recovery comes to its end: what was fetched and lost on the way is read again."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any, cast

import faust
from aiokafka.errors import KafkaError
from faust.types import TP

from loopwarden_streams.metrics import Metrics
from loopwarden_streams.settings import Settings
from loopwarden_streams.transport import BatchConsumer

log = logging.getLogger(__name__)


class RecoveryWatch:
    """Looks, every second or two, whether Faust's recovery of the snapshots moves.

    Around a rebalance whole fetches are lost, those of the changelog too, and Faust waits for their records for ever
    (seen on Apache Kafka: 2 of 4 partitions without a record until the process was ended).
    """

    def __init__(self, app: faust.App, settings: Settings, is_ready: Callable[[], bool], metrics: Metrics) -> None:
        """Watch the recovery of `app`, which is over as long as `is_ready` says so."""
        self._app = app
        self._settings = settings
        self._is_ready = is_ready
        self._metrics = metrics
        self._before: dict[TP, int] = {}
        self._generation = -1
        self._moved_at = time.monotonic()

    async def look(self) -> None:
        """Read again what a partition waits for, if it has stood still since the last look.

        Cost: nothing while the worker is ready; else a call into the consumer thread for each partition that waits.
        """
        # Faust's interface does not name what it keeps about a recovery.
        recovery = cast("Any", self._app.tables).recovery
        read: dict[TP, int] = {
            tp: recovery.active_offsets[tp] for tp, left in recovery.active_remaining().items() if left > 0
        }
        generation = self._app.consumer_generation_id
        if self._is_ready() or read != self._before or generation != self._generation:
            self._moved_at = time.monotonic()
        elif recovery.in_recovery:
            try:
                await self._read_again(read)
            except (KafkaError, TimeoutError) as error:
                # The broker is away, or the group rebalances again.
                log.warning("the recovery could not be looked at: %r", error)
        self._before, self._generation = read, generation

    def stuck(self) -> list[str]:
        """Return `["recovery"]` if the worker is not ready and has got no further for longer than allowed."""
        stood_s = time.monotonic() - self._moved_at
        return ["recovery"] if not self._is_ready() and stood_s > self._settings.stuck_after_ms / 1000 else []

    async def _read_again(self, read: dict[TP, int]) -> None:
        consumer = self._app.consumer
        assert isinstance(consumer, BatchConsumer)  # noqa: S101 - checked at start-up
        for tp, offset in read.items():
            position = await consumer.position(tp)
            # Faust begins at the newest record it has, and skips it.
            if position is not None and position > offset + 1 and tp in consumer.assignment():
                self._metrics.count_hole("sought")
                log.info("fetch lost in %s while it was recovered: reading again from offset %d", tp, max(offset, 0))
                await consumer.seek_wait({tp: max(offset, 0)})
