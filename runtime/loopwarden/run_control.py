"""The part of a run's guard that answers whether it may go on."""

from __future__ import annotations

import time
from math import inf

from loopwarden.approvals import RunApprovals
from loopwarden.breakers import Breaker, Breakers
from loopwarden.broker_clock import BrokerClock
from loopwarden.clock import Clock
from loopwarden.decisions import ALLOW, Action, Decision, LoopwardenStopped, StopCause
from loopwarden.faults import Counters
from loopwarden.gate import Gate
from loopwarden.limits import Budget
from loopwarden.processes import HasPid
from loopwarden.refusals import Refusal, unavailable
from loopwarden.reporter import Reporter
from loopwarden.run_events import RunEvents
from loopwarden.stopped_runs import StoppedRuns
from loopwarden_models.events import ToolError

_PAUSE_POLL_S = 0.05


class RunControl(RunEvents):
    """Stop, pause, blocked tools, breakers and processes of one run. Thread-safe."""

    def __init__(
        self,
        *,
        reporter: Reporter,
        gate: Gate,
        budget: Budget | None,
        clock: Clock,
        counters: Counters,
        broker: BrokerClock,
        breakers: Breakers,
        stopped_runs: StoppedRuns,
        max_pause_s: float,
        approvals: RunApprovals,
    ) -> None:
        super().__init__(reporter=reporter, gate=gate, budget=budget, clock=clock, counters=counters)
        self._broker = broker
        self._breakers = breakers
        self._stopped_runs = stopped_runs
        self._max_pause_s = max_pause_s
        self._approvals = approvals

    @property
    def stopped(self) -> bool:
        """True once the run was stopped; it stays true. Cost: 0.05 µs."""
        return self._gate.cause is not None

    def raise_if_stopped(self) -> None:
        """Do nothing while the run may go on.

        Raises:
            LoopwardenStopped: The run was stopped.
        """
        cause = self._gate.cause
        if cause is not None:
            raise LoopwardenStopped(cause.reason, cause.command_id, cause.status)

    async def wait_if_paused(self, timeout_s: float | None = None) -> Decision:
        """Wait without blocking the event loop (asyncio) while the run is paused, or a question of it is open.

        Args:
            timeout_s: Longest wait in seconds; by default the guard's `max_pause_s`.

        Returns:
            `ALLOW` when it may go on, `STOP` when it was stopped meanwhile, `PAUSE` when the time is over: then end
            the run so that it can be resumed.
        """
        if self._standing().action is Action.ALLOW:
            return ALLOW
        import asyncio  # noqa: PLC0415 - 30 ms that sync agents need not pay

        deadline_s = self._begin_pause(timeout_s)
        # Polled, since an `asyncio.Event` belongs to one loop and the pause is lifted by another thread.
        while (decision := self._standing()).action is Action.PAUSE and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(_PAUSE_POLL_S)
        self._end_wait()
        return decision

    def wait_if_paused_sync(self, timeout_s: float | None = None) -> Decision:
        """Do the same as `wait_if_paused` in code without an event loop: blocks this thread while paused."""
        if self._standing().action is Action.ALLOW:
            return ALLOW
        deadline_s = self._begin_pause(timeout_s)
        while (decision := self._standing()).action is Action.PAUSE and time.monotonic() < deadline_s:
            time.sleep(_PAUSE_POLL_S)
        self._end_wait()
        return decision

    def adopt(self, process: HasPid | int, *, end: bool = True) -> bool:
        """Say that this run started a process: a stop of the run is a stop of that process and all that came of it.

        `confirmed_dead` waits until they are gone. After the grace of the stop (the command's, else 5 s) they are ended
        by SIGTERM, two seconds later by SIGKILL. A run that ends by itself leaves them alone.

        Start it with `start_new_session=True`: then everything that comes of it is found, also what its parent has
        left behind. Else members are found by their parents, and a grandchild whose parent ended before the stop is
        not. On systems without `/proc` this needs `psutil`; without it, a kill stays unconfirmed.

        Args:
            process: A `subprocess.Popen`, a process of `asyncio` or `multiprocessing`, or a process id.
            end: False: wait for it, and never end it.

        Returns:
            Whether it is watched: False if it has ended already, or cannot be seen; `stats()` counts the latter.

        Cost: about 0.2 ms on Linux; elsewhere a look at all processes.
        """
        try:
            pid = process if isinstance(process, int) else process.pid
            return self._stopped_runs.adopt(self._gate, pid, is_ended=end)
        except Exception as error:  # noqa: BLE001 - the agent goes on whatever is wrong with us
            self._fault("adopt", error)
            return False

    def _blocked(self, tool: str, now_ms: float) -> Refusal | None:
        until_ms = self._gate.blocked.get(tool)
        broker_ms = self._broker.at(now_ms)
        if until_ms is None or (broker_ms is not None and broker_ms >= until_ms):
            return None
        retry_after_ms = None if broker_ms is None else int(until_ms - broker_ms)
        why = f"{tool} is blocked for this run"
        return Refusal(unavailable(tool, "blocked_for_this_run", retry_after_ms=retry_after_ms, why=why))

    def _broken(self, tool: str, breaker: Breaker, now_ms: float) -> Refusal | None:
        """Return the refusal of a breaker that is not closed, or `None` if this call passes."""
        if breaker.until_ms != inf:
            # Without any time of the broker's no lease can be told from one that is over: fail open.
            broker_ms = self._broker.at(now_ms)
            if broker_ms is None or broker_ms >= breaker.until_ms:
                return None
        run_id = self._gate.key.run_id
        if breaker.lets_through(run_id):
            if breaker.probe is not None:
                self._counters.add("breaker_probes")
            return None
        if breaker.is_advice or not self._breakers.is_enforcing:
            self._counters.add("breaker_advice")
            return None
        self._counters.add("breaker_refusals")
        why = f"the breaker of {tool} is {breaker.state}"
        decision = unavailable(tool, f"breaker_{breaker.state}", retry_after_ms=breaker.retry_after(run_id), why=why)
        return Refusal(decision, ToolError(error_class=f"breaker:{tool}", message=why))

    def _stop(self) -> Decision:
        cause = self._gate.cause
        if cause is None:
            # The gate was closed by the end of the run before it could be shut.
            return Decision(Action.STOP, reason="the run is over")
        return Decision(
            Action.STOP,
            reason=cause.reason,
            command_id=cause.command_id,
            message=f"This run was stopped ({cause.reason}). No further step will be carried out.",
        )

    def _paused(self) -> Decision:
        pause = self._gate.pause
        if pause is None:
            return ALLOW
        return Decision(Action.PAUSE, reason=pause.reason, command_id=pause.command_id)

    def _standing(self) -> Decision:
        if self._gate.cause is not None:
            return self._stop()
        if self._gate.pause is None and self._approvals.is_waiting:
            return Decision(Action.PAUSE, reason="a call waits for a person's approval")
        return self._paused()

    def _begin_pause(self, timeout_s: float | None) -> float:
        self._begin_wait()
        return time.monotonic() + (self._max_pause_s if timeout_s is None else timeout_s)

    def _limit(self, reason: str) -> Decision:
        self._gate.shut(StopCause("limit", reason))
        return self._stop()

    def _fault(self, where: str, error: BaseException) -> None:
        self._counters.fault(where, error)
