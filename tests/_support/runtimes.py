"""Processes that embed the real runtime library, asked by a test through a pipe.

    python -m tests._support.runtimes BOOTSTRAP PREFIX TENANT RUNTIME_ID

reads one JSON request per line and answers each with one line: `call` asks for a tool call in a run and, if it is
allowed, reports it as done, with the outcome that the request names; `watch` waits until a tool is refused, or is not,
and says when that was; `stats`.
"""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import time
from collections.abc import Iterator
from itertools import count
from typing import Any

from tests._support.broker import Broker
from tests._support.clients import NewTopicSpec, OutRecord, consume_all, create_topics, produce, unique_prefix

from loopwarden import Guard, KafkaTransport, RunGuard, SafetyNet
from loopwarden_models.codec import encode
from loopwarden_models.control_state import BreakerState, EnforcementRecord
from loopwarden_models.ids import control_partition

CONTROL_PARTITIONS = 8
_APPEND_TIME = {"message.timestamp.type": "LogAppendTime"}


def partition_of(tenant: str) -> int:
    """Return the partition in which a tenant's control records lie."""
    return control_partition(tenant, CONTROL_PARTITIONS)


class ControlTopics:
    """The topics of one test, seen from the side of the detector.

    Args:
        broker: Where they are.
        stamps_appends: False lets the writer stamp the records of `control.state`: to write those of two hours ago.
    """

    def __init__(self, broker: Broker, *, stamps_appends: bool = True) -> None:
        self.bootstrap = broker.bootstrap
        self.prefix = unique_prefix()
        state = {**(_APPEND_TIME if stamps_appends else {}), "cleanup.policy": "compact"}
        create_topics(
            self.bootstrap,
            {
                f"{self.prefix}steps": NewTopicSpec(2),
                f"{self.prefix}acks": NewTopicSpec(2),
                f"{self.prefix}control.state": NewTopicSpec(CONTROL_PARTITIONS, state),
                f"{self.prefix}control.commands": NewTopicSpec(CONTROL_PARTITIONS, _APPEND_TIME),
            },
        )

    def state(self, record: BreakerState | EnforcementRecord, *, at_ms: int | None = None) -> None:
        """Write a record of `control.state`, as the detector or an operator does."""
        self.raw(record.key, encode(record), at_ms=at_ms)

    def raw(self, key: str, value: bytes | None, *, at_ms: int | None = None) -> None:
        """Write any bytes; `None` is a tombstone."""
        record = OutRecord(partition_of(key.partition("|")[0]), key.encode(), value, at_ms)
        produce(self.bootstrap, f"{self.prefix}control.state", [record])

    def appended_ms(self, key: str) -> list[int]:
        """Return the append times of a key's records, in their order."""
        records = consume_all(self.bootstrap, f"{self.prefix}control.state")
        return [record.timestamp_ms for record in records if record.key == key.encode()]


class RuntimeProcess:
    """A process with a guard that has caught up. Close it."""

    def __init__(self, topics: ControlTopics, *, tenant: str = "acme", name: str = "rt") -> None:
        command = [sys.executable, "-m", "tests._support.runtimes", topics.bootstrap, topics.prefix, tenant, name]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self.is_ready: bool = self._answer()["is_ready"]

    def ask(self, **request: Any) -> dict[str, Any]:
        """Send a request and return its answer."""
        self.send(**request)
        return self._answer()

    def send(self, **request: Any) -> None:
        """Send a request whose answer is fetched later."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()

    def answer(self) -> dict[str, Any]:
        """Return the answer to the oldest request that is open."""
        return self._answer()

    def call(self, run_id: str, tool: str = "search", *, outcome: str = "ok") -> dict[str, Any]:
        """Ask for a call of a tool in a run; if it is allowed, it ends with this outcome."""
        return self.ask(do="call", run_id=run_id, tool=tool, outcome=outcome)

    def watch(self, *, refused: bool, tool: str = "search", timeout_s: float = 30.0) -> int:
        """Return the Unix milliseconds at which the tool was first refused, or allowed; 0 if it never was."""
        at_ms: int = self.ask(do="watch", tool=tool, refused=refused, timeout_s=timeout_s)["at_ms"]
        return at_ms

    def stats(self) -> dict[str, Any]:
        """Return the numbers of its guard."""
        return self.ask(do="stats")

    def until_counted(self, name: str, *, timeout_s: float = 30.0) -> int:
        """Wait for a count to begin and return it; 0 if it never did. Threads of the guard count when they wake up."""
        deadline_s = time.monotonic() + timeout_s
        while not (found := self.stats().get(name, 0)) and time.monotonic() < deadline_s:
            time.sleep(0.05)
        return int(found)

    def close(self) -> None:
        """Let it end by itself, all events sent."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(60)
        finally:
            self._process.kill()
            self._process.stdout.close()

    def _answer(self) -> dict[str, Any]:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise RuntimeError(f"the runtime process has ended with {self._process.wait(10)}")
        answer: dict[str, Any] = json.loads(line)
        return answer


@contextlib.contextmanager
def runtimes(topics: ControlTopics, number: int, **options: Any) -> Iterator[list[RuntimeProcess]]:
    """Start processes that have caught up, and close them."""
    with contextlib.ExitStack() as running:
        yield [
            running.enter_context(contextlib.closing(RuntimeProcess(topics, name=f"rt-{n}", **options)))
            for n in range(number)
        ]


class _Program:
    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._numbers = count()
        self._runs = contextlib.ExitStack()
        self._known: dict[str, RunGuard] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if request["do"] == "stats":
            return dict(self._guard.stats())
        if request["do"] == "watch":
            return {"at_ms": self._watch(**{name: request[name] for name in ("tool", "refused", "timeout_s")})}
        decision = self._call(request["run_id"], request["tool"], request["outcome"])
        return {"action": decision.action, "retry_after_ms": decision.retry_after_ms, "message": decision.message}

    def close(self) -> None:
        self._runs.close()

    def _call(self, run_id: str, tool: str, outcome: str = "ok") -> Any:
        run = self._known.get(run_id)
        if run is None:
            run = self._known[run_id] = self._runs.enter_context(self._guard.run(run_id))
        call_id = f"c{next(self._numbers)}"
        decision = run.before_tool(tool, {"query": call_id}, call_id)
        if decision.allowed:
            run.after_tool(call_id, outcome=outcome, result="an answer" if outcome == "ok" else None)
        return decision

    def _watch(self, tool: str, refused: bool, timeout_s: float) -> int:
        deadline_s = time.monotonic() + timeout_s
        while time.monotonic() < deadline_s:
            if self._call("watcher", tool).allowed is not refused:
                return time.time_ns() // 1_000_000
            time.sleep(0.002)
        return 0


def _main(bootstrap: str, prefix: str, tenant: str, name: str) -> None:
    transport = KafkaTransport(bootstrap, prefix=prefix, connect_timeout_s=2.0)
    guard = Guard(transport, tenant=tenant, runtime_id=name, safety_net=SafetyNet(max_refusals=None))
    print(json.dumps({"is_ready": guard.start(barrier_s=30.0)}), flush=True)
    program = _Program(guard)
    for line in sys.stdin:
        print(json.dumps(program.answer(json.loads(line))), flush=True)
    program.close()
    guard.close(flush_s=30.0)


if __name__ == "__main__":
    _main(*sys.argv[1:])
