"""Checkpoints: changed runs become snapshots, and only then the source offsets that they cover are committed.

Order is everything here. Decisions first (the broker has them), then snapshots, deletions and the position record,
then the offsets. A crash between any two of these replays events that are skipped by their stamps.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Mapping
from itertools import islice

import faust
from aiokafka import AIOKafkaProducer
from aiokafka.errors import KafkaError
from faust.types import TP

from loopwarden_detectors.task_fleet import TaskId
from loopwarden_detectors.tool_fleet import ToolId
from loopwarden_models.errors import TransportError
from loopwarden_streams.batch_writer import Out, write_batch
from loopwarden_streams.metrics import Metrics
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import SOURCES, Partition
from loopwarden_streams.settings import Settings
from loopwarden_streams.shared_out import SharedOut
from loopwarden_streams.snapshots import (
    POSITION_KEY,
    encode_position,
    encode_shared,
    encode_snapshot,
    mark,
    shared_mark,
    task_snapshot_key,
    tenant_snapshot_key,
    tool_snapshot_key,
)
from loopwarden_streams.transport import BatchConsumer

log = logging.getLogger(__name__)

ENCODE_CHUNK = 256
COMMIT_TIMEOUT_S = 10.0


class Checkpointer:
    """Saves the partitions of one worker. One checkpoint at a time."""

    def __init__(
        self,
        app: faust.App,
        settings: Settings,
        partitions: Mapping[int, Partition],
        outbox: Outbox,
        shared_out: SharedOut,
        producer: AIOKafkaProducer,
        metrics: Metrics,
    ) -> None:
        """Save `partitions` with `producer` into the run table's changelog."""
        self._app = app
        self._settings = settings
        self._partitions = partitions
        self._outbox = outbox
        self._shared_out = shared_out
        self._producer = producer
        self._metrics = metrics
        self._running = asyncio.Lock()
        self._sizes: list[int] = []
        self.changelog = f"{settings.app_id}-runs-changelog"

    async def save(self) -> bool:
        """Save what changed in every partition, and commit.

        Returns:
            False if the worker is no member of the group any more, or the group coordinator does not say; nothing was
            written then. It is asked first, also on a revoke: the client calls for the partitions, too, when it finds
            that the group removed this member long ago, and somebody else has written since.

        Raises:
            TransportError: The broker refused a decision or a snapshot. The process must end: its state cannot be
                trusted to be saved, and the next owner replays from the last commit.
        """
        async with self._running:
            started = time.monotonic()
            due = [partition for partition in self._partitions.values() if self._is_due(partition)]
            if not due:
                return True
            if not await self._is_member(due):
                return False
            upto = {partition.number: await self._save_partition(partition) for partition in due}
            await self._commit(upto)
            self._metrics.observe_checkpoint(time.monotonic() - started, self._sizes)
            self._sizes.clear()
            return True

    def _is_due(self, partition: Partition) -> bool:
        # Offsets that moved without a change count too, or a quiet partition replays its skipped tail for ever.
        moved = any(partition.next_offset[source] - 1 != partition.covered.get(source) for source in SOURCES)
        changed = partition.dirty or partition.dead or partition.dirty_tools or partition.dead_tools
        shared = partition.tasks.changed or partition.tenants.changed or partition.has_to_send or partition.loads
        return bool(changed or shared or moved or not partition.is_saved)

    async def _is_member(self, due: list[Partition]) -> bool:
        committed = {
            TP(self._settings.topic(source), partition.number): partition.covered[source] + 1
            for partition in due
            for source in SOURCES
            if source in partition.covered
        }
        if not committed:
            return True
        try:
            is_member = await asyncio.wait_for(self._consumer().commit_exactly(committed), COMMIT_TIMEOUT_S)
        except TimeoutError:
            log.warning("the group coordinator did not answer within %.0f s: nothing is saved yet", COMMIT_TIMEOUT_S)
            return False
        if not is_member:
            log.warning("no member of the group any more: nothing is saved, the next owner replays")
        return is_member

    async def _save_partition(self, partition: Partition) -> dict[str, int]:
        async with partition.lock:
            upto = partition.upto()
            dirty, dead = partition.take_changes()
            tools, dead_tools = partition.take_tools()
            tasks, tenants = partition.take_tasks(), partition.take_tenants()
        try:
            records = await self._encode(partition, dirty, dead)
            async with partition.lock:
                records += _encode_tools(partition, tools, dead_tools)
                records += _encode_tasks(partition, tasks)
                records += _encode_tenants(partition, tenants)
                # After the trees: what they include is not read again, so what is told of it must be out as well.
                await self._shared_out.send(partition)
            records.append(Out(POSITION_KEY, encode_position(partition.position(upto), partition.epoch)))
            # What is saved must not be newer than what was said: decisions of the encoded states come first.
            await self._outbox.drained(partition)
            for future in await write_batch(self._producer, self.changelog, partition.number, records):
                await future
        except BaseException as error:
            # Also when a stop cuts it off: the checkpoint that follows covers these runs, so it must save them.
            partition.dirty |= dirty & partition.trees.keys()
            partition.dead |= dead - partition.trees.keys()
            partition.dirty_tools |= tools & partition.tools.tools.keys()
            partition.dead_tools |= dead_tools - partition.tools.tools.keys()
            partition.tasks.changed |= tasks
            partition.tenants.changed |= tenants
            if not isinstance(error, KafkaError | TransportError):
                raise
            self._metrics.count_checkpoint_failure()
            raise TransportError(f"checkpoint of partition {partition.number}: {error}") from error
        partition.is_saved = True
        return upto

    async def _encode(self, partition: Partition, dirty: set[bytes], dead: set[bytes]) -> list[Out]:
        """Return the snapshots of `dirty`, then the deletions of `dead`.

        A run that changes while this goes on keeps its mark as changed; its stamp says what it includes. `upto` was
        taken before, so it never covers more than was encoded. Under the lock: a run whose newest decision is still on
        its way to the producer must not be saved as if that was said.
        """
        records: list[Out] = []
        trees = partition.trees
        keys = iter(dirty)
        while chunk := list(islice(keys, ENCODE_CHUNK)):
            async with partition.lock:
                for key in chunk:
                    tree = trees.get(key)
                    if tree is not None:
                        value = encode_snapshot(tree, partition.epoch)
                        self._sizes.append(len(value))
                        records.append(Out(key, value))
                        partition.saved(key, mark(key, tree))
            await asyncio.sleep(0)
        for key in dead:
            if key not in trees:
                records.append(Out(key, None))
                partition.saved(key, None)
        return records

    async def _commit(self, upto: Mapping[int, Mapping[str, int]]) -> None:
        consumer = self._consumer()
        for number, offsets in upto.items():
            partition = self._partitions.get(number)
            for source, offset in offsets.items():
                if offset >= 0:
                    consumer.cover(TP(self._settings.topic(source), number), offset)
                if partition is not None:
                    partition.covered[source] = offset
                    partition.covered_at = time.monotonic()
        try:
            await asyncio.wait_for(consumer.commit_covered(), COMMIT_TIMEOUT_S)
        except TimeoutError:
            # Harmless: the interval commits again, and until then a crash replays what stamps skip.
            log.warning("the commit was not answered within %.0f s; it will be tried again", COMMIT_TIMEOUT_S)

    def _consumer(self) -> BatchConsumer:
        consumer = self._app.consumer
        assert isinstance(consumer, BatchConsumer)  # noqa: S101 - checked at start-up
        return consumer


def _encode_tools(partition: Partition, changed: set[ToolId], dead: set[ToolId]) -> list[Out]:
    """Return the snapshots of the tools in `changed`, then the deletions of those in `dead`. Cost: 3 µs each."""
    records: list[Out] = []
    tools = partition.tools.tools
    for known in changed:
        tool = tools.get(known)
        if tool is not None:
            key = tool_snapshot_key(*known)
            records.append(Out(key, encode_shared(tool, partition.epoch)))
            partition.saved(key, shared_mark(key, tool))
    for gone in dead:
        if gone not in tools:
            key = tool_snapshot_key(*gone)
            records.append(Out(key, None))
            partition.saved(key, None)
    return records


def _encode_tasks(partition: Partition, changed: set[TaskId]) -> list[Out]:
    """Return the snapshots of the tasks in `changed`, and the deletions of those that were forgotten."""
    records: list[Out] = []
    for known in changed:
        key = task_snapshot_key(*known)
        task = partition.tasks.tasks.get(known)
        if task is not None:
            records.append(Out(key, encode_shared(task, partition.epoch)))
            partition.saved(key, shared_mark(key, task))
        elif key in partition.marks:
            records.append(Out(key, None))
            partition.saved(key, None)
    return records


def _encode_tenants(partition: Partition, changed: set[str]) -> list[Out]:
    """Return the snapshots of the tenants in `changed`, and the deletions of those that were forgotten."""
    records: list[Out] = []
    for tenant in changed:
        key = tenant_snapshot_key(tenant)
        state = partition.tenants.tenants.get(tenant)
        if state is not None:
            records.append(Out(key, encode_shared(state, partition.epoch)))
            partition.saved(key, shared_mark(key, state))
        elif key in partition.marks:
            records.append(Out(key, None))
            partition.saved(key, None)
    return records
