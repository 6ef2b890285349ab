"""(a) What an ordinary Faust app does: one event at a time, one table row per run. Run by `bench.py`."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from typing import Any

import faust

PROGRESS_EVERY = 500


class Step(faust.Record, serializer="json"):
    """What an app of Faust's documentation makes of a step event: a model, decoded by the stream."""

    tenant: str
    run_id: str
    seq: int
    ts_ms: int
    type: str
    tool: str | None = None
    args_hash: str | None = None
    result_hash: str | None = None
    outcome: str | None = None


class Run(faust.Record, serializer="json"):
    """One row of the table: enough to count a streak of equal calls."""

    steps: int = 0
    streak: int = 0
    args_hash: str | None = None
    result_hash: str | None = None


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
    steps = app.topic(topic, key_type=str, value_type=Step, key_serializer="raw")
    runs = app.Table("runs", key_type=str, value_type=Run, partitions=partitions)
    seen = 0

    @app.agent(steps)
    async def watch(stream: Any) -> None:
        nonlocal seen
        async for step in stream:
            key = f"{step.tenant}|{step.run_id}"
            run = runs.get(key) or Run()
            same = step.args_hash == run.args_hash and step.result_hash == run.result_hash
            runs[key] = Run(run.steps + 1, run.streak + 1 if same else 1, step.args_hash, step.result_hash)
            seen += 1
            if seen % PROGRESS_EVERY == 0:
                print(json.dumps({"at": time.monotonic(), "seen": seen}), flush=True)

    async def serve() -> None:
        await app.start()
        while seen < total:  # noqa: ASYNC110 - the agent counts, and an event would cost it time
            await asyncio.sleep(0.2)
        print(json.dumps({"at": time.monotonic(), "seen": seen}), flush=True)

    asyncio.run(serve())


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4]), int(sys.argv[5]), sys.argv[6])
