"""Reports of what happens in a run beside model calls and tool calls."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from loopwarden.clock import Clock
from loopwarden.faults import Counters
from loopwarden.gate import Gate
from loopwarden.limits import Budget
from loopwarden.reporter import Reporter
from loopwarden_models.events import ApprovalEnd, ApprovalWait, Compaction, Message, Progress, Step, UserInput


class RunEvents:
    """The part of `RunGuard` that only reports. Thread-safe; nothing here waits or raises. Cost: about 2 µs a call."""

    def __init__(
        self, *, reporter: Reporter, gate: Gate, budget: Budget | None, clock: Clock, counters: Counters
    ) -> None:
        self._reporter = reporter
        self._gate = gate
        self._budget = budget
        self._clock = clock
        self._counters = counters
        self._waiting_calls = 0
        self._waiting_since_ms = 0.0

    def user_input(self) -> None:
        """Report that a person spoke: repetition is counted afresh from here."""
        self._report(UserInput, {})

    def approval_wait(self, call_id: str) -> None:
        """Report that the run waits for a person; the time until `approval_end` counts against no limit."""
        self._begin_wait()
        self._report(ApprovalWait, {"call_id": call_id})

    def approval_end(self, call_id: str, decision: Literal["approved", "rejected", "expired"]) -> None:
        """Report what the person decided. After a stop nothing is approved: the decision is reported as `expired`."""
        self._end_wait()
        valid = decision if self._gate.cause is None else "expired"
        self._report(ApprovalEnd, {"call_id": call_id, "decision": valid})

    def compaction(self, *, tokens_before: int | None = None, tokens_after: int | None = None) -> None:
        """Report that the model's context was shortened."""
        self._report(Compaction, {"tokens_before": tokens_before, "tokens_after": tokens_after})

    def progress(self, note: str | None = None) -> None:
        """Report that the task moved on: one more test passes, one more page is covered. It can save a healthy run."""
        self._report(Progress, {"note": note}, note)

    def message(self, *, to_run_id: str | None = None, to_agent: str | None = None, text: str | None = None) -> None:
        """Report a message to another agent."""
        self._report(Message, {"to_run_id": to_run_id, "to_agent": to_agent, "text": text}, text)

    def _begin_wait(self) -> None:
        self._waiting_calls += 1
        if self._waiting_calls == 1:
            self._waiting_since_ms = self._clock.monotonic_ms()

    def _end_wait(self) -> None:
        if self._waiting_calls > 0:
            self._waiting_calls -= 1
            if self._waiting_calls == 0:
                self._add_waiting(self._waiting_since_ms)

    def _add_waiting(self, since_ms: float) -> None:
        if self._budget is not None:
            self._budget.add_waiting(self._clock.monotonic_ms() - since_ms)

    def _report(self, kind: type[Step], fields: Mapping[str, Any], text: str | None = None) -> None:
        try:
            self._reporter.emit(kind, fields, text_chars=0 if text is None else len(text))
        except Exception as error:  # noqa: BLE001 - nothing of ours raises into the agent
            self._counters.fault(kind.__name__, error)
