"""The guard of one run: the calls that an agent, or the adapter of its framework, makes around each step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, Self

from msgspec import UNSET

from loopwarden.approvals import Outcome, RunApprovals, refusal
from loopwarden.decisions import ALLOW, Action, Decision, LoopwardenStopped, RunKey, StopCause
from loopwarden.gate import Gate
from loopwarden.limits import Budget
from loopwarden.nudges import Nudge
from loopwarden.parent_run import ParentRun
from loopwarden.refusals import Refusal
from loopwarden.reporter import Reporter
from loopwarden.run_context import RunContext
from loopwarden.safety_net import RunNet
from loopwarden.spawning import WaitingCall
from loopwarden.tool_calls import Call, ToolCalls, tool_error
from loopwarden_models.events import ModelEnd, RunEnd, RunStart, ToolError, Usage

RunStatus = Literal["completed", "failed", "killed", "limit", "cancelled", "awaiting_approval"]


class RunGuard(ParentRun):
    """Watches and gates one run. Made by `Guard.run`; use it as a context manager, in sync or async code.

    Entering begins the run and raises `LoopwardenStopped` if an order binds it already. Leaving reports `run_end`:
    `killed` or `limit` after a stop, else what `finish` was told, else `completed`, `failed` for an `Exception`, and
    `cancelled` for other ends such as a cancelled task. A run that is left while it is paused, or while a person is
    asked, is not completed: it ends as `awaiting_approval`, its questions stay open, and a later incarnation of it
    finds the answers.

    Thread safety: all methods may be called from any thread. None of them does input or output, awaits, waits for
    another thread's work, or raises, apart from those that say so.

    Attributes:
        key: Identity of this incarnation of the run.
    """

    def __init__(
        self,
        key: RunKey,
        context: RunContext,
        reporter: Reporter,
        gate: Gate,
        *,
        budget: Budget | None,
        start_fields: Mapping[str, Any],
        awaited_by: WaitingCall | None,
    ) -> None:
        super().__init__(
            key,
            calls=ToolCalls(reporter, clock=context.clock, counters=context.counters),
            net=None if context.net is None else RunNet(context.net, key.run_id),
            spawns=context.spawns,
            start_child=context.start_child,
            reporter=reporter,
            gate=gate,
            budget=budget,
            clock=context.clock,
            counters=context.counters,
            broker=context.broker,
            breakers=context.breakers,
            stopped_runs=context.stopped,
            max_pause_s=context.max_pause_s,
            approvals=RunApprovals(
                key, context.plane.answers, context.approvals, clock=context.clock, broker=context.broker
            ),
        )
        self._context = context
        self._start_fields = start_fields
        self._awaited_by = awaited_by
        self._has_model_out = False
        self._finish: RunStatus | None = None

    @property
    def budget(self) -> Budget | None:
        """The limits that bind this run, for its children."""
        return self._budget

    # Begin and end.

    def __enter__(self) -> Self:
        try:
            if self._awaited_by is not None:
                self._context.stopped.watch(self._gate, self._awaited_by)
            self._context.plane.admit(self._gate)
            self._context.on_enter(self)
            if self._gate.cause is None:
                goal = self._start_fields.get("goal")
                self._reporter.emit(RunStart, self._start_fields, text_chars=len(goal or ""))
        except Exception as error:  # noqa: BLE001 - the agent goes on whatever is wrong with us
            self._fault("start", error)
        cause = self._gate.cause
        if cause is not None:
            self._counters.add("starts_refused")
            self._end(None)
            raise LoopwardenStopped(cause.reason, cause.command_id, cause.status)
        return self

    def __exit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(exc_type)

    async def __aenter__(self) -> Self:
        return self.__enter__()

    async def __aexit__(
        self, exc_type: type[BaseException] | None, exc: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._end(exc_type)

    def finish(self, status: RunStatus) -> None:
        """Say how the run ended, where leaving the context cannot tell. A stop outranks it."""
        self._finish = status

    # The model.

    def before_model(self) -> Decision:
        """Ask before each model call: `ALLOW`, `PAUSE` or `STOP`.

        Cost: 0.3 µs; about 1 µs more with limits.
        """
        try:
            gate = self._gate
            if gate.cause is not None:
                return self._stop()
            if gate.pause is not None:
                return self._paused()
            if self._net is not None:
                self._net.next_round()
            if self._budget is not None:
                reserve = not self._has_model_out
                reason = self._budget.start_model(self._clock.monotonic_ms(), reserve=reserve)
                if reason is not None:
                    return self._limit(reason)
                self._has_model_out = True
        except Exception as error:  # noqa: BLE001
            self._fault("before_model", error)
        return ALLOW

    def after_model(
        self,
        *,
        model: str | None = None,
        text: str | None = None,
        reasoning: str | None = None,
        usage: Usage | Mapping[str, int] | None = None,
        cost_usd: float | None = None,
        duration_ms: float | None = None,
        tool_calls: int | None = None,
    ) -> None:
        """Report a model's answer, also of a call that was under way when the run was stopped: its tokens count.

        Args:
            model: Name of the model.
            text: What it said.
            reasoning: What it thought, where the provider shows it.
            usage: Tokens as the provider counts them; `None` or a missing field is unknown, not zero.
            cost_usd: US dollars; `None` is unknown.
            duration_ms: Milliseconds.
            tool_calls: How many calls the answer asks for.

        Cost: about 3 µs.
        """
        try:
            if usage is not None and not isinstance(usage, Usage):
                usage = Usage(usage.get("input_tokens"), usage.get("output_tokens"), usage.get("reasoning_tokens"))
            if self._budget is not None:
                reserved, self._has_model_out = self._has_model_out, False
                tokens = 0 if usage is None else (usage.input_tokens or 0) + (usage.output_tokens or 0)
                self._budget.end_model(max(tokens, 0), cost_usd, reserved=reserved)
            self._reporter.emit(
                ModelEnd,
                {
                    "model": model,
                    "text": text,
                    "reasoning": reasoning,
                    "usage": usage,
                    "cost_usd": cost_usd,
                    "duration_ms": duration_ms,
                    "tool_calls": tool_calls,
                },
                text_chars=len(text or "") + len(reasoning or ""),
            )
        except Exception as error:  # noqa: BLE001
            self._fault("after_model", error)

    def nudges(self) -> Sequence[Nudge]:
        """Return the messages that the next prompt has to carry. Each is returned once.

        Put `text` of each into the prompt, then call its `delivered()`: until then it does not count as given.

        Cost: 0.1 µs when there are none.
        """
        gate = self._gate
        return gate.take_nudges() if gate.has_nudges and gate.cause is None else ()

    # Tools.

    def before_tool(
        self, tool: str, args: object | None, call_id: str, *, effect: str | None = None, ask: str | None = None
    ) -> Decision:
        """Ask before each tool call: `ALLOW`, `BLOCK`, `PAUSE` or `STOP`. An allowed call is reported as begun.

        A call that is refused (`BLOCK`, `STOP`) is reported as ended: do not call `after_tool` for it, and give the
        model `Decision.message` as its result where it needs one. After `PAUSE`, wait (`wait_if_paused`) and ask again
        with the same `call_id`.

        A call that a person has to approve is answered with `PAUSE` until that person has spoken or the time is over,
        then with `ALLOW`, once, or with `BLOCK`. The approval is for this tool with these arguments.

        Args:
            tool: Its name.
            args: Its arguments as the model gave them, any JSON value. `None` is unknown and equals nothing.
            call_id: Id of the call, the same in `after_tool`.
            effect: `read`, `write`, `poll`, `clock` or `unknown`; by default what `loopwarden.tool` declared.
            ask: What a person is to be told who has to approve this call; by default what `Approvals` of the guard say.

        Cost: about 4 µs and the encoding of `args` (0.3 µs per 100 bytes).
        """
        try:
            return self._before_tool(tool, args, call_id, effect, ask)
        except Exception as error:  # noqa: BLE001
            self._fault("before_tool", error)
            if self._gate.cause is not None:
                return self._stop()
            # Fail open, but not past a person who was to be asked.
            return (
                refusal(tool, Outcome("expired")).decision if self._approvals.is_needed(tool, args, ask)[0] else ALLOW
            )

    def after_tool(
        self,
        call_id: str,
        *,
        outcome: str = "ok",
        result: object = UNSET,
        error: BaseException | ToolError | Mapping[str, Any] | str | None = None,
        duration_ms: float | None = None,
        cost_usd: float | None = None,
        tool: str | None = None,
        args: object | None = None,
    ) -> None:
        """Report the end of a tool call. After a stop it is reported as `cancelled`, whatever came of it.

        Args:
            call_id: As in `before_tool`.
            outcome: `ok`, `error`, `timeout`, `denied`, `unknown_tool`, `invalid_args` or `cached`.
            result: What the tool itself returned, before anything was cut or added; leave it out if you do not know it.
                `None` is what a tool gives that returns nothing; with an outcome other than `ok` it is unknown.
            error: The exception, its text, or a mapping with `class`, `message` and `status`.
            duration_ms: Milliseconds; measured from `before_tool` by default.
            cost_usd: US dollars that the call cost.
            tool: Name of a tool whose call was refused by others before `before_tool` was reached.
            args: Its arguments, likewise.

        Cost: about 4 µs and the encoding of `result` (0.4 µs per 1,000 characters).
        """
        try:
            if cost_usd is not None and self._budget is not None:
                self._budget.spend(cost_usd)
            call = self._calls.take(call_id)
            if call is None and self._calls.is_settled(call_id):
                self._counters.add("late_results")
                return
            if call is None:
                call = self._calls.prepare(call_id, tool or "unknown", args, None, self._clock.monotonic_ms())
                if tool is None:
                    self._counters.add("unpaired_calls")
            elif duration_ms is None:
                duration_ms = self._clock.monotonic_ms() - call.started_ms
            told = None if error is None else tool_error(error)
            self._calls.end(
                call,
                outcome if self._gate.cause is None else "cancelled",
                result=UNSET if result is None and outcome != "ok" else result,
                error=told,
                duration_ms=duration_ms,
                cost_usd=cost_usd,
            )
            if self._net is not None:
                reason = self._net.ended(call, outcome, told, self._clock.monotonic_ms())
                if reason is not None:
                    self._limit(reason)
        except Exception as fault:  # noqa: BLE001
            self._fault("after_tool", fault)

    # Inside.

    def _before_tool(
        self, tool: str, args: object | None, call_id: str, effect: str | None, ask: str | None
    ) -> Decision:
        gate = self._gate
        if gate.pause is not None and gate.cause is None:
            return self._paused()
        now_ms = self._clock.monotonic_ms()
        call = self._calls.prepare(call_id, tool, args, effect, now_ms)
        if gate.cause is not None:
            self._calls.refuse(call, "cancelled", is_stopped=True)
            return self._stop()
        is_asked, text = self._approvals.is_needed(call.tool, args, ask)
        told = self._consult(call, text, now_ms) if is_asked else None
        if isinstance(told, Decision):
            return told
        if self._budget is not None and (reason := self._budget.start_tool(now_ms)) is not None:
            decision = self._limit(reason)
            self._calls.refuse(call, "cancelled", is_stopped=True)
            return decision
        if gate.blocked and (refused := self._blocked(call.tool, now_ms)) is not None:
            return self._refuse(call, refused)
        # One look at a mapping that is replaced as a whole: no lock, and nothing at all while every breaker is closed.
        breakers = self._breakers.in_force
        breaker = breakers.get(call.tool) if breakers else None
        if breaker is not None and (refused := self._broken(call.tool, breaker, now_ms)) is not None:
            return self._refuse(call, refused)
        if told is not None:
            return self._refuse(call, told, "denied")
        if self._net is not None and (refused := self._net.check(call, breaker, now_ms)) is not None:
            return self._refuse(call, refused)
        question_id = self._use_approval(call) if is_asked else None
        self._calls.begin(call)
        return ALLOW if question_id is None else Decision(Action.ALLOW, question_id=question_id)

    def _refuse(self, call: Call, refused: Refusal, outcome: str = "blocked") -> Decision:
        self._calls.refuse(call, outcome, is_stopped=False, error=refused.error)
        if self._net is not None and (reason := self._net.refused()) is not None:
            return self._limit(reason)
        return refused.decision

    def _end(self, exc_type: type[BaseException] | None) -> None:
        try:
            if not self._gate.close():
                return
            cause = self._gate.cause
            self._calls.cancel_all()
            if self._budget is not None and self._has_model_out:
                self._budget.release()
            is_waiting = self._gate.pause is not None or self._approvals.is_waiting
            status = _status(cause, self._finish, exc_type, is_waiting=is_waiting)
            if status != "awaiting_approval":
                self._expire_questions()
            command_id = None if cause is None else cause.command_id
            self._reporter.emit(RunEnd, {"status": status, "command_id": command_id}, is_last=True)
            self._context.plane.retire(self._gate, status)
            self._context.on_exit(self)
            if self._context.stopped.leave(self._gate):
                return
            if cause is not None and cause.confirm and command_id is not None:
                self._context.acks.send(self.key, command_id, "confirmed_dead", append_ms=cause.append_ms)
        except Exception as error:  # noqa: BLE001
            self._fault("end", error)


def _status(
    cause: StopCause | None, told: RunStatus | None, exc_type: type[BaseException] | None, *, is_waiting: bool
) -> str:
    if cause is not None:
        return cause.status
    if told is not None:
        return told
    if exc_type is None:
        return "awaiting_approval" if is_waiting else "completed"
    # What is no `Exception` is an end from outside: a cancelled task, Ctrl-C, the stop of a child.
    return "failed" if issubclass(exc_type, Exception) else "cancelled"
