"""The same error again and again, whatever the arguments: the calls vary, the wall does not."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, ClassVar

from msgspec import UNSET, Struct

from loopwarden_detectors.base import ERRORS, WENT_WRONG, Call, Finding, grade
from loopwarden_detectors.causes import cause_of_failure
from loopwarden_detectors.identity import is_empty, tool_key
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.effects import FAILED, UNKNOWN, WRITE
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.events import ToolEnd
    from loopwarden_models.policy import Policy

MAX_SIGNATURES = 8
SIGNATURE_CHARS = 300

# Digits and hexadecimal digits: UUIDs, addresses, hashes, and short ids if a digit is among them ("cafe" is a word).
_NUMBERS = re.compile(
    r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b|0x[0-9a-fA-F]+|\b[0-9a-f]{8,}\b"
    r"|\b(?=[a-fA-F]*[0-9])[0-9a-fA-F]{4,}\b|\d+"
)
# Messages that name no cause: the text of the result is looked at instead.
_SAYS_NOTHING = re.compile(
    r"(command )?(exit(ed)?|exit code|error|failed|failure|status)?( with)?( (code|status))?[ :]*#?[.]?", re.IGNORECASE
)
_SAYS_NOTHING_CHARS = 64
# What is wrong with the machine and not with the call, as the C library words it: whatever program says it, of whatever
# file, it is the same wall. "No such file" and "permission denied" are about one file, and not here.
_MACHINE = re.compile(
    r"(no space left on device|disk quota exceeded|read-only file system|cannot allocate memory|too many open files"
    r"|network is unreachable|no route to host|temporary failure in name resolution|name or service not known"
    r"|could not resolve host)",
    re.IGNORECASE,
)
_STACK_TRACE = "Traceback (most recent call last)"

# The head and the tail of a result are enough for a signature: it may be megabytes.
_RESULT_BYTES = 2 * SIGNATURE_CHARS

# Memos of pure functions, they change no answer: a loop repeats its error, and masking it costs 3 µs.
_MEMO = 2_048


class ErrorState(Struct, array_like=True, gc=False):
    """One signature: how often it came, since when, and whether every call of it had a declared effect.

    `tool_key` is that of the tool, `round` the last one that counted, `last_call` the run's number of the last call.
    """

    key: int
    tool_key: int
    count: int = 0
    round: int = -1
    last_call: int = 0
    is_declared: bool = True
    first_seq: int = 0
    first_ms: int = 0
    first_offset: int = -1


class SameError:
    """`n` = failed calls with one error signature since the last reset.

    The signature is tool, class, status and message with digits masked; the arguments do not matter. A message
    that says nothing ("exit 2") is no signature, the result's text is taken then; an error that is not reported at
    all has none. A new write of any tool resets all, a productive success of the same tool resets its own. A round
    counts once. Numbers in a message are masked, so `FAIL 5` and `FAIL 4` are one signature: that is why the kill
    asks for declared effects.

    Levels: observe 2, nudge 3 (5 where the effect is not declared), break 5, kill 8 (`SameErrorConfig`).
    Cost: 0.1 µs for a success, 1 µs for a failure, 5 µs for one whose error was not seen lately.
    """

    name: ClassVar[str] = "same_error"
    pattern: ClassVar[str] = "error_loop"
    signs: ClassVar[int] = WENT_WRONG | ERRORS

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        errors = run.same_error
        if call.outcome not in FAILED:
            if errors:
                _succeed(run, errors, call)
            return None
        run.silence = (run.silence << 1 | 1) & _SILENT_TWICE if errors else 1
        key = signature_of(call.step)
        if not key:
            return None
        if errors is None:
            errors = run.same_error = []
        state = next((known for known in errors if known.key == key), None)
        if state is None:
            if len(errors) >= MAX_SIGNATURES:
                errors.remove(min(errors, key=lambda known: known.last_call))
            state = ErrorState(
                key=key,
                tool_key=tool_key(call.tool),
                first_seq=call.step.seq,
                first_ms=run.now_ms,
                first_offset=call.offset,
            )
            errors.append(state)
        elif state.round == call.round:
            return None
        state.round = call.round
        state.count += 1
        state.last_call = run.calls
        if call.effect == UNKNOWN:
            state.is_declared = False
        return self._finding(run, call, state, policy) if state.count >= policy.same_error.observe else None

    def _finding(self, run: RunState, call: Call, state: ErrorState, policy: Policy) -> Finding | None:
        config = policy.same_error
        count = state.count
        if state.is_declared:
            level, threshold = grade(count, config.observe, config.nudge, config.break_at, config.kill)
        else:
            level, threshold = grade(
                count, config.observe, config.nudge_undeclared, max(config.break_at, config.nudge_undeclared)
            )
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=count,
            threshold=threshold,
            loop_key=state.key,
            note=lambda: f"{call.tool} failed {count} times with the same error",
            tool=call.tool,
            cause=cause_of_failure(call),
        )


_SILENT_TWICE = 0b11


def _succeed(run: RunState, errors: list[ErrorState], call: Call) -> None:
    """Reset what a call that did not fail disproves: all errors by a new write, else those of its own tool.

    Silence is the normal answer of a shell that did its work, and of one that did nothing. It counts as work unless
    the two calls before achieved nothing either.
    """
    is_silent = call.effect != WRITE and is_empty(call.step)
    is_productive = call.outcome == "ok" and (call.result_key != 0 or call.effect == WRITE)
    if is_silent:
        is_productive = is_productive and call.effect == UNKNOWN and run.silence != _SILENT_TWICE
    run.silence = (run.silence << 1 | (is_silent or not is_productive)) & _SILENT_TWICE
    if call.is_new_write:
        errors.clear()
    elif is_productive:
        own = tool_key(call.tool)
        errors[:] = [known for known in errors if known.tool_key != own]


def signature_of(step: ToolEnd) -> int:
    """Return the key of what identifies the error, 0 if nothing does."""
    error = step.error
    if error is None:
        return 0
    text = error.message or ""
    if len(text) <= _SAYS_NOTHING_CHARS and _says_nothing(text):
        text = _result_text(step)
        if not text:
            return 0
    machine = _machine_fault(text[:_RESULT_BYTES])
    if machine:
        return _signature(step.tool, None, None, machine)
    text = text[-SIGNATURE_CHARS:] if _STACK_TRACE in text else text[:SIGNATURE_CHARS]
    # Cut, because the memo keeps them, and nothing on the wire bounds them.
    error_class, status = error.error_class, error.status
    if error_class is not None:
        error_class = error_class[:SIGNATURE_CHARS]
    if type(status) is str:
        status = status[:SIGNATURE_CHARS]
    return _signature(step.tool, error_class, status, text)


@lru_cache(_MEMO)
def _signature(tool: str, error_class: str | None, status: int | str | None, text: str) -> int:
    masked = _NUMBERS.sub("#", " ".join(text.split()))
    return stable_key(f"{tool}\0{error_class}\0{status}\0{masked}") or 1


@lru_cache(_MEMO)
def _machine_fault(text: str) -> str:
    found = _MACHINE.search(text)
    return found[0].lower() if found else ""


@lru_cache(_MEMO)
def _says_nothing(message: str) -> bool:
    return _SAYS_NOTHING.fullmatch(_NUMBERS.sub("#", message.strip())) is not None


def _result_text(step: ToolEnd) -> str:
    if step.result is UNSET:
        return ""
    raw = bytes(step.result)
    if raw in (b"null", b'""'):
        return ""
    cut = raw if len(raw) <= 2 * _RESULT_BYTES else raw[:_RESULT_BYTES] + raw[-_RESULT_BYTES:]
    return cut.decode("utf-8", "replace")
