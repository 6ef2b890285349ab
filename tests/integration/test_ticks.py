"""What happens without an event: limits of time, runs that are over, and memory that is full."""

from __future__ import annotations

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest
from tests._support.detectors import applied, counted, running, until
from tests._support.fleet import Event, Run, healthy, looping, records
from tests._support.kafka import ApacheKafka
from tests._support.workers import Deployment, wait_until


def now_ms() -> int:
    """Return the wall clock in Unix milliseconds."""
    return time.time_ns() // 1_000_000


def limited(run_id: str, *, max_duration_ms: int) -> list[Event]:
    """Return a run that has begun now with a limit of time, and says nothing more."""
    run = Run(run_id, start_ms=now_ms())
    run.events[0]["limits"] = {"max_duration_ms": max_duration_ms}
    return run.events


def test_a_run_that_fell_silent_is_ended_by_its_limit_of_time(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A call that never comes back sends no event: nobody but the clock can end it."""
    with Deployment(apache_kafka.bootstrap, tmp_path, mode="enforce") as deployment:
        deployment.start(instance="one").ready()
        deployment.write(records(limited("silent", max_duration_ms=1_500), deployment.partitions))

        def kills() -> list[Event]:
            return [command for command in deployment.messages("control.commands") if command["type"] == "kill_run"]

        (kill,) = wait_until(kills, "the kill", context=deployment.logs)
        assert (kill["run_id"], kill["reason"]["detector"], kill["scope"]) == ("silent", "budget", "tree")

        # A tick is not replayed: the rule is a level, true again at the next, with the same id.
        deployment.wait_applied()
        deployment.workers[0].kill()
        again = deployment.start(instance="one").ready()
        deployment.write(records(healthy("other", 3, start_ms=now_ms()), deployment.partitions))
        deployment.wait_applied()
        wait_until(lambda: again.metric("loopwarden_steps_consumed_total") == 5, "the steps to be counted")
        assert {command["command_id"] for command in kills()} == {kill["command_id"]}


@pytest.mark.parametrize(
    ("events", "settings", "reason"),
    [
        (healthy("r1", 3, start_ms=now_ms()), {"ended_run_ttl_ms": 500}, "ended"),
        (looping("r1", 3, start_ms=now_ms()), {"run_ttl_ms": 500}, "idle"),
    ],
)
def test_a_run_that_is_over_leaves_memory_and_topic(
    apache_kafka: ApacheKafka, tmp_path: Path, events: list[Event], settings: dict[str, Any], reason: str
) -> None:
    """A worker lives for months, and every run that it ever saw would stay with it and with its successors."""

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment, tick_ms=50) as detector:
            await asyncio.to_thread(deployment.write, records(events, deployment.partitions))
            await applied(deployment, detector)
            await until(lambda: not any(own.trees for own in detector.partitions.values()), "the run to be forgotten")
            assert counted(detector, "loopwarden_evictions_total", reason=reason) == 1

        # It was saved before it was forgotten, so it has to be deleted.
        own = [record for record in await asyncio.to_thread(deployment.read, "changelog") if record.key == b"acme|r1"]
        assert own[-1].value is None
        async with running(deployment) as detector:
            assert not any(own.trees for own in detector.partitions.values())
            assert counted(detector, "loopwarden_recovery_faults_total") == 0

    with Deployment(apache_kafka.bootstrap, tmp_path, checkpoint_ms=100, **settings) as deployment:
        asyncio.run(scenario(deployment))


def test_a_run_that_goes_on_is_kept(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """An ended run waits for late copies, a quiet one for its next step: both for their time, and by event time."""
    old = healthy("old", 3, start_ms=now_ms() - 7 * 86_400_000)

    async def scenario(deployment: Deployment) -> None:
        async with running(deployment, tick_ms=20) as detector:
            await asyncio.to_thread(deployment.write, records(old, deployment.partitions))
            await applied(deployment, detector)
            ticks = counted(detector, "loopwarden_checkpoint_seconds_count")
            await until(
                lambda: counted(detector, "loopwarden_checkpoint_seconds_count") > ticks or not ticks, "some ticks"
            )
            # A week old by the wall clock, and just ended by the partition's: it may still be answered.
            assert sum(len(own.trees) for own in detector.partitions.values()) == 1

    with Deployment(apache_kafka.bootstrap, tmp_path) as deployment:
        asyncio.run(scenario(deployment))


def test_a_full_worker_lets_go_of_the_idlest(apache_kafka: ApacheKafka, tmp_path: Path) -> None:
    """A flood of runs must cost what was silent the longest, and never the process its memory."""
    start = now_ms() - 3_600_000
    runs = [looping(f"r{number:03d}", 2, start_ms=start + number * 1_000) for number in range(120)]

    async def scenario(deployment: Deployment) -> None:
        # No tick before all runs are there: what is held by then is what it chooses from.
        async with running(deployment, tick_ms=5_000, max_runs=100, run_ttl_ms=86_400_000) as detector:
            events = [event for run in runs for event in run]
            await asyncio.to_thread(deployment.write, records(events, deployment.partitions))
            await applied(deployment, detector)
            await until(lambda: counted(detector, "loopwarden_evictions_total", reason="cap"), "the cap to act")
            kept = {key for own in detector.partitions.values() for key in own.trees}
            # Two in a hundred more than it must: to find the idlest costs a look at all.
            assert kept == {b"acme|r%03d" % number for number in range(22, 120)}
        tombstones = {
            record.key for record in await asyncio.to_thread(deployment.read, "changelog") if record.value is None
        }
        async with running(deployment, max_runs=100) as detector:
            assert {key for own in detector.partitions.values() for key in own.trees} == kept
            assert counted(detector, "loopwarden_recovery_faults_total") == 0
        assert not tombstones & kept

    with Deployment(apache_kafka.bootstrap, tmp_path, checkpoint_ms=100) as deployment:
        asyncio.run(scenario(deployment))
