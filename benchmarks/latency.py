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
from typing import NamedTuple

from benchmarks import bench
from benchmarks.corpus import TENANTS
from rich.table import Table

import loopwarden
from loopwarden_streams.settings import Settings

BACKGROUND_PER_S = 1_000
BACKGROUND_RUNS = 5_000
FLEET_RUNS = 10_000
FLOOD_FACTOR = 50
AGENTS = 20
ROUNDS = 8
MAX_STEPS = 40
# A nudge must have been read before the next step, or the ladder waits; after the nudges, the stop must have come.
WAIT_S = 0.25
LAST_WAIT_S = 2.0
NUDGES_DONE = 6


def measure_latency(broker: str, table: Table) -> dict[str, dict[str, float]]:
    """Return p50 and p99 in milliseconds, and add a row to `table`."""
    taken = _measure(broker, "latency", Load(BACKGROUND_PER_S, BACKGROUND_RUNS))
    p50, p99 = _cuts(taken)
    table.add_row(
        f"deciding step to kill applied, {len(taken)} kills at {BACKGROUND_PER_S:,} events/s",
        f"p50 {p50} ms",
        f"p99 {p99} ms",
    )
    return {"latency_ms": {"p50": p50, "p99": p99}}


def measure_flood(broker: str, table: Table) -> dict[str, dict[str, float]]:
    """Return what the others feel when one of twenty tenants sends fifty times its share, and add two rows to `table`.

    The quiet figure and the flooded one are taken one after the other, with the same load of the others.
    """
    quiet = Load(BACKGROUND_PER_S, FLEET_RUNS)
    flood = Load(FLOOD_FACTOR * BACKGROUND_PER_S // TENANTS, BACKGROUND_RUNS, "flood")
    before = _cuts(_measure(broker, "quiet", quiet))
    after = _cuts(_measure(broker, "flood", quiet, flood))
    ratio = round(after[1] / before[1], 2)
    table.add_row(f"the same with {FLEET_RUNS:,} runs alive", f"p50 {before[0]} ms", f"p99 {before[1]} ms")
    table.add_row(
        f"and one tenant that sends {flood.per_second:,} events/s besides",
        f"p50 {after[0]} ms",
        f"p99 {after[1]} ms, {ratio} x",
    )
    return {"flood_ms": {"quiet_p99": before[1], "flooded_p99": after[1], "ratio": ratio}}


class Load(NamedTuple):
    """Events a second, of so many runs at a time, of one tenant or of twenty."""

    per_second: int
    live: int
    tenant: str | None = None


def _cuts(taken: list[float]) -> tuple[float, float]:
    cuts = quantiles(taken, n=100)
    return round(cuts[49], 1), round(cuts[98], 1)


def _measure(broker: str, name: str, *loads: Load) -> list[float]:
    settings = Settings(brokers=broker, app_id=f"bench-{name}", topic_prefix=f"{name}.", partitions=bench.PARTITIONS)
    bench._topics(settings)  # noqa: SLF001 - one benchmark in several files
    publishers = [
        subprocess.Popen(
            [
                *(sys.executable, "-m", "benchmarks.load", broker, settings.topic("steps"), str(bench.PARTITIONS)),
                *(str(load.per_second), str(load.live), *((load.tenant,) if load.tenant else ())),
            ],
            cwd=bench.ROOT,
            env=bench.environment(settings),
        )
        for load in loads
    ]
    try:
        with bench.running_worker(settings, LOOPWARDEN_MODE="enforce", LOOPWARDEN_START_AT="latest") as (_, port):
            while bench.ready(port) is None:
                time.sleep(0.1)
            return sorted(asyncio.run(_agents(broker, settings)))
    finally:
        for publisher in publishers:
            publisher.terminate()
        for publisher in publishers:
            publisher.wait(30)


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
