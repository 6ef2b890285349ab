"""A deployment with a runtime of its own, for tests of what people on call type."""

from __future__ import annotations

import contextlib
import io
import json
import threading
from typing import TYPE_CHECKING, Any, Self

from tests._support.workers import Deployment, wait_until

from loopwarden import Action, Guard, KafkaTransport, LoopwardenStopped
from loopwarden_streams import cli

if TYPE_CHECKING:
    from loopwarden import RunGuard
    from loopwarden_models.key_ring import KeyRing

TENANT = "acme"
STEP_S = 0.02


class Agent:
    """A run in a thread of its own that calls a tool until it is told to stop, or to be done.

    Attributes:
        calls: Calls that were allowed.
        ended: `completed`, `stopped`, or `refused`: it was not let begin.
    """

    def __init__(self, guard: Guard, run_id: str) -> None:
        self.run_id = run_id
        self.calls = 0
        self.ended = ""
        self.run: RunGuard | None = None
        self.is_done = threading.Event()
        self._guard = guard
        self._thread = threading.Thread(target=self._work, name=run_id, daemon=True)

        self._thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.is_done.set()
        self._thread.join(20.0)

    def begun(self) -> Self:
        """Wait until it has made calls."""
        wait_until(lambda: self.calls >= 3, f"{self.run_id} to work")
        return self

    def wait_ended(self) -> str:
        """Wait until it has ended, and return how."""
        wait_until(lambda: self.ended, f"{self.run_id} to end")
        return self.ended

    def _work(self) -> None:
        try:
            with self._guard.run(self.run_id, agent="clerk") as run:
                self.run = run
                while not self.is_done.wait(STEP_S):
                    decision = run.wait_if_paused_sync(0.1)
                    if decision.action is Action.PAUSE:
                        continue
                    call_id = f"c{self.calls}"
                    allowed = run.before_tool("look_up", {"n": self.calls}, call_id)
                    if allowed.allowed:
                        run.after_tool(call_id, result=f"answer {self.calls}")
                        self.calls += 1
                    run.raise_if_stopped()
        except LoopwardenStopped:
            self.ended = "stopped" if self.run is not None else "refused"
            return
        self.ended = "completed"


def guard_of(deployment: Deployment, *, key_ring: KeyRing | None = None) -> Guard:
    """Return a guard on the topics of a deployment, not started; with a key ring it requires signatures."""
    transport = KafkaTransport(deployment.bootstrap, prefix=deployment.prefix)
    is_strict = key_ring is not None
    return Guard(transport, tenant=TENANT, runtime_id="rt-1", key_ring=key_ring, require_signature=is_strict)


def told(deployment: Deployment, *words: str, status: int = 0) -> list[dict[str, Any]]:
    """Run a command with `--json` here, check its exit status, and return the objects that it printed."""
    flags = ("--brokers", deployment.bootstrap, "--topic-prefix", deployment.prefix, "--app-id", deployment.app_id)
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        found = cli.main([*words, "--json", *flags])
    assert found == status, f"{words}: {found}\n{out.getvalue()}\n{err.getvalue()}"
    return [json.loads(line) for line in out.getvalue().splitlines()]


def answers(events: list[dict[str, Any]]) -> list[str]:
    """Return the statuses of the answers among what a command printed."""
    return [event["status"] for event in events if event["event"] == "answer"]


def wait_listed(deployment: Deployment, run_id: str, *words: str) -> dict[str, Any]:
    """Wait until `loopwarden runs` lists a run, and return its row."""

    def look() -> dict[str, Any] | None:
        return next((row for row in told(deployment, "runs", *words) if row["run_id"] == run_id), None)

    found = wait_until(look, f"{run_id} to be listed")
    assert found is not None
    return found
