"""Agents that call one HTTP tool as long as they live, in a process with a guard of its own.

Run as `python -m tests._support.http_agents BOOTSTRAP PREFIX TENANT RUNTIME_ID URL RUN…`: one thread a run. Each asks
before a call, and calls the service if it may. A line of standard output is one answer of the guard, as
`[run, Unix ms, action]`, the first line `"ready"`. Closing standard input ends them. `Agents` is the other end.
"""

from __future__ import annotations

import http.client
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from typing import TYPE_CHECKING, NamedTuple, Self
from urllib.parse import urlsplit

from tests._support.workers import python_path, wait_until

from loopwarden import Guard, KafkaTransport

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

TOOL = "flights"
# A model would think for longer: the shorter, the finer it is seen when the guard begins to refuse.
THINKS_S = 0.02


class Answer(NamedTuple):
    """What the guard answered to one wish to call the tool, and when, in Unix milliseconds."""

    run_id: str
    at_ms: int
    action: str


class Agents:
    """A process of agents of one tenant. Ends at the exit of its context.

    Attributes:
        answers: What the guard answered, in order; only ever added to.
    """

    def __init__(
        self, bootstrap: str, prefix: str, tenant: str, name: str, url: str, runs: Sequence[str], log_path: Path
    ) -> None:
        self.tenant = tenant
        self.runs = list(runs)
        self.answers: list[Answer] = []
        self._is_ready = False
        words = ["-m", "tests._support.http_agents", bootstrap, prefix, tenant, name, url, *runs]
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, *words],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        self._reader = threading.Thread(target=self._read, daemon=True)

    def begin(self) -> None:
        """Let the agents begin, once the guard has read everything."""
        wait_until(lambda: self._is_ready, f"the guard of {self.tenant}")
        assert self._process.stdin is not None
        self._process.stdin.write("go\n")
        self._process.stdin.flush()

    def __enter__(self) -> Self:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(30)
        finally:
            self._process.kill()
            self._reader.join(10)
            self._process.stdout.close()

    def _read(self) -> None:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            said = json.loads(line)
            if said == "ready":
                self._is_ready = True
            else:
                self.answers.append(Answer(*said))


def _agent(guard: Guard, url: str, tenant: str, run_id: str, over: threading.Event, lock: threading.Lock) -> None:
    where = urlsplit(url)
    connection = http.client.HTTPConnection(where.hostname or "", where.port, timeout=10)
    with guard.run(run_id) as run:
        for number in itertools.count():
            if over.wait(THINKS_S):
                return
            call_id = f"c{number}"
            decision = run.before_tool(TOOL, {"page": number}, call_id, effect="read")
            line = json.dumps([run_id, time.time_ns() // 1_000_000, decision.action.value])
            with lock:
                print(line, flush=True)
            if not decision.allowed:
                continue
            connection.request("GET", f"/{tenant}/{run_id}")
            response = connection.getresponse()
            body = response.read().decode()
            if response.status == 200:
                run.after_tool(call_id, result=body)
            else:
                error = {"class": "HTTPError", "message": body, "status": response.status}
                run.after_tool(call_id, outcome="error", error=error)


def _main(bootstrap: str, prefix: str, tenant: str, name: str, url: str, *runs: str) -> None:
    guard = Guard(KafkaTransport(bootstrap, prefix=prefix), tenant=tenant, runtime_id=name)
    assert guard.start(barrier_s=30.0), guard.stats()
    print(json.dumps("ready"), flush=True)
    sys.stdin.readline()
    over, lock = threading.Event(), threading.Lock()
    threads = [threading.Thread(target=_agent, args=(guard, url, tenant, run_id, over, lock)) for run_id in runs]
    for thread in threads:
        thread.start()
    sys.stdin.read()
    over.set()
    for thread in threads:
        thread.join()
    guard.close(flush_s=5.0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
