"""The tool calls of one run that are out, and their reports."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import UNSET, Struct

from loopwarden.clock import Clock
from loopwarden.content import Content, freeze
from loopwarden.decisions import fit
from loopwarden.faults import Counters
from loopwarden.reporter import Reporter
from loopwarden.tools import declared_effect
from loopwarden_models.events import ToolEnd, ToolError, ToolStart

# Calls whose end is never reported would be kept for ever; more than this are not out at one time.
MAX_OPEN_CALLS = 4_096

# A framework that ignores the stop asks again and again. So many refusals are reported, the rest are counted: a batch
# is smaller, and the outbox must keep room for other runs.
MAX_REPORTED_REFUSALS = 256

_TOOL_CHARS = 256
_CALL_ID_CHARS = 256


class Call(Struct, gc=False):
    """A tool call. `args` is frozen and shared by the events of its start and its end."""

    call_id: str
    tool: str
    args: Content | None
    effect: str
    started_ms: float


class ToolCalls:
    """Pairs starts and ends by `call_id`. Thread-safe: each change is one operation on a dict."""

    __slots__ = ("_clock", "_counters", "_open", "_refusals", "_reporter", "_settled")

    def __init__(self, reporter: Reporter, *, clock: Clock, counters: Counters) -> None:
        self._reporter = reporter
        self._clock = clock
        self._counters = counters
        self._open: dict[str, Call] = {}
        self._refusals = 0
        self._settled: dict[str, bool] = {}

    def prepare(self, call_id: str, tool: str, args: object | None, effect: str | None, now_ms: float) -> Call:
        """Return the call as it will be reported; its arguments are copied here."""
        tool = fit(tool, _TOOL_CHARS)
        content = None if args is None else freeze(args)
        return Call(fit(call_id, _CALL_ID_CHARS), tool, content, effect or declared_effect(tool), now_ms)

    def begin(self, call: Call) -> None:
        """Report a call before it is made."""
        if len(self._open) >= MAX_OPEN_CALLS:
            self._open.pop(next(iter(self._open)), None)
            self._counters.add("calls_forgotten")
        self._open[call.call_id] = call
        if self._settled:
            self._settled.pop(call.call_id, False)
        fields = {"tool": call.tool, "call_id": call.call_id, "effect": call.effect}
        self._reporter.emit(ToolStart, fields, args=call.args)

    def take(self, call_id: str) -> Call | None:
        """Return the call that was begun under this id, and forget it."""
        return self._open.pop(fit(call_id, _CALL_ID_CHARS), None)

    def end(
        self,
        call: Call,
        outcome: str,
        *,
        result: object = UNSET,
        error: ToolError | None = None,
        duration_ms: float | None = None,
        cost_usd: float | None = None,
    ) -> None:
        """Report the end of a call; its result is copied here."""
        fields = {
            "tool": call.tool,
            "call_id": call.call_id,
            "effect": call.effect,
            "outcome": outcome,
            "error": error,
            "duration_ms": duration_ms,
            "cost_usd": cost_usd,
        }
        self._reporter.emit(
            ToolEnd,
            fields,
            args=call.args,
            result=None if result is UNSET else freeze(result),
            text_chars=len(error.message or "") if error is not None else 0,
        )

    def settle(self, call_id: str, outcome: str, error: ToolError) -> None:
        """Report the end of a call that is out, in place of the agent: what it reports later is late (`is_settled`)."""
        call = self.take(call_id)
        if call is not None:
            if len(self._settled) >= MAX_OPEN_CALLS:
                self._settled.pop(next(iter(self._settled)), None)
            self._settled[call.call_id] = True
            self.end(call, outcome, error=error, duration_ms=self._clock.monotonic_ms() - call.started_ms)

    def is_settled(self, call_id: str) -> bool:
        """Return whether the end of this call was reported by `settle`; asked once for each call."""
        return bool(self._settled) and self._settled.pop(fit(call_id, _CALL_ID_CHARS), False)

    def only_open(self) -> str | None:
        """Return the call that is out, if there is exactly one."""
        out = list(self._open)
        return out[0] if len(out) == 1 else None

    def refuse(self, call: Call, outcome: str, *, is_stopped: bool, error: ToolError | None = None) -> None:
        """Report a call that was not made: counts must move while a door is closed."""
        self._refusals += 1
        self._counters.add("calls_refused")
        if not is_stopped or self._refusals <= MAX_REPORTED_REFUSALS:
            self.end(call, outcome, error=error)

    def cancel_all(self) -> None:
        """Give every call that is out an end, so that the conversation is well-formed.

        Such a call was sent and nobody knows what came of it: a later incarnation must not take it for undone.
        """
        error = ToolError(error_class="cancelled", message="outcome unknown: the run ended during the call")
        for call_id in list(self._open):
            call = self._open.pop(call_id, None)
            if call is not None:
                self.end(call, "cancelled", error=error)


def tool_error(error: object) -> ToolError:
    """Return what the contract keeps of an exception, a text, or a mapping with `class`, `message` and `status`."""
    if isinstance(error, ToolError):
        return error
    if isinstance(error, BaseException):
        return ToolError(error_class=type(error).__name__, message=str(error))
    if isinstance(error, Mapping):
        return ToolError(error_class=error.get("class"), message=error.get("message"), status=error.get("status"))
    return ToolError(message=str(error))
