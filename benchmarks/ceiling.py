"""(c) The ceiling: bare aiokafka, and each record decoded. No state, no rules. Run by `bench.py`."""

from __future__ import annotations

import asyncio
import json
import sys
import time

from aiokafka import AIOKafkaConsumer, TopicPartition

from loopwarden_models.codec import decode_step


async def main(broker: str, topic: str, partitions: int, total: int) -> None:
    """Read and decode `total` events and print events and seconds."""
    consumer = AIOKafkaConsumer(
        bootstrap_servers=broker, auto_offset_reset="earliest", enable_auto_commit=False, max_poll_records=500
    )
    await consumer.start()
    consumer.assign([TopicPartition(topic, number) for number in range(partitions)])
    await consumer.seek_to_beginning()
    seen = 0
    started = None
    while seen < total:
        for records in (await consumer.getmany(timeout_ms=1000)).values():
            if started is None:
                started = time.monotonic()
            for record in records:
                decode_step(record.value)
            seen += len(records)
    print(json.dumps({"events": seen, "seconds": time.monotonic() - (started or 0)}))
    await consumer.stop()


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])))
