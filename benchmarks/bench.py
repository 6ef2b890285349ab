"""`make bench`: how fast, how lean, how late. Everything in one run, on the same events and one Apache Kafka.

Prints one table and writes `build/bench.json`. Figures of one machine say little; the ratios hold elsewhere.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import chain, islice
from pathlib import Path

import msgspec
import psutil
from aiokafka import AIOKafkaProducer
from benchmarks.corpus import Event, Keyed, load_runs, weave
from benchmarks.detectors import measure
from rich.console import Console
from rich.table import Table
from tests._support.kafka import THROUGHPUT, ApacheKafka

from loopwarden_detectors.watch import DETECTORS
from loopwarden_streams.batch_writer import Out, write_batch
from loopwarden_streams.embedded_broker import free_port
from loopwarden_streams.kafka_client import new_producer
from loopwarden_streams.settings import Settings

ROOT = Path(__file__).resolve().parents[1]
PARTITIONS = 4
RULE_EVENTS = 20_000
console = Console(stderr=True)


@dataclass(frozen=True, slots=True)
class Fleet:
    """A set of topics of its own, filled with events."""

    settings: Settings
    events: int
    bytes_per_event: float


def environment(settings: Settings, **more: str) -> dict[str, str]:
    """Return the environment of a worker for `settings`."""
    clean = {name: value for name, value in os.environ.items() if not name.startswith("LOOPWARDEN_")}
    return {
        **clean,
        "PYTHONPATH": str(ROOT),
        "LOOPWARDEN_BROKERS": settings.brokers,
        "LOOPWARDEN_APP_ID": settings.app_id,
        "LOOPWARDEN_TOPIC_PREFIX": settings.topic_prefix,
        "LOOPWARDEN_PARTITIONS": str(PARTITIONS),
        "LOOPWARDEN_START_AT": "earliest",
        "LOOPWARDEN_MAX_ACTION_AGE_MS": "0",
        "LOOPWARDEN_LOG_LEVEL": "error",
        **more,
    }


def fill(broker: str, name: str, records: Iterator[Keyed]) -> Fleet:
    """Create the topics of a fleet and write its events."""
    settings = Settings(
        brokers=broker, app_id=f"bench-{name}", topic_prefix=f"{name}.", partitions=PARTITIONS, start_at="earliest"
    )
    subprocess.run(
        [sys.executable, "-m", "loopwarden_streams.cli", "topics", "--json"],
        env=environment(settings),
        check=True,
        stdout=subprocess.DEVNULL,
    )
    events, size = asyncio.run(_write(settings, records))
    return Fleet(settings, events, size / events)


async def _write(settings: Settings, records: Iterator[Keyed]) -> tuple[int, int]:
    producer: AIOKafkaProducer = new_producer(settings)
    await producer.start()
    events = size = 0
    try:
        while block := list(islice(records, 20_000)):
            by_partition: dict[int, list[Out]] = {}
            for record in block:
                by_partition.setdefault(record.partition, []).append(Out(record.key, record.value))
                size += len(record.value)
            events += len(block)
            for partition, out in by_partition.items():
                for future in await write_batch(producer, settings.topic("steps"), partition, out):
                    await future
    finally:
        await producer.stop()
    return events, size


def ceiling(fleet: Fleet) -> float:
    """Return the events per second of bare aiokafka with decoding."""
    command = ["-m", "benchmarks.ceiling", fleet.settings.brokers, fleet.settings.topic("steps")]
    done = subprocess.run(
        [sys.executable, *command, str(PARTITIONS), str(fleet.events)],
        env=environment(fleet.settings),
        cwd=ROOT,
        check=True,
        capture_output=True,
        text=True,
    )
    answer = json.loads(done.stdout.splitlines()[-1])
    return float(answer["events"] / answer["seconds"])


def plain_faust(fleet: Fleet, events: int) -> float:
    """Return the events per second of an ordinary Faust app with one table row per run."""
    topic = fleet.settings.topic("steps")
    with tempfile.TemporaryDirectory() as data_dir:
        command = ["-m", "benchmarks.plain_faust", fleet.settings.brokers, topic, f"{fleet.settings.app_id}-plain"]
        process = subprocess.Popen(
            [sys.executable, *command, str(PARTITIONS), str(events), data_dir],
            env=environment(fleet.settings),
            cwd=ROOT,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            text=True,
        )
        assert process.stdout is not None
        marks = []
        for line in process.stdout:
            marks.append(json.loads(line))
            if marks[-1]["seen"] >= events:
                break
        process.kill()
        process.wait()
        process.stdout.close()
    return float((marks[-1]["seen"] - marks[0]["seen"]) / (marks[-1]["at"] - marks[0]["at"]))


@dataclass(frozen=True, slots=True)
class WorkerRun:
    """What one worker did: events per second, and its memory before and after, in MB."""

    rate: float
    idle_mb: float
    full_mb: float
    runs: int


@contextlib.contextmanager
def running_worker(settings: Settings, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """Run a worker; yields the process and its health port."""
    port = free_port()
    process = subprocess.Popen(
        [sys.executable, "-m", "loopwarden_streams.cli", "worker"],
        env=environment(settings, LOOPWARDEN_PORT=str(port), **more),
    )
    try:
        yield process, port
    finally:
        process.terminate()
        process.wait(60)


def ready(port: int) -> dict[str, dict[str, dict[str, int]]] | None:
    """Return the body of `/readyz`, or `None` while the worker is not ready."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=10) as answer:
            body: dict[str, dict[str, dict[str, int]]] = json.load(answer)
            return body
    except (urllib.error.URLError, OSError):
        return None


def worker(fleet: Fleet, **more: str) -> WorkerRun:
    """Let one worker read the whole fleet, with all detectors and snapshots on."""
    with running_worker(fleet.settings, **more) as (process, port):
        memory = psutil.Process(process.pid)
        idle = 0.0
        marks: list[tuple[float, int]] = []
        runs = 0
        while not marks or marks[-1][1] < fleet.events:
            if process.poll() is not None:
                raise SystemExit(f"the worker ended with status {process.returncode}")
            body = ready(port)
            if body is None:
                idle = memory.memory_info().rss / 1e6
                time.sleep(0.05)
                continue
            partitions = body["partitions"].values()
            done = sum(partition["next_offset"]["steps"] for partition in partitions)  # type: ignore[index]  # nested JSON
            runs = sum(partition["runs"] for partition in partitions)
            marks.append((time.monotonic(), done))
            time.sleep(0.1)
        full = memory.memory_info().rss / 1e6
    # The first tenth is start-up: fetchers fill, caches warm.
    first = next(mark for mark in marks if mark[1] >= fleet.events // 10)
    last = next(mark for mark in marks if mark[1] >= fleet.events)
    rate = (last[1] - first[1]) / (last[0] - first[0]) if last[0] > first[0] else fleet.events / (last[0] - marks[0][0])
    return WorkerRun(rate, idle, full, runs)


def main() -> int:
    """Measure everything, print the table, write the JSON file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=24_000, help="interleaved runs of the throughput benchmark")
    parser.add_argument("--events-per-run", type=int, default=16)
    parser.add_argument("--live", type=int, default=100_000, help="live runs of the memory benchmark")
    parser.add_argument("--plain-events", type=int, default=30_000, help="events that the ordinary Faust app gets")
    parser.add_argument("--repeat", type=int, default=2, help="times that worker and ceiling are measured, in turn")
    parser.add_argument("--skip", nargs="*", default=[], choices=["faust", "live", "latency", "flood", "rules"])
    args = parser.parse_args()
    runs, origin = load_runs()
    result: dict[str, object] = {}
    rules = Table("what", "ns an event", "", title=f"Judging, without Kafka: {origin}")
    if "rules" not in args.skip:
        with console.status("measuring the detectors one by one"):
            result |= rule_costs(runs, rules)
    with tempfile.TemporaryDirectory() as data, ApacheKafka(Path(data), jvm_flags=THROUGHPUT) as kafka:
        table = Table("what", "events/s", "ratio", title=f"Loopwarden on Apache Kafka: {origin}")
        result |= throughput(kafka.bootstrap, runs, args, table)
        if "live" not in args.skip:
            result |= live_runs(kafka.bootstrap, runs, args.live, table)
        if "latency" not in args.skip:
            from benchmarks.latency import measure_latency  # noqa: PLC0415 - starts its own topics

            result |= measure_latency(kafka.bootstrap, table)
        if "flood" not in args.skip:
            from benchmarks.latency import measure_flood  # noqa: PLC0415 - starts its own topics

            result |= measure_flood(kafka.bootstrap, table)
    Console().print(table)
    if rules.row_count:
        Console().print(rules)
    target = ROOT / "build" / "bench.json"
    target.parent.mkdir(exist_ok=True)
    target.write_text(json.dumps(result, indent=1) + "\n")
    console.print(f"written to {target.relative_to(ROOT)}")
    return 0


def rule_costs(runs: list[list[Event]], table: Table) -> dict[str, dict[str, int]]:
    """Measure what each detector adds to an event, in one process and run after run: the best case of the caches."""
    records = [msgspec.json.encode(event) for event in islice(chain.from_iterable(runs), RULE_EVENTS)]
    found = measure(records, rounds=3)
    table.add_row("decoding", f"{found['decode']:,.0f}", "")
    table.add_row("what all rules share: keys, memory of calls, rounds", f"{found['shared']:,.0f}", "")
    for name in DETECTORS:
        table.add_row(name, f"{found[name]:,.0f}", "added to that")
    table.add_row(
        "all rules and what they share", f"{found['all']:,.0f}", f"{found['all'] / found['decode']:.1f} x decoding"
    )
    return {"ns_per_event": {name: round(found[name]) for name in ("decode", "shared", *DETECTORS, "all")}}


def throughput(
    broker: str, runs: list[list[Event]], args: argparse.Namespace, table: Table
) -> dict[str, dict[str, float]]:
    """Measure (a), (b) and (c) on the same events."""
    with console.status(f"writing the events of {args.runs} runs"):
        records = weave(runs, count=args.runs, max_events=args.events_per_run, partitions=PARTITIONS)
        fleet = fill(broker, "mix", records)
    console.print(f"{fleet.events:,} events of {fleet.bytes_per_event:.0f} bytes, {args.runs:,} runs interleaved")
    ceilings, workers = [], []
    for n in range(args.repeat):
        with console.status("measuring the ceiling"):
            ceilings.append(ceiling(fleet))
        with console.status("measuring the worker"):
            settings = replace(fleet.settings, app_id=f"bench-mix-{n}")
            _topics(settings)
            workers.append(worker(Fleet(settings, fleet.events, fleet.bytes_per_event)).rate)
        console.print(f"ceiling {ceilings[-1]:,.0f}/s, worker {workers[-1]:,.0f}/s")
    best = {"ceiling": max(ceilings), "worker": max(workers)}
    if "faust" not in args.skip:
        with console.status("measuring an ordinary Faust app"):
            best["faust"] = plain_faust(fleet, args.plain_events)
        table.add_row("(a) an ordinary Faust app, one table row per run", f"{best['faust']:,.0f}", "1")
        against = f"{best['worker'] / best['faust']:.0f} x (a), {best['worker'] / best['ceiling']:.2f} x (c)"
    else:
        against = f"{best['worker'] / best['ceiling']:.2f} x (c)"
    table.add_row("(b) our worker, all detectors and snapshots on", f"{best['worker']:,.0f}", against)
    table.add_row("(c) bare aiokafka with decoding", f"{best['ceiling']:,.0f}", "1")
    return {"events_per_s": {name: round(best[name]) for name in ("faust", "worker", "ceiling") if name in best}}


def live_runs(broker: str, runs: list[list[Event]], live: int, table: Table) -> dict[str, float]:
    """Measure memory and rate with many live runs against few, on the same number of events."""
    rates, megabytes = {}, 0.0
    # The same events; with few, the next thousand runs begin when the ones before are through and evicted.
    few = {"LOOPWARDEN_MAX_RUNS": "1000", "LOOPWARDEN_TICK_MS": "50"}
    for name, ids, more in (("few", 1_000, few), ("many", live, {})):
        with console.status(f"writing events of {ids:,} live runs"):
            fleet = fill(broker, name, weave(runs, count=live, max_events=8, partitions=PARTITIONS, live=ids))
        with console.status(f"measuring the worker with {ids:,} live runs"):
            measured = worker(fleet, **more)
        rates[name] = measured.rate
        megabytes = measured.full_mb - measured.idle_mb
        console.print(
            f"{measured.runs:,} live runs: {measured.rate:,.0f}/s, "
            f"{measured.full_mb:.0f} MB ({measured.idle_mb:.0f} idle)"
        )
    ratio = rates["many"] / rates["few"]
    table.add_row(f"worker with {live:,} live runs", f"{rates['many']:,.0f}", f"{ratio:.2f} x the rate with 1,000")
    table.add_row(f"memory of {live:,} live runs", f"{megabytes:.0f} MB", "")
    return {"memory_mb_100k_runs": round(megabytes), "rate_100k_over_1k_runs": round(ratio, 3)}


def _topics(settings: Settings) -> None:
    subprocess.run(
        [sys.executable, "-m", "loopwarden_streams.cli", "topics", "--json"],
        env=environment(settings),
        check=True,
        stdout=subprocess.DEVNULL,
    )


if __name__ == "__main__":
    raise SystemExit(main())
