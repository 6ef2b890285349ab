"""A process that hosts runs through `import loopwarden` and does what a test asks of it, line by line.

Run as `python -m tests._support.runtime_host BOOTSTRAP PREFIX RUNTIME_ID`. A line of standard input is a request, as
JSON: `{"do": "enter", "run_id": "r-42"}`. The answer is a line of standard output: `{"ok": …}`, or `{"error": …}` with
a traceback. The process ends with its input. `hosts.Host` is the other end.
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
import traceback
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from loopwarden import (
    Approvals,
    Guard,
    KafkaTransport,
    Limits,
    LoopwardenStopped,
    Nudge,
    RunGuard,
    RunKey,
    SpawnRefusedError,
)
from loopwarden.approvals import DEFAULTS
from loopwarden.records import Outgoing, Outlet
from loopwarden_models.errors import TransportError

ALL = "all"

# A shell starts something that calls tools all the time, tells its process id, and ends.
CALLER = "while :; do echo call; sleep 0.05; done & echo $!"


class HeldTransport(KafkaTransport):
    """Kafka behind a door that the test can close for what leaves: steps, or acknowledgements of some kinds."""

    def __init__(self, bootstrap: str, prefix: str) -> None:
        super().__init__(bootstrap, prefix=prefix, connect_timeout_s=2.0)
        self.held: dict[Outlet, Collection[str]] = {}

    def send(self, topic: Outlet, batch: Sequence[Outgoing]) -> tuple[Sequence[Outgoing], int]:
        """Send what is not held, and say of the rest that it has to be sent again."""
        held = self.held.get(topic, ())
        kept = [record for record in batch if ALL in held or (held and json.loads(record.value).get("status") in held)]
        if len(kept) == len(batch):
            raise TransportError("held back by the test")
        unsent, refused = super().send(topic, [record for record in batch if record not in kept])
        return [*unsent, *kept], refused


class SkewedClock:
    """The host's clocks, the one on the wall wrong by `skew_ms`."""

    def __init__(self, skew_ms: int) -> None:
        self._skew_ms = skew_ms

    def unix_ms(self) -> int:
        """Return what the wall shows, Unix milliseconds."""
        return time.time_ns() // 1_000_000 + self._skew_ms

    def monotonic_ms(self) -> float:
        """Return monotonic milliseconds."""
        return time.monotonic_ns() / 1e6


class RuntimeHost:
    """What a test may ask for: each public method is a request."""

    def __init__(self, bootstrap: str, prefix: str, runtime_id: str) -> None:
        self._where = (bootstrap, prefix)
        self._runtime_id = runtime_id
        self._guards: dict[str, tuple[Guard, HeldTransport]] = {}
        self._runs: list[RunGuard] = []
        self._cancelled: dict[int, list[str]] = {}
        self._nudges: dict[int, list[Nudge]] = {}
        self._calls: dict[int, list[str]] = {}

    def guard(
        self, tenant: str, *, skew_ms: int = 0, barrier_s: float = 30.0, asks_for_s: float | None = None, **options: Any
    ) -> bool:
        """Start the guard of a tenant, if there is none yet; returns whether it has caught up."""
        known = self._guards.get(tenant)
        if known is None:
            transport = HeldTransport(*self._where)
            approvals = DEFAULTS if asks_for_s is None else Approvals(tools=["pay"], timeout_s=asks_for_s)
            guard = Guard(
                transport,
                tenant=tenant,
                runtime_id=self._runtime_id,
                clock=SkewedClock(skew_ms),
                approvals=approvals,
                **options,
            )
            known = self._guards[tenant] = (guard, transport)
        return known[0].start(barrier_s=barrier_s)

    def enter(
        self,
        run_id: str,
        *,
        tenant: str,
        limits: dict[str, Any] | None = None,
        parent: dict[str, Any] | None = None,
        child_of: int | None = None,
        **fields: Any,
    ) -> dict[str, Any]:
        """Begin a run; returns its number and key, or why it was not started."""
        number = len(self._runs)
        heard = self._cancelled[number] = []
        options = {
            **fields,
            "limits": None if limits is None else msgspec.convert(limits, Limits),
            "cancel": heard.append,
        }
        key = None if parent is None else msgspec.convert(parent, RunKey)
        try:
            if child_of is not None:
                run = self._runs[child_of].child(run_id, **options)
            else:
                run = self._guards[tenant][0].run(run_id, parent=key, **options)
        except SpawnRefusedError as refusal:
            return {"spawn_refused": str(refusal)}
        self._runs.append(run)
        self._nudges[number] = []
        try:
            run.__enter__()
        except LoopwardenStopped as stop:
            return {"refused": str(stop), "command_id": stop.command_id, "status": stop.status}
        return {"number": number, "key": msgspec.to_builtins(run.key)}

    def tell(self, number: int, what: str, words: Sequence[Any], **fields: Any) -> Any:
        """Call a method of the run's guard, and return what it gave."""
        return msgspec.to_builtins(getattr(self._runs[number], what)(*words, **fields))

    def start_caller(self, number: int) -> int:
        """Start a process of the run's, which goes on for ever to ask for tool calls; returns its id."""
        run, answers = self._runs[number], self._calls.setdefault(number, [])
        shell = subprocess.Popen(["sh", "-c", CALLER], stdout=subprocess.PIPE, text=True, start_new_session=True)
        run.adopt(shell)
        assert shell.stdout is not None
        pid = int(next(line for line in shell.stdout if line != "call\n"))
        requests = shell.stdout

        def serve() -> None:
            for count, _ in enumerate(requests):
                decision = run.before_tool("search", f"q{count}", f"process-{count}", effect="read")
                if decision.allowed:
                    run.after_tool(f"process-{count}", result=count)
                answers.append(decision.action)
            shell.wait()

        threading.Thread(target=serve, daemon=True).start()
        return pid

    def calls(self, number: int) -> list[str]:
        """Return what was answered to the process of a run."""
        return list(self._calls[number])

    def stopped(self, number: int) -> bool:
        """Return whether the run was stopped."""
        return self._runs[number].stopped

    def take_nudges(self, number: int) -> list[str]:
        """Return the texts that the next prompt has to carry."""
        taken = list(self._runs[number].nudges())
        self._nudges[number] += taken
        return [nudge.text for nudge in taken]

    def deliver(self, number: int) -> None:
        """Say of everything that was taken that it stands in a prompt."""
        for nudge in self._nudges[number]:
            nudge.delivered()
        self._nudges[number].clear()

    def leave(self, number: int, *, fails: bool = False) -> None:
        """The run's code returns, by an exception if it `fails`."""
        error = RuntimeError("the agent's own") if fails else None
        self._runs[number].__exit__(None if error is None else type(error), error, None)

    def cancelled(self, number: int) -> list[str]:
        """Return what the agent's own `cancel` was called with."""
        return self._cancelled[number]

    def hold(self, tenant: str, topic: Outlet, statuses: Sequence[str]) -> None:
        """Let nothing of these statuses, or nothing at all, through to a topic from now on; no statuses: let all."""
        self._guards[tenant][1].held[topic] = tuple(statuses)

    def stats(self, tenant: str) -> dict[str, int | float]:
        """Return the numbers of a guard."""
        return self._guards[tenant][0].stats()

    def unsent(self) -> int:
        """Return how many events and acknowledgements wait."""
        numbers = [guard.stats() for guard, _ in self._guards.values()]
        return int(sum(each["events_queued"] + each["acks_queued"] for each in numbers))


def main(bootstrap: str, prefix: str, runtime_id: str) -> None:
    """Answer requests until the input ends."""
    host = RuntimeHost(bootstrap, prefix, runtime_id)
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"ok": getattr(host, request.pop("do"))(**request)}
        except Exception:  # noqa: BLE001 - the test reads it and fails
            answer = {"error": traceback.format_exc()}
        sys.stdout.write(json.dumps(answer) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(*sys.argv[1:])
