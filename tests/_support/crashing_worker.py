"""`loopwarden worker` that ends itself at a named point, as hard as by SIGKILL.

Run as `python -m tests._support.crashing_worker POINT NTH`: at the NTH time that it comes to POINT it is gone, without
a flush, a commit or a goodbye to the group. At `FAULT` it raises instead, where Faust itself would have to catch it.
"""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any, Final

from loopwarden_streams import checkpoints, cli
from loopwarden_streams.batch_writer import Out, write_batch
from loopwarden_streams.outbox import Outbox
from loopwarden_streams.recovery import Recovery
from loopwarden_streams.snapshots import POSITION_KEY
from loopwarden_streams.transport import BatchConsumer

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Iterable

    from aiokafka import AIOKafkaProducer

    from loopwarden_streams.landing_store import LandingStore
    from loopwarden_streams.partition import Partition

POINTS: Final = (
    "before a decision is published",
    "after a decision is published",
    "between snapshots and position",
    "between position and commit",
    "inside recovery",
)
FAULT: Final = "inside a fetch"
EXIT: Final = 9


class Crash:
    """Ends the process at the `nth` visit of `point`."""

    def __init__(self, point: str, nth: int) -> None:
        self._point = point
        self._left = nth

    def at(self, point: str) -> None:
        """Say that the process is at `point` now.

        Raises:
            RuntimeError: The point is `FAULT`, and its time has come.
        """
        if point == self._point:
            self._left -= 1
            if self._left == 0:
                if point == FAULT:
                    raise RuntimeError("a fault of Faust's, put in by a test")
                os._exit(EXIT)


def arm(crash: Crash) -> None:
    """Put the points into the worker's code."""
    publish = Outbox.publish
    rebuild = Recovery.rebuild
    fetch = BatchConsumer._getmany

    async def crashing_publish(self: Outbox, partition: Partition, decisions: Any, letters: Any) -> Any:
        if decisions:
            crash.at("before a decision is published")
        commands = await publish(self, partition, decisions, letters)
        if decisions:
            await self.drained(partition)
            crash.at("after a decision is published")
        return commands

    async def crashing_write(
        producer: AIOKafkaProducer, topic: str, partition: int, records: Iterable[Out]
    ) -> list[asyncio.Future[Any]]:
        everything = list(records)
        snapshots = [record for record in everything if record.key != POSITION_KEY]
        if snapshots:
            for future in await write_batch(producer, topic, partition, snapshots):
                await future
            crash.at("between snapshots and position")
        futures = await write_batch(producer, topic, partition, everything[len(snapshots) :])
        if snapshots:
            for future in futures:
                await future
            crash.at("between position and commit")
        return futures

    async def crashing_rebuild(self: Recovery, store: LandingStore) -> Any:
        partitions = await rebuild(self, store)
        crash.at("inside recovery")
        return partitions

    async def crashing_fetch(self: BatchConsumer, **arguments: Any) -> Any:
        fetched = await fetch(self, **arguments)
        if fetched:
            crash.at(FAULT)
        return fetched

    BatchConsumer._getmany = crashing_fetch  # type: ignore[assignment]  # as below
    Outbox.publish = crashing_publish  # type: ignore[method-assign]  # a fault is put in on purpose
    Recovery.rebuild = crashing_rebuild  # type: ignore[method-assign]  # likewise
    vars(checkpoints)["write_batch"] = crashing_write


if __name__ == "__main__":
    arm(Crash(sys.argv[1], int(sys.argv[2])))
    raise SystemExit(cli.main(["worker"]))
