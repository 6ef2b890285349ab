"""Publishes step events of healthy runs at a steady rate. Run by `latency.py` in a process of its own."""

from __future__ import annotations

import asyncio
import sys
import time
from itertools import cycle

from benchmarks.corpus import load_runs, weave

from loopwarden_streams.batch_writer import Out, write_batch
from loopwarden_streams.kafka_client import new_producer
from loopwarden_streams.settings import Settings

TURNS_PER_S = 50


async def main(broker: str, topic: str, partitions: int, per_second: int) -> None:
    """Publish until the process is ended."""
    runs, _ = load_runs()
    events = cycle(list(weave(runs, count=5_000, max_events=8, partitions=partitions)))
    producer = new_producer(Settings(brokers=broker))
    await producer.start()
    next_at = time.monotonic()
    while True:
        by_partition: dict[int, list[Out]] = {}
        for _ in range(per_second // TURNS_PER_S):
            event = next(events)
            by_partition.setdefault(event.partition, []).append(Out(event.key, event.value))
        for partition, records in by_partition.items():
            await write_batch(producer, topic, partition, records)
        next_at += 1 / TURNS_PER_S
        await asyncio.sleep(max(0.0, next_at - time.monotonic()))


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
