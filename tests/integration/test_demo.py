"""`loopwarden demo` as whoever tries it sees it: on the embedded broker, in processes of its own."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

pytestmark = pytest.mark.slow

# The demonstration itself takes half a minute; the rest is for machines that do other things as well.
LIMIT_S = 180.0


class Demo:
    """A demonstration in the background, and every process that it was seen to start."""

    def __init__(self, folder: Path, *words: str) -> None:
        self.err_path = folder / "err.txt"
        self._out_path = folder / "out.txt"
        command = [sys.executable, "-m", "loopwarden_streams.cli", "demo", "--no-view", *words]
        with self._out_path.open("wb") as out, self.err_path.open("wb") as err:
            self.process = subprocess.Popen(command, stdout=out, stderr=err)
        self._seen: set[psutil.Process] = set()

    def wait_until(self, is_so: Callable[[], bool]) -> None:
        """Wait for something, and look out for processes."""
        deadline = time.monotonic() + LIMIT_S
        while not is_so():
            self._look()
            if time.monotonic() > deadline:
                self.process.kill()
                pytest.fail(f"it did not come to that; standard error:\n{self.err}")
            time.sleep(0.1)

    def end(self) -> int:
        """Wait for the end and return the exit status."""
        self.wait_until(lambda: self.process.poll() is not None)
        return self.process.wait()

    def child(self, word: str) -> psutil.Process:
        """Return the process that has `word` in its command line, the shell around it left out."""
        self._look()
        (found,) = [
            process
            for process in self._seen
            if process.is_running() and word in (words := process.cmdline()) and words[0] != "/bin/sh"
        ]
        return found

    def left_over(self) -> list[psutil.Process]:
        """Return processes that were started and still run, a moment after the end."""
        _, alive = psutil.wait_procs(self._seen, timeout=5.0)
        return alive

    @property
    def processes(self) -> int:
        """How many processes it was seen to start."""
        return len(self._seen)

    @property
    def err(self) -> str:
        """Standard error so far."""
        return self.err_path.read_text(encoding="utf-8")

    @property
    def out(self) -> str:
        """Standard output so far."""
        return self._out_path.read_text(encoding="utf-8")

    def _look(self) -> None:
        with contextlib.suppress(psutil.NoSuchProcess):
            self._seen.update(psutil.Process(self.process.pid).children(recursive=True))


def folders() -> set[Path]:
    """Return the temporary folders of demonstrations."""
    temporary = Path(tempfile.gettempdir())
    return {*temporary.glob("loopwarden-demo-*"), *temporary.glob("loopwarden-broker-*")}


def test_every_loop_is_stopped_and_nothing_else(tmp_path: Path) -> None:
    """The promise of the README, on the real thing: a broker, a worker, agents in processes of their own."""
    before = folders()
    demo = Demo(tmp_path, "--json")

    status = demo.end()

    assert status == 0, demo.err
    found = json.loads(demo.out.splitlines()[-1])
    latency = found.pop("latency_ms")
    assert found == {"ok": True, "looping": {"of": 9, "stopped": 9}, "healthy": {"of": 20, "touched": 0}}
    assert set(latency) == {"applied", "confirmed_dead"}
    for quantiles in latency.values():
        assert 0 < quantiles["p50"] <= quantiles["p99"]
    assert "one nudge, and it finished by itself" in demo.err
    assert "20 of 20 healthy runs: not stopped, not paused, not nudged" in demo.err
    assert demo.processes >= 6, "broker, proxy, worker and three processes of agents"
    assert demo.left_over() == []
    assert folders() <= before


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything(tmp_path: Path, number: signal.Signals) -> None:
    """In the middle of it, and without a trace."""
    before = folders()
    demo = Demo(tmp_path, "--json")
    demo.wait_until(lambda: " kill " in demo.err)

    demo.process.send_signal(number)

    assert demo.end() == 130
    assert "Traceback" not in demo.err
    assert demo.left_over() == []
    assert folders() <= before


def test_a_worker_that_dies_is_told_with_its_output(tmp_path: Path) -> None:
    """Its log goes with the folder, so what matters of it is in the message."""
    before = folders()
    demo = Demo(tmp_path, "--json")
    demo.wait_until(lambda: " nudge " in demo.err)

    demo.child("worker").kill()

    assert demo.end() == 1
    assert json.loads(demo.out.splitlines()[-1])["ok"] is False
    assert "loopwarden demo: the worker has ended; the end of its output:" in demo.err
    assert "nudge of run" in demo.err.split("the end of its output:")[1]
    assert demo.left_over() == []
    assert folders() <= before


def test_a_loop_that_is_not_stopped_is_a_failure(tmp_path: Path) -> None:
    """A demonstration that cannot fail shows nothing: here the time is too short for most."""
    demo = Demo(tmp_path, "--json", "--seconds", "8", "--agents", "12", "--seed", "3")

    status = demo.end()

    found = json.loads(demo.out.splitlines()[-1])
    assert (status, found["ok"]) == (1, False)
    assert found["looping"]["stopped"] < found["looping"]["of"]
    assert "survived" in demo.err
    assert demo.left_over() == []
