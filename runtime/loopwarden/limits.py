"""The limits a run was started with, counted in the process and obeyed without Kafka.

A step is a tool call, counted when it starts: a batch of eight with three left starts three. Children draw on the
budgets of all their ancestors in this process; the smallest always binds.
"""

from __future__ import annotations

import threading

from loopwarden_models.events import Limits


class Budget:
    """What a run and its descendants may use, and have used. Thread-safe: one lock per tree, held for a few counts.

    Tokens and cost are known only when a model call ends. Until then each call that is out is reserved with the mean
    of those that ended, at most one call per run. What can be overspent is thus what was out at that moment.
    """

    def __init__(self, limits: Limits, *, now_ms: float, parent: Budget | None = None) -> None:
        self._limits = limits
        self._lock: threading.Lock = parent._lock if parent is not None else threading.Lock()  # noqa: SLF001 - same class
        self._chain: tuple[Budget, ...] = (self, *(parent._chain if parent is not None else ()))  # noqa: SLF001
        self._started_ms = now_ms
        self._waited_ms = 0.0
        self._steps = 0
        self._model_calls = 0
        self._ended = 0
        self._out = 0
        self._tokens = 0
        self._cost_usd = 0.0

    def start_tool(self, now_ms: float) -> str | None:
        """Count a tool call, or return the limit that forbids it. A refused call is not counted.

        Args:
            now_ms: Monotonic milliseconds.

        Returns:
            `None` if the call may start, else the reason for people.

        Cost: about 0.8 µs per level of the tree that has limits.
        """
        with self._lock:
            for budget in self._chain:
                if (reason := budget._exceeded(now_ms, reserved=0)) is not None:  # noqa: SLF001
                    return reason
                limit = budget._limits.max_steps  # noqa: SLF001
                if limit is not None and budget._steps >= limit:  # noqa: SLF001
                    return f"limit max_steps reached: {budget._steps} of {limit}"  # noqa: SLF001
            for budget in self._chain:
                budget._steps += 1  # noqa: SLF001
        return None

    def start_model(self, now_ms: float, *, reserve: bool) -> str | None:
        """Count a model call and reserve what it may use, or return the limit that forbids it.

        Args:
            now_ms: Monotonic milliseconds.
            reserve: False if this run has a call out already whose end was never reported.
        """
        with self._lock:
            for budget in self._chain:
                if (reason := budget._exceeded(now_ms, reserved=budget._out)) is not None:  # noqa: SLF001
                    return reason
                limit = budget._limits.max_model_calls  # noqa: SLF001
                if limit is not None and budget._model_calls >= limit:  # noqa: SLF001
                    return f"limit max_model_calls reached: {budget._model_calls} of {limit}"  # noqa: SLF001
            for budget in self._chain:
                budget._model_calls += 1  # noqa: SLF001
                budget._out += reserve  # noqa: SLF001
        return None

    def end_model(self, tokens: int, cost_usd: float | None, *, reserved: bool) -> None:
        """Count what a model call used. An unknown cost is not zero: the token limit stands in for it."""
        with self._lock:
            for budget in self._chain:
                budget._out -= reserved  # noqa: SLF001
                budget._ended += 1  # noqa: SLF001
                budget._tokens += tokens  # noqa: SLF001
                budget._cost_usd += cost_usd or 0.0  # noqa: SLF001

    def spend(self, cost_usd: float) -> None:
        """Count the cost of a tool call."""
        with self._lock:
            for budget in self._chain:
                budget._cost_usd += cost_usd  # noqa: SLF001

    def release(self) -> None:
        """Give back the reservation of a run that ended with a model call out."""
        with self._lock:
            for budget in self._chain:
                budget._out -= 1  # noqa: SLF001

    def add_waiting(self, waited_ms: float) -> None:
        """Leave the time that a run waited for a person, or was paused, out of the wall clock of its tree."""
        with self._lock:
            for budget in self._chain:
                budget._waited_ms += waited_ms  # noqa: SLF001

    def _exceeded(self, now_ms: float, *, reserved: int) -> str | None:
        limits = self._limits
        calls = reserved / self._ended if self._ended else 0.0
        if limits.max_tokens is not None and self._tokens * (1.0 + calls) >= limits.max_tokens:
            return f"limit max_tokens reached: {self._tokens} of {limits.max_tokens}{_under_way(reserved)}"
        if limits.max_cost_usd is not None and self._cost_usd * (1.0 + calls) >= limits.max_cost_usd:
            return f"limit max_cost_usd reached: {self._cost_usd:.4g} of {limits.max_cost_usd:g}{_under_way(reserved)}"
        if limits.max_duration_ms is not None:
            used_ms = now_ms - self._started_ms - self._waited_ms
            if used_ms >= limits.max_duration_ms:
                return f"limit max_duration_ms reached: {used_ms:.0f} of {limits.max_duration_ms}"
        return None


def _under_way(calls: int) -> str:
    return f" with {calls} more calls under way" if calls else ""


def has_limits(limits: Limits | None) -> bool:
    """Return whether any limit is set."""
    return limits is not None and limits != Limits()
