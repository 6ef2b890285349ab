"""Says what a partition of steps saw of what runs share, to the owners of that: the sending side of `tool-health`."""

from __future__ import annotations

import time
from collections.abc import Mapping

from loopwarden_models.codec import encode
from loopwarden_models.ids import control_partition
from loopwarden_models.run_turns import task_key
from loopwarden_streams.batch_writer import Out
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.partition import Partition
from loopwarden_streams.settings import Settings


class SharedOut:
    """Sends for the partitions of one worker. One event loop owns it."""

    def __init__(self, settings: Settings, outbox: Outbox, partitions: Mapping[int, Partition]) -> None:
        """Send what `partitions` have to say through `outbox`."""
        self._outbox = outbox
        self._partitions = partitions
        self._count = settings.partitions

    async def send(self, partition: Partition) -> None:
        """Hand over all that a partition has to say. Under its lock: what it says must stay in order."""
        await self._send_sums(partition)
        await self._send_loads(partition)

    async def sums(self) -> None:
        """Send what was added up of the tools, and which runs began and ended, from every partition.

        Not before the broker has answered to the last sums: while it is away they are added up, and wait here.
        """
        if not await self._outbox.has_shared():
            return
        for partition in list(self._partitions.values()):
            if partition.has_to_send:
                async with partition.lock:
                    await self._send_sums(partition)

    async def loads(self) -> None:
        """Send what the tenants did and spent, from every partition. Waits as `sums` does."""
        if not await self._outbox.has_shared():
            return
        for partition in list(self._partitions.values()):
            if partition.loads:
                async with partition.lock:
                    await self._send_loads(partition)

    async def _send_sums(self, partition: Partition) -> None:
        if not partition.has_to_send:
            return
        out = partition.sums.take(partition.number, partition.epoch, self._count, int(time.time() * 1000))
        turns, partition.turns = partition.turns, []
        for turn in turns:
            record = Out(task_key(turn.tenant, turn.fingerprint), encode(turn))
            out.setdefault(control_partition(turn.tenant, self._count), []).append(record)
        await self._outbox.share(out)

    async def _send_loads(self, partition: Partition) -> None:
        if partition.loads:
            now_ms = int(time.time() * 1000)
            out = partition.loads.take(partition.number, partition.epoch, self._count, now_ms)
            await self._outbox.share(out)
