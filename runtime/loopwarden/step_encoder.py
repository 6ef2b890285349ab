"""From what the agent reported to the bytes of a step event: hash, cut, check. Runs in the publisher's thread."""

from __future__ import annotations

from msgspec import UNSET, Raw

from loopwarden.content import Content, cut_result, cut_text
from loopwarden.faults import Counters
from loopwarden.records import Outgoing
from loopwarden_models.codec import MAX_STEP_BYTES, decode_step, encode
from loopwarden_models.errors import InvalidEvent
from loopwarden_models.events import (
    ApprovalWait,
    Message,
    ModelEnd,
    Progress,
    RunStart,
    Step,
    ToolEnd,
    ToolError,
    ToolStart,
    root_of,
    step_key,
)

# Key, record header and batch header come on top of the value, and the broker's limit is for their sum.
MAX_VALUE_BYTES = MAX_STEP_BYTES - 2_048

# What a text may keep when its event is too large: enough to see a chant (detectors 2.15 reads 400 tokens).
_CUT_TEXT_CHARS = 10_000

# Arguments are sent with `tool_start`; up to this size with `tool_end` as well, in case the start was dropped.
_ECHO_ARGS_BYTES = 2_048

_MAX_REPAIRS = 4


class PendingStep:
    """A step event whose content is not hashed yet."""

    __slots__ = ("args", "result", "step")

    def __init__(self, step: Step, args: Content | None = None, result: Content | None = None) -> None:
        self.step = step
        self.args = args
        self.result = result


class StepEncoder:
    """Encodes step events. For one thread.

    With `fidelity` "hash" no content leaves the process: no arguments, results, texts, goals, notes or messages of
    errors; hashes, sizes, names, error classes and numbers do.
    """

    def __init__(self, *, fidelity: str, result_chars: int, counters: Counters) -> None:
        self._hash_only = fidelity == "hash"
        self._result_chars = result_chars
        self._counters = counters

    def __call__(self, pending: PendingStep) -> Outgoing | None:
        """Return the record, or `None` (counted) for an event that cannot be sent in any form.

        Cost: about 15 µs for an event with 100 bytes of arguments and 200 of result.
        """
        step = pending.step
        self._fill(pending)
        if self._hash_only:
            _remove_content(step)
        value = self._encode(step)
        if value is not None and len(value) > MAX_VALUE_BYTES:
            self._counters.add("events_cut")
            _cut(step)
            value = self._encode(step)
        for _ in range(_MAX_REPAIRS):
            if value is None:
                break
            try:
                decode_step(value, max_bytes=MAX_VALUE_BYTES)
            except InvalidEvent as error:
                value = self._encode(step) if _blank(step, error.field) else None
            else:
                return Outgoing(step_key(step.tenant, root_of(step)), value)
        self._counters.add("events_invalid")
        return None

    def _fill(self, pending: PendingStep) -> None:
        step, args, result = pending.step, pending.args, pending.result
        if args is not None and isinstance(step, ToolStart | ToolEnd | ApprovalWait):
            step.args_hash = args.hash()
            if not isinstance(step, ToolEnd) or len(args.data) <= _ECHO_ARGS_BYTES:
                step.args = Raw(args.data)
        if isinstance(step, ToolEnd):
            if result is not None:
                step.result_hash = result.hash()
                step.result_bytes = len(result.data)
                step.result = Raw(cut_result(result.data, self._result_chars))
            if step.error is not None:
                step.error = _cut_error(step.error, self._result_chars)

    def _encode(self, step: Step) -> bytes | None:
        try:
            return encode(step)
        except UnicodeEncodeError:
            # A lone surrogate: text that no JSON can carry.
            for name in step.__struct_fields__:
                value = getattr(step, name)
                if isinstance(value, str):
                    setattr(step, name, value.encode("utf-8", "replace").decode("utf-8"))
            if isinstance(step, ToolEnd):
                step.error = None
            self._counters.add("events_repaired")
        try:
            return encode(step)
        except UnicodeEncodeError:
            return None


def _cut_error(error: ToolError, max_chars: int) -> ToolError:
    status = error.status
    return ToolError(
        error_class=cut_text(error.error_class, 256),
        message=cut_text(error.message, max_chars),
        status=status[:256] if isinstance(status, str) else status,
    )


def _remove_content(step: Step) -> None:
    if isinstance(step, ToolStart | ToolEnd | ApprovalWait):
        step.args = UNSET
    if isinstance(step, ApprovalWait):
        step.question = None
    if isinstance(step, ToolEnd):
        step.result = UNSET
        if step.error is not None:
            step.error = ToolError(error_class=step.error.error_class, status=step.error.status)
    elif isinstance(step, ModelEnd):
        step.text = step.reasoning = None
    elif isinstance(step, Message):
        step.text = None
    elif isinstance(step, Progress):
        step.note = None
    elif isinstance(step, RunStart):
        step.goal = None


def _cut(step: Step) -> None:
    """Drop what is long: hashes and sizes of the whole stay, and they decide."""
    if isinstance(step, ToolStart | ToolEnd | ApprovalWait):
        step.args = UNSET
    if isinstance(step, ApprovalWait):
        step.question = cut_text(step.question, _CUT_TEXT_CHARS)
    if isinstance(step, ToolEnd):
        step.result = UNSET
    elif isinstance(step, ModelEnd):
        step.text = cut_text(step.text, _CUT_TEXT_CHARS)
        step.reasoning = cut_text(step.reasoning, _CUT_TEXT_CHARS)
    elif isinstance(step, Message):
        step.text = cut_text(step.text, _CUT_TEXT_CHARS)
    elif isinstance(step, Progress):
        step.note = cut_text(step.note, _CUT_TEXT_CHARS)
    elif isinstance(step, RunStart):
        step.goal = cut_text(step.goal, _CUT_TEXT_CHARS)


def _blank(step: Step, path: str) -> bool:
    """Remove the optional field that the contract does not allow as it is; False if there is nothing to remove."""
    name = path.partition(".")[0]
    if name in {"args", "result"}:
        setattr(step, name, UNSET)
        return True
    if name in {"v", "type", "tenant", "run_id", "seq", "ts_ms", "tool"} or name not in step.__struct_fields__:
        return False
    setattr(step, name, None)
    return True
