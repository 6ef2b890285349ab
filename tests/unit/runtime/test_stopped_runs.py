"""Processes of stopped runs: real ones, and a clock that is turned by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator

import pytest
from tests._support.workers import wait_until

from loopwarden import Limits, RunGuard
from loopwarden.processes import process_table
from loopwarden.stopped_runs import GRACE_MS, KILL_AFTER_MS
from loopwarden.testing import GuardBench, kill

DEAF = (
    "import signal, sys, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('deaf', flush=True); time.sleep(60)"
)


@pytest.fixture
def started() -> Iterator[list[subprocess.Popen[str]]]:
    """Processes of a test, which are gone after it."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        process.kill()
        process.communicate()


def start(started: list[subprocess.Popen[str]], *command: str) -> subprocess.Popen[str]:
    """Start a process in a session of its own."""
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.PIPE, text=True)
    started.append(process)
    return process


def stop(bench: GuardBench, run: RunGuard, **fields: int) -> None:
    """Let the detector kill the run."""
    bench.transport.command(kill(run.key, **fields))
    bench.pump()
    assert run.stopped


def settled(bench: GuardBench) -> list[str]:
    """Look at everything once more, and return what was answered to the kill."""
    bench.pump()
    return bench.transport.statuses("c1")


def test_an_end_is_confirmed_when_the_processes_are_gone(started: list[subprocess.Popen[str]]) -> None:
    """That the code has returned proves nothing of what it started."""
    bench = GuardBench()
    sleeper = start(started, "sleep", "60")
    with bench.guard.run("r-42") as run:
        assert run.adopt(sleeper)
        assert bench.guard.stats()["processes_watched"] == 1
        stop(bench, run)
    assert settled(bench) == ["received", "applied"]
    assert run.before_tool("search", "q", "c1").action == "stop"
    bench.clock.advance(GRACE_MS - 1)
    assert settled(bench) == ["received", "applied"]
    assert sleeper.poll() is None

    sleeper.kill()
    sleeper.wait()
    assert settled(bench) == ["received", "applied", "confirmed_dead"]
    assert settled(bench) == ["received", "applied", "confirmed_dead"]
    stats = bench.guard.stats()
    assert (stats["processes_watched"], stats.get("processes_ended")) == (0, None)


def test_after_the_grace_the_whole_tree_is_ended(started: list[subprocess.Popen[str]]) -> None:
    """Also the child of a shell that is gone; the command's own grace counts."""
    bench = GuardBench()
    shell = start(started, "sh", "-c", "sleep 60 & echo $!")
    assert shell.stdout is not None
    with bench.guard.run("r-42") as run:
        assert run.adopt(shell)
        orphan = int(shell.stdout.readline())
        shell.wait()
        stop(bench, run, grace_ms=300)
    bench.clock.advance(299)
    assert settled(bench) == ["received", "applied"]
    assert orphan in process_table()

    bench.clock.advance(1)
    wait_until(lambda: "confirmed_dead" in settled(bench), "the orphan to be ended")
    ack = bench.transport.acks[-1]
    assert (ack.status, ack.detail) == ("confirmed_dead", "1 of its processes had to be ended")
    assert bench.guard.stats()["processes_ended"] == 1


def test_who_does_not_hear_sigterm_is_killed(started: list[subprocess.Popen[str]]) -> None:
    """Two seconds are given to finish."""
    bench = GuardBench()
    deaf = start(started, sys.executable, "-c", DEAF)
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == "deaf\n"
    with bench.guard.run("r-42") as run:
        run.adopt(deaf.pid)
        stop(bench, run)
        bench.clock.advance(GRACE_MS)
        bench.pump()
    bench.clock.advance(KILL_AFTER_MS - 1)
    assert settled(bench) == ["received", "applied"]
    assert deaf.poll() is None
    bench.clock.advance(1)
    wait_until(lambda: "confirmed_dead" in settled(bench), "the deaf to be killed")
    assert deaf.wait(10) == -9


def test_code_that_waits_for_its_process_gets_an_end(started: list[subprocess.Popen[str]]) -> None:
    """The grace counts from the stop, not from the return of the code: that may wait for the very process."""
    bench = GuardBench()
    sleeper = start(started, "sleep", "60")
    with bench.guard.run("r-42") as run:
        run.adopt(sleeper)
        stop(bench, run)
        bench.clock.advance(GRACE_MS)
        bench.pump()
        assert sleeper.wait(10) == -15
        assert settled(bench) == ["received", "applied"]
    assert settled(bench) == ["received", "applied", "confirmed_dead"]


def test_what_must_not_be_ended_is_waited_for(started: list[subprocess.Popen[str]]) -> None:
    """`end=False`: the kill stays unconfirmed for as long as it lives."""
    bench = GuardBench()
    sleeper = start(started, "sleep", "60")
    with bench.guard.run("r-42") as run:
        run.adopt(sleeper, end=False)
        stop(bench, run)
    bench.clock.advance(GRACE_MS + 2 * KILL_AFTER_MS)
    assert settled(bench) == ["received", "applied"]
    assert sleeper.poll() is None


def test_a_limit_ends_processes_too_and_a_plain_end_does_not(started: list[subprocess.Popen[str]]) -> None:
    """A run that ends by itself leaves behind what it likes."""
    bench = GuardBench()
    kept, ended = start(started, "sleep", "60"), start(started, "sleep", "60")
    with bench.guard.run("r-42") as run:
        run.adopt(kept)
    with bench.guard.run("r-43", limits=Limits(max_steps=0)) as run:
        run.adopt(ended)
        assert run.before_tool("search", "q", "c1").action == "stop"
    bench.pump()
    bench.clock.advance(GRACE_MS)
    bench.pump()
    assert ended.wait(10) == -15
    bench.pump()
    assert kept.poll() is None
    assert bench.guard.stats()["processes_watched"] == 0


def test_what_ended_long_ago_is_forgotten(started: list[subprocess.Popen[str]]) -> None:
    """A run may start thousands of processes."""
    bench = GuardBench()
    sleeper = start(started, "sleep", "60")
    with bench.guard.run("r-42") as run:
        run.adopt(sleeper)
        sleeper.kill()
        sleeper.wait()
        bench.pump()
        assert bench.guard.stats()["processes_watched"] == 0
        assert not run.adopt(sleeper)
        stop(bench, run)
    assert settled(bench) == ["received", "applied", "confirmed_dead"]


def test_the_host_itself_is_not_adopted() -> None:
    """An agent's mistake ends nobody, and is told in the numbers."""
    bench = GuardBench()
    with bench.guard.run("r-42") as run:
        assert not run.adopt(os.getpid())
        assert not run.adopt(os.getppid())
        stop(bench, run)
    assert settled(bench) == ["received", "applied", "confirmed_dead"]
    assert bench.guard.stats()["faults"] == 2


def test_a_host_that_goes_takes_them_along(started: list[subprocess.Popen[str]]) -> None:
    """Nobody would end them later: at the close the grace is over."""
    bench = GuardBench()
    deaf = start(started, sys.executable, "-c", DEAF)
    assert deaf.stdout is not None
    assert deaf.stdout.readline() == "deaf\n"
    with bench.guard.run("r-42") as run:
        run.adopt(deaf)
        stop(bench, run)
    bench.guard.close(flush_s=1.0)
    assert deaf.wait(10) == -9
