"""The guard of a process: threads, start and end, numbers."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Any

import pytest

from loopwarden import Guard
from loopwarden.testing import TENANT, GuardBench, MemoryTransport, kill, run_record
from loopwarden_models.errors import ConfigError
from loopwarden_models.events import RunEnd


def ours() -> set[str]:
    """Return the names of our threads that live."""
    return {thread.name for thread in threading.enumerate() if thread.name.startswith("loopwarden-")}


def until(condition: Callable[[], bool], timeout_s: float = 5.0) -> bool:
    """Wait for other threads."""
    deadline_s = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < deadline_s:
        time.sleep(0.001)
    return condition()


def test_threads_begin_with_start_and_end_with_close() -> None:
    """A library that leaves threads behind cannot be used in tests, or in workers that reload."""
    guard = Guard(MemoryTransport(), tenant=TENANT)
    assert ours() == set()
    assert guard.start()
    assert ours() == {"loopwarden-control", "loopwarden-steps", "loopwarden-acks"}
    assert all(thread.daemon for thread in threading.enumerate() if thread.name in ours())
    guard.close()
    guard.close()

    assert ours() == set()


def test_a_kill_goes_through_the_threads() -> None:
    """The same as with the bench, on real threads."""
    transport = MemoryTransport()
    cancelled = threading.Event()
    with Guard(transport, tenant=TENANT) as guard:
        with guard.run("r-42", cancel=lambda _: cancelled.set()) as run:
            transport.command(kill(run.key))
            assert cancelled.wait(5.0)
            assert run.stopped
        assert until(lambda: "confirmed_dead" in transport.statuses("c1"))

    assert transport.statuses("c1") == ["received", "applied", "confirmed_dead"]


def test_a_kill_cancels_a_task_in_the_middle_of_an_await() -> None:
    """An adapter hands over `task.cancel`; the gate tells the stop from any other cancellation."""
    transport = MemoryTransport()
    guard = Guard(transport, tenant=TENANT)
    guard.start()

    async def agent() -> None:
        task = asyncio.current_task()
        assert task is not None
        loop = asyncio.get_running_loop()
        with guard.run("r-42", cancel=lambda _: loop.call_soon_threadsafe(task.cancel)) as run:
            transport.command(kill(run.key))
            await asyncio.sleep(30.0)

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(agent())
    guard.close()

    end = transport.steps[-1]
    assert isinstance(end, RunEnd)
    assert end.status == "killed"
    assert transport.statuses("c1") == ["received", "applied", "confirmed_dead"]


def test_the_barrier_waits_for_what_was_ordered_before() -> None:
    """A new process must honour a kill of yesterday before its first step."""
    transport = MemoryTransport()
    transport.state(run_record("r-42", "killed"))
    guard = Guard(transport, tenant=TENANT)

    assert guard.start(barrier_s=5.0)
    assert guard.stats()["control_ready"] == 1
    assert guard.stats()["run_records"] == 1
    guard.close()


def test_without_kafka_the_guard_starts_open_and_says_so(caplog: pytest.LogCaptureFixture) -> None:
    """Agents go on; events wait in memory and follow in order."""
    transport = MemoryTransport()
    transport.is_down = True
    guard = Guard(transport, tenant=TENANT)
    assert not guard.start(barrier_s=0.01)
    with guard.run("r-42") as run:
        assert run.before_model().allowed
    assert guard.stats()["control_ready"] == 0
    assert guard.stats()["started_open"] == 1
    assert guard.stats()["events_queued"] == 2
    assert any("agents go on" in record.message for record in caplog.records)

    transport.is_down = False
    assert until(lambda: len(transport.steps) == 2)
    assert until(lambda: guard.stats()["control_ready"] == 1)
    guard.close()


def test_closing_sends_what_is_queued() -> None:
    """The last events of a run are the ones that tell how it ended."""
    transport = MemoryTransport()
    guard = Guard(transport, tenant=TENANT)
    guard.start()
    with guard.run("r-42"):
        pass
    guard.close()

    assert len(transport.steps) == 2
    assert guard.stats()["events_sent"] == 2


def test_closing_counts_what_could_not_be_sent() -> None:
    """A program that ends must not hang because Kafka is away, nor lose events in silence."""
    transport = MemoryTransport()
    transport.is_down = True
    guard = Guard(transport, tenant=TENANT)
    guard.start(barrier_s=0.0)
    with guard.run("r-42"):
        pass
    guard.close(flush_s=0.05)

    assert guard.stats()["events_unsent"] == 2
    assert not guard.start(barrier_s=0.0)


@pytest.mark.parametrize(
    "options",
    [{"tenant": "a b"}, {"tenant": ""}, {"fidelity": "low"}, {"result_chars": 0}, {"max_queue_events": -1}],
)
def test_impossible_settings_are_refused_at_once(options: dict[str, Any]) -> None:
    """A wrong setting is found when the program starts, not in the middle of a run."""
    with pytest.raises(ConfigError):
        Guard(MemoryTransport(), **{"tenant": TENANT, **options})


def test_events_are_dropped_from_the_oldest_when_kafka_stays_away() -> None:
    """Memory in somebody else's process is bounded."""
    bench = GuardBench(max_queue_events=10)
    bench.transport.is_down = True
    with bench.guard.run("r-42") as run:
        for n in range(20):
            run.progress(str(n))
        bench.pump()
    assert bench.guard.stats()["events_dropped"] > 0

    bench.transport.is_down = False
    bench.pump()
    assert bench.transport.steps[-1].seq == 21
    seqs = [step.seq for step in bench.transport.steps]
    assert seqs == sorted(seqs)


def test_numbers_are_plain_and_complete() -> None:
    """`stats` feeds any metrics library without ours."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        bench.transport.command(kill(run.key))
        bench.pump()
        numbers = bench.guard.stats()

    assert all(isinstance(value, int | float) for value in numbers.values())
    assert numbers["runs_live"] == 1
    assert numbers["commands_read"] == 1
    assert numbers["acks_applied"] == 1
    assert numbers["clock_skew_ms"] == 0


def test_a_step_of_the_bench_does_nothing_once_threads_run() -> None:
    """Two readers of one feed would each see half of the orders."""
    transport = MemoryTransport()
    guard = Guard(transport, tenant=TENANT)
    guard.start()
    guard.pump()
    guard.close()

    assert ours() == set()
