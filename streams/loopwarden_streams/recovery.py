"""Taking over partitions: state from the recovered table, a new epoch, and the fence, before anything is read."""

from __future__ import annotations

import logging
import time
from typing import NamedTuple

import faust
from aiokafka import AIOKafkaConsumer, TopicPartition
from faust.types import TP

from loopwarden_models.errors import StateCorrupt
from loopwarden_streams.kafka_client import client_arguments
from loopwarden_streams.landing_store import LandingStore
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import SOURCES, STEPS, TOOLS, Partition, has_wall_clock_limit
from loopwarden_streams.policy_follower import PolicyInForce
from loopwarden_streams.settings import Settings
from loopwarden_streams.snapshots import (
    POSITION_KEY,
    Position,
    decode_position,
    decode_snapshot,
    decode_task,
    decode_tenant,
    decode_tool,
    epoch_of,
    is_task,
    is_tenant,
    is_tool,
    shared_mark,
)
from loopwarden_streams.transport import BatchConsumer

log = logging.getLogger(__name__)


class Start(NamedTuple):
    """Where reading begins without a position record."""

    offset: int
    is_committed: bool


class Recovery:
    """Rebuilds the partitions that this worker owns after each rebalance."""

    def __init__(
        self,
        app: faust.App,
        settings: Settings,
        rules: PolicyInForce,
        outbox: Outbox,
        metrics: Metrics,
        *,
        changelog: str,
    ) -> None:
        """Rebuild from the landing store of the run table, whose changelog topic is `changelog`."""
        self._app = app
        self._settings = settings
        self._rules = rules
        self._outbox = outbox
        self._metrics = metrics
        self._changelog = changelog

    async def rebuild(self, store: LandingStore) -> dict[int, Partition]:
        """Return the owned partitions, each fenced and with the offsets that must come next.

        Raises:
            StateCorrupt: The snapshots of a partition cannot be read, or its position record does not agree with them
                even when the changelog is read anew.
            TransportError: A fence was refused.
        """
        started = time.monotonic()
        consumer = self._app.consumer
        assert isinstance(consumer, BatchConsumer)  # noqa: S101 - checked at start-up
        steps_topic = self._settings.topic(STEPS)
        numbers = sorted(tp.partition for tp in consumer.assignment() if tp.topic == steps_topic)
        sources = [TP(self._settings.topic(source), number) for number in numbers for source in SOURCES]
        starts = await self._starts(sources)
        tools_topic = self._settings.topic(TOOLS)
        asked = [TP(topic, number) for topic in (steps_topic, tools_topic) for number in numbers]
        ends = await consumer.highwaters(*asked) if asked else {}
        partitions: dict[int, Partition] = {}
        for number in numbers:
            partition = await self._rebuild_one(number, store, starts)
            partition.replay_until = ends.get(TP(steps_topic, number)) or 0
            partition.tools_until = ends.get(TP(tools_topic, number)) or 0
            await self._outbox.announce(partition)
            partitions[number] = partition
        # Where the group has no offset yet, the client would choose one of its own. A partition that was never
        # covered is committed as it stands, so that the seek which follows lands on the same offset.
        first = {
            tp: partitions[tp.partition].next_offset[self._source(tp)]
            for tp, start in starts.items()
            if not start.is_committed
        }
        if first:
            await consumer.commit_exactly(first)
        runs = sum(len(partition.trees) for partition in partitions.values())
        self._metrics.observe_recovery(time.monotonic() - started)
        self._metrics.set_owned(numbers)
        log.info("own partitions %s with %d run trees", numbers, runs)
        return partitions

    async def _starts(self, sources: list[TP]) -> dict[TP, Start]:
        """Return where each source goes on: at the committed offset, or where the settings let a new group begin.

        Asked for all at once: on the connection that also carries fetches, a question waits behind a fetch that has
        nothing to fetch yet.
        """
        consumer = self._app.consumer
        assert isinstance(consumer, BatchConsumer)  # noqa: S101 - checked at start-up
        committed = await consumer.committed_offsets(sources)
        fresh = [tp for tp, offset in committed.items() if offset is None]
        ask = consumer.highwaters if self._settings.start_at == "latest" else consumer.earliest_offsets
        begins = await ask(*fresh) if fresh else {}
        return {
            tp: Start(begins.get(tp) or 0, is_committed=False) if offset is None else Start(offset, is_committed=True)
            for tp, offset in committed.items()
        }

    async def _rebuild_one(self, number: int, store: LandingStore, starts: dict[TP, Start]) -> Partition:
        snapshots = store.by_partition.get(number, {})
        partition, position = self._decode(number, snapshots)
        if not _agrees(partition, position):
            log.error(
                "partition %d: %d snapshots were recovered, the position record says %d; the changelog is read again",
                number,
                len(partition.trees),
                position.count if position else 0,
            )
            self._metrics.count_recovery_fault("repaired")
            snapshots = await self._read_changelog(number)
            store.by_partition[number] = snapshots
            partition, position = self._decode(number, snapshots)
            if not _agrees(partition, position):
                # What is gone is gone from the broker, too: go on with what is there, and say so loudly.
                log.error("partition %d: the changelog itself lacks snapshots; their runs start afresh", number)
                partition.xor = _xor(partition)
        for source in SOURCES:
            saved = None if position is None else position.of(source)
            covered = starts[TP(self._settings.topic(source), number)].offset - 1 if saved is None else saved
            partition.covered[source] = covered
            partition.next_offset[source] = covered + 1
        # An owner commits where it begins (`rebuild`) before it tells of anything. One that cannot is a member no more:
        # whoever tells of the same steps, the owner of a tool counts no call twice (`ToolState.admit`).
        partition.was_owned = position is not None or starts[TP(self._settings.topic(STEPS), number)].is_committed
        stored = max((epoch_of(value) for value in snapshots.values()), default=-1)
        partition.epoch = max(self._app.consumer_generation_id, stored + 1, 0)
        store.epochs[number] = max(stored, store.epochs.get(number, -1))
        return partition

    def _decode(self, number: int, snapshots: dict[bytes, bytes]) -> tuple[Partition, Position | None]:
        partition = Partition(number=number, epoch=0, next_offset={}, policy=self._rules.policy)
        position: Position | None = None
        for key, value in snapshots.items():
            if key == POSITION_KEY:
                position = decode_position(value)
                continue
            try:
                if is_tool(key):
                    tool = decode_tool(key, value)
                    partition.tools.restore([tool])
                    partition.saved(key, shared_mark(key, tool))
                    continue
                if is_task(key):
                    task = decode_task(key, value)
                    partition.tasks.restore([task])
                    partition.saved(key, shared_mark(key, task))
                    continue
                if is_tenant(key):
                    tenant = decode_tenant(key, value)
                    partition.tenants.restore([tenant])
                    partition.saved(key, shared_mark(key, tenant))
                    continue
                tree, mark = decode_snapshot(key, value)
            except StateCorrupt:
                log.exception("a snapshot of partition %d cannot be read; its run, tool or task starts afresh", number)
                self._metrics.count_recovery_fault("corrupt")
                continue
            partition.trees[key] = tree
            partition.saved(key, mark)
            if has_wall_clock_limit(tree):
                partition.timed.add(key)
            partition.watermark_ms = max(partition.watermark_ms, tree.now_ms)
        if position is not None:
            partition.watermark_ms = max(partition.watermark_ms, position.watermark_ms)
        return partition, position

    async def _read_changelog(self, number: int) -> dict[bytes, bytes]:
        """Read one partition of the changelog from its beginning to its end, past Faust's recovery."""
        tp = TopicPartition(self._changelog, number)
        reader = AIOKafkaConsumer(
            enable_auto_commit=False, auto_offset_reset="earliest", **client_arguments(self._settings)
        )
        await reader.start()
        snapshots: dict[bytes, bytes] = {}
        newest = -1
        try:
            reader.assign([tp])
            end = (await reader.end_offsets([tp]))[tp]
            await reader.seek_to_beginning(tp)
            while await reader.position(tp) < end:
                for record in (await reader.getmany(tp, timeout_ms=1000)).get(tp, []):
                    if record.key is None:
                        continue
                    if record.value is None:
                        snapshots.pop(record.key, None)
                    elif epoch_of(record.value) >= newest:
                        newest = epoch_of(record.value)
                        snapshots[record.key] = record.value
        finally:
            await reader.stop()
        return snapshots

    def _source(self, tp: TP) -> str:
        return next(source for source in SOURCES if tp.topic == self._settings.topic(source))


def _agrees(partition: Partition, position: Position | None) -> bool:
    """Return whether the snapshots are those that the position record was written for, or newer ones of a crash.

    A crash between the snapshots and the position record leaves newer stamps under an older record: then the count
    may differ by the runs that were new or over, and the XOR says nothing. Such a tail carries stamps beyond the
    covered offset, and a hole does not.
    """
    if position is None:
        return True
    if len(partition.marks) == position.count and partition.xor == position.xor:
        return True
    if any(tree.steps_offset > position.steps or tree.acks_offset > position.acks for tree in partition.trees.values()):
        return True
    newest = -1 if position.tools is None else position.tools
    offsets = (
        *(tool.offset for tool in partition.tools.tools.values()),
        *(task.offset for task in partition.tasks.tasks.values()),
        *(tenant.offset for tenant in partition.tenants.tenants.values()),
    )
    return any(offset > newest for offset in offsets)


def _xor(partition: Partition) -> int:
    total = 0
    for value in partition.marks.values():
        total ^= value
    return total
