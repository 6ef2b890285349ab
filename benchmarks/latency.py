"""From the step that decides to the command applied in the agent's process, through Apache Kafka under load.

Agents repeat one call until they are stopped, through the real runtime library. After each step they wait for the stop,
so that the last step before it is the one that decided. Steps of other runs keep the worker busy meanwhile.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from statistics import quantiles

from benchmarks import bench
from rich.table import Table

import loopwarden
from loopwarden_streams.settings import Settings

BACKGROUND_PER_S = 1_000
AGENTS = 20
ROUNDS = 8
MAX_STEPS = 40
# A nudge must have been read before the next step, or the ladder waits; after the nudges, the stop must have come.
WAIT_S = 0.25
LAST_WAIT_S = 2.0
NUDGES_DONE = 6


def measure_latency(broker: str, table: Table) -> dict[str, dict[str, float]]:
    """Return p50 and p99 in milliseconds, and add a row to `table`."""
    settings = Settings(brokers=broker, app_id="bench-latency", topic_prefix="latency.", partitions=bench.PARTITIONS)
    bench._topics(settings)  # noqa: SLF001 - one benchmark in several files
    load = subprocess.Popen(
        [
            *(sys.executable, "-m", "benchmarks.load", broker, settings.topic("steps")),
            *(str(bench.PARTITIONS), str(BACKGROUND_PER_S)),
        ],
        cwd=bench.ROOT,
        env=bench.environment(settings),
    )
    try:
        with bench.running_worker(settings, LOOPWARDEN_MODE="enforce", LOOPWARDEN_START_AT="latest") as (_, port):
            while bench.ready(port) is None:
                time.sleep(0.1)
            taken = sorted(asyncio.run(_agents(broker, settings)))
    finally:
        load.terminate()
        load.wait(30)
    cuts = quantiles(taken, n=100)
    p50, p99 = round(cuts[49], 1), round(cuts[98], 1)
    table.add_row(
        f"deciding step to kill applied, {len(taken)} kills at {BACKGROUND_PER_S} events/s",
        f"p50 {p50} ms",
        f"p99 {p99} ms",
    )
    return {"latency_ms": {"p50": p50, "p99": p99}}


async def _agents(broker: str, settings: Settings) -> list[float]:
    transport = loopwarden.KafkaTransport(broker, prefix=settings.topic_prefix)
    taken: list[float] = []
    with loopwarden.Guard(transport, tenant="bench") as guard:
        for turn in range(ROUNDS):
            # A fleet does not step in time: each agent begins a little after the one before.
            spread = WAIT_S / AGENTS
            found = await asyncio.gather(*(_agent(guard, f"loop-{turn}-{n}", n * spread) for n in range(AGENTS)))
            taken += found
    return taken


async def _agent(guard: loopwarden.Guard, run_id: str, delay_s: float) -> float:
    await asyncio.sleep(delay_s)
    loop = asyncio.get_running_loop()
    stopped = asyncio.Event()
    stopped_at = 0.0

    def cancel(_reason: str) -> None:
        nonlocal stopped_at
        stopped_at = time.perf_counter()
        loop.call_soon_threadsafe(stopped.set)

    try:
        with guard.run(run_id, agent="bench", cancel=cancel) as run:
            for n in range(MAX_STEPS):
                run.before_model()
                run.after_model(text=f"I read it once more, for the {n}th time.", tool_calls=1)
                for nudge in run.nudges():
                    nudge.delivered()
                run.before_tool("read_file", {"path": "rates.yaml"}, f"{run_id}-{n}", effect=loopwarden.READ)
                published_at = time.perf_counter()
                run.after_tool(f"{run_id}-{n}", result="eu: 6.90")
                try:
                    await asyncio.wait_for(stopped.wait(), WAIT_S if n < NUDGES_DONE else LAST_WAIT_S)
                except TimeoutError:
                    continue
                run.raise_if_stopped()
    except loopwarden.LoopwardenStopped:
        return (stopped_at - published_at) * 1000
    raise SystemExit(f"run {run_id} was not stopped within {MAX_STEPS} steps")
