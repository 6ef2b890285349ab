"""Runs in other processes, played from a test: the scripts stand in the test, `import loopwarden` in the process."""

from __future__ import annotations

import itertools
import json
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import msgspec
from tests._support.workers import python_path, wait_until

from loopwarden import RunKey, SpawnRefusedError
from loopwarden.testing import TENANT
from loopwarden_streams.embedded_broker import tail

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path
    from types import TracebackType

# An agent that thinks this long between its steps leaves the detector time to answer, and a loop is over in a second.
LAP_S = 0.03
PATIENCE_S = 30.0


class StartRefusedError(Exception):
    """The run was not started.

    Attributes:
        command_id: The command behind it.
        status: Of its `run_end`.
    """

    def __init__(self, reason: str, command_id: str | None, status: str) -> None:
        super().__init__(reason)
        self.command_id = command_id
        self.status = status


class Host:
    """A process that hosts runs. Ends with the test process, or at the exit of its context.

    Args:
        bootstrap: Address of the broker.
        prefix: Of the topics.
        runtime_id: Its name in acknowledgements.
        log_path: Where its error output goes.
    """

    def __init__(self, bootstrap: str, prefix: str, runtime_id: str, log_path: Path) -> None:
        self.runtime_id = runtime_id
        self._log_path = log_path
        self._tenants: set[str] = set()
        with log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests._support.runtime_host", bootstrap, prefix, runtime_id],
                env={**os.environ, "PYTHONPATH": python_path()},
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )

    @property
    def pid(self) -> int:
        """Process id, for signals."""
        return self._process.pid

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        if error is not None:
            print(f"--- log of {self.runtime_id}\n{tail(self._log_path)}")
        self.kill()

    def ask(self, do: str, **fields: Any) -> Any:
        """Have the process do something, and return its answer; see `runtime_host.RuntimeHost`."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"do": do, **fields}) + "\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        assert line, f"{self.runtime_id} has ended\n{tail(self._log_path)}"
        answer = json.loads(line)
        assert "error" not in answer, answer["error"]
        return answer["ok"]

    def guard(self, tenant: str = TENANT, *, skew_ms: int = 0, asks_for_s: float | None = None, **options: Any) -> Self:
        """See to it that the tenant has a guard that has caught up; returns the host.

        Args:
            tenant: Whose.
            skew_ms: Of the host's clock.
            asks_for_s: People are asked for every call of `pay`, for so many seconds.
            options: Others of `Guard`.
        """
        if tenant not in self._tenants:
            assert self.ask("guard", tenant=tenant, skew_ms=skew_ms, asks_for_s=asks_for_s, **options), (
                "the control topics were not read"
            )
            self._tenants.add(tenant)
        return self

    def run(
        self, run_id: str, *, tenant: str = TENANT, parent: RunKey | None = None, child_of: RemoteRun | None = None,
        limits: Mapping[str, float] | None = None, **fields: Any,
    ) -> RemoteRun:  # fmt: skip
        """Begin a run: of a parent in another process, or as a child of one in this.

        Raises:
            StartRefusedError: It is bound by an order.
            SpawnRefusedError: Its parent must not start it.
        """
        self.guard(tenant)
        found = self.ask(
            "enter",
            run_id=run_id,
            tenant=tenant,
            parent=msgspec.to_builtins(parent),
            child_of=None if child_of is None else child_of.number,
            limits=limits,
            **fields,
        )
        if "spawn_refused" in found:
            raise SpawnRefusedError(found["spawn_refused"])
        if "refused" in found:
            raise StartRefusedError(found["refused"], found["command_id"], found["status"])
        return RemoteRun(self, found["number"], msgspec.convert(found["key"], RunKey))

    def stats(self, tenant: str = TENANT) -> dict[str, float]:
        """Return the numbers of a guard."""
        return dict(self.ask("stats", tenant=tenant))

    def hold(self, topic: str, *statuses: str, tenant: str = TENANT) -> None:
        """Keep back what goes to a topic: acknowledgements of these statuses, or `"all"`; nothing named: let go."""
        self.guard(tenant).ask("hold", tenant=tenant, topic=topic, statuses=statuses)

    def flush(self) -> None:
        """Wait until everything that was reported lies in Kafka."""
        wait_until(lambda: not self.ask("unsent"), f"{self.runtime_id} to be flushed")

    def is_running(self) -> bool:
        """Return whether the process has not ended yet."""
        return self._process.poll() is None

    def kill(self) -> None:
        """End it by SIGKILL, as a host that loses its power. Returns when it is gone."""
        self._process.kill()
        self._process.communicate()


class RemoteRun:
    """A run in a host's process.

    Attributes:
        number: What its host knows it by.
        key: Its identity.
    """

    def __init__(self, host: Host, number: int, key: RunKey) -> None:
        self.host = host
        self.number = number
        self.key = key
        self._calls = itertools.count(1)

    @property
    def is_stopped(self) -> bool:
        """True once it was stopped."""
        return bool(self.host.ask("stopped", number=self.number))

    @property
    def cancelled(self) -> list[str]:
        """What the agent's own `cancel` was called with."""
        return list(self.host.ask("cancelled", number=self.number))

    def start_caller(self) -> int:
        """Start a process of the run's that asks for tool calls for ever; returns its id."""
        return int(self.host.ask("start_caller", number=self.number))

    @property
    def calls(self) -> list[str]:
        """What that process was answered so far."""
        return list(self.host.ask("calls", number=self.number))

    def tell(self, what: str, *words: Any, **fields: Any) -> Any:
        """Call a method of its `RunGuard`."""
        return self.host.ask("tell", number=self.number, what=what, words=words, **fields)

    def begin(self, tool: str = "search", args: Any = "q", *, call_id: str, effect: str = "read") -> str:
        """Ask for a call and return the action that was answered."""
        return str(self.tell("before_tool", tool, args, call_id, effect=effect)["action"])

    def end(self, call_id: str, **fields: Any) -> None:
        """Report the end of a call."""
        self.tell("after_tool", call_id, **fields)

    def call(self, tool: str = "search", args: Any = "q", result: Any = "nothing new", **fields: Any) -> str:
        """Make a whole call, if it may be made; returns the action that was answered."""
        call_id = f"{self.key.incarnation}-{next(self._calls)}"
        effect = fields.pop("effect", "read")
        action = self.begin(tool, args, call_id=call_id, effect=effect)
        if action == "allow":
            self.end(call_id, result=result, **fields)
        return action

    def prompt(self, **answer: Any) -> list[str]:
        """Build the next prompt, nudges in it, and have the model answer; returns the nudges."""
        texts = self.take_nudges()
        self.deliver()
        if self.tell("before_model")["action"] == "allow":
            self.tell("after_model", **answer)
        return texts

    def take_nudges(self) -> list[str]:
        """Take the nudges that wait, without a word that they stand in a prompt."""
        return list(self.host.ask("take_nudges", number=self.number))

    def deliver(self) -> None:
        """Say of all nudges that were taken that they stand in a prompt."""
        self.host.ask("deliver", number=self.number)

    def leave(self, *, fails: bool = False) -> None:
        """Return from the run's code."""
        self.host.ask("leave", number=self.number, fails=fails)

    def repeat(
        self, until: Callable[[], object], *, args: Sequence[Any] = ("q",), reads: bool = True, what: str = "the order"
    ) -> int:
        """Go round in a loop of `search` calls, one for each of `args`, until something is true; returns the laps.

        Args:
            until: Looked at after each lap.
            args: Of one call each lap, or of several.
            reads: Whether prompts are built on the way, so that nudges are read.
            what: What is waited for, for the message.
        """
        deadline = time.monotonic() + PATIENCE_S
        for lap in itertools.count(1):
            if reads:
                self.prompt()
            for each in args:
                self.call("search", each, f"the answer to {each}")
            if until():
                return lap
            assert time.monotonic() < deadline, f"{self.key.run_id} went round {lap} times, and {what} did not come"
            time.sleep(LAP_S)
        raise AssertionError
