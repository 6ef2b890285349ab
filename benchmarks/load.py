"""Publishes step events of recorded runs at a steady rate. Run by `latency.py` in processes of its own.

python -m benchmarks.load BROKER TOPIC PARTITIONS EVENTS_PER_SECOND RUNS [TENANT]
"""

from __future__ import annotations

import asyncio
import sys
import time

from benchmarks.corpus import load_runs, weave

from loopwarden_streams.batch_writer import Out, write_batch
from loopwarden_streams.kafka_client import new_producer
from loopwarden_streams.settings import Settings

TURNS_PER_S = 50
MAX_RUNS = 10_000_000


async def main(broker: str, topic: str, partitions: int, per_second: int, live: int, tenant: str | None = None) -> None:
    """Publish until the process is ended: `live` runs at a time, and the next ones when these are through."""
    runs, _ = load_runs()
    events = weave(runs, count=MAX_RUNS, max_events=8, partitions=partitions, live=live, tenant=tenant)
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
    rate, live = int(sys.argv[4]), int(sys.argv[5])
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), rate, live, *sys.argv[6:7]))
