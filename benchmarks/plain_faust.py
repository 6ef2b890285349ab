"""(a) What an ordinary Faust app does: one event at a time, one table row per run. Run by `bench.py`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import faust

PROGRESS_EVERY = 500


def main(broker: str, topic: str, app_id: str, partitions: int, total: int, data_dir: str) -> None:
    """Consume `total` events and print how long each stretch took, as JSON lines."""
    app = faust.App(
        app_id,
        broker=f"kafka://{broker}",
        store="memory://",
        datadir=data_dir,
        consumer_auto_offset_reset="earliest",
        topic_partitions=partitions,
        topic_replication_factor=1,
        topic_disable_leader=True,
        web_enabled=False,
        table_standby_replicas=0,
        stream_wait_empty=False,
    )
    steps = app.topic(topic, key_type=bytes, value_type=bytes, key_serializer="raw", value_serializer="json")
    runs = app.Table("runs", default=dict, partitions=partitions)
    seen = 0

    @app.agent(steps)
    async def watch(stream: Any) -> None:
        nonlocal seen
        async for event in stream.events():
            step = event.value
            key = f"{step['tenant']}|{step['run_id']}"
            row = runs[key]
            row["steps"] = row.get("steps", 0) + 1
            row["last"] = step.get("args_hash")
            runs[key] = row
            seen += 1
            if seen % PROGRESS_EVERY == 0:
                print(json.dumps({"at": time.monotonic(), "seen": seen}), flush=True)

    async def serve() -> None:
        await app.start()
        while seen < total:
            await asyncio.sleep(0.2)
        print(json.dumps({"at": time.monotonic(), "seen": seen}), flush=True)

    asyncio.run(serve())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
