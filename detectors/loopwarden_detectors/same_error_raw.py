"""One call fails with the very same error whatever is changed around it: the edits do not reach the cause."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import UNSET, Struct

from loopwarden_detectors.base import REPEATED, Call, Finding, grade
from loopwarden_detectors.causes import cause_of_failure
from loopwarden_detectors.rings import KEPT_CALLS, UNPRODUCTIVE, WAITS
from loopwarden_detectors.same_error import signature_of
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.effects import FAILED, POLL, UNKNOWN

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.events import ToolEnd
    from loopwarden_models.policy import Policy

# Calls that fail alike side by side; the one that failed longest ago leaves. judgement: more is another rule's matter
MAX_RAW_ERRORS: Final = 4

# An odd constant: the loop is not the one of `exact_repeat`, whose counts are others.
_IDENTITY: Final = 0x6A09_E667_F3BC_C909


class RawErrorState(Struct, array_like=True, gc=False):
    """One call that failed alike twice or more: its key, how often, and where that began.

    `round` is the last one that counted, `last_call` the run's number of the last call.
    """

    call_key: int
    count: int
    round: int
    last_call: int
    first_seq: int
    first_ms: int
    first_offset: int


class SameErrorRaw:
    """`n` = failures of one call with one error, not masked, since that call last answered anything else.

    What lies between does not matter, new writes included: that they change nothing is what is looked for. An error
    that says nothing ("exit 1" and no output) is no evidence, a round counts once, and a call that was not made for 40
    calls starts afresh. A poller, and a tool without a declared effect, may wait for something to come up: asked again
    after a wait, it neither lengthens nor breaks the streak.

    Levels: observe 3, nudge 5, never more (`SameErrorRawConfig`, with sources).
    Cost: 0.1 µs for a repeated call, 1 µs for one that failed as before.
    """

    name: ClassVar[str] = "same_error_raw"
    pattern: ClassVar[str] = "error_loop"
    # Looked at only while the ring holds the call before, so that whatever resets the count is seen as well.
    signs: ClassVar[int] = REPEATED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        errors = run.same_error_raw
        if call.is_wait:
            return None
        if call.outcome not in FAILED or not call.has_pair or call.pair_age != call.call_age:
            if errors is not None:
                run.same_error_raw = [known for known in errors if known.call_key != call.call_key] or None
            return None
        if call.call_age <= call.in_round or not _says_something(call.step):
            return None
        state = next((known for known in errors or () if known.call_key == call.call_key), None)
        if state is not None and run.calls - state.last_call > KEPT_CALLS:
            run.same_error_raw = [known for known in errors or () if known is not state] or None
            state = None
        if call.effect in (UNKNOWN, POLL) and any(kind & WAITS for kind in run.ring.kinds(call.call_age)):
            if state is not None:
                state.last_call = run.calls
            return None
        if state is None:
            state = _begin(run, call)
            if state is None:
                return None
        elif state.round == call.round:
            return None
        else:
            state.count += 1
        state.round = call.round
        state.last_call = run.calls
        config = policy.same_error_raw
        level, threshold = grade(state.count, config.observe, config.nudge)
        if not level:
            return None
        loop_key = state.call_key ^ _IDENTITY or 1
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=state.count,
            threshold=threshold,
            loop_key=loop_key,
            note=lambda: (
                f"{call.tool} failed {state.count} times with exactly the same error, whatever was done in between"
            ),
            tool=call.tool,
            cause=cause_of_failure(call),
        )


def _begin(run: RunState, call: Call) -> RawErrorState | None:
    """Return the count that begins with the call's last occurrence, `None` if that was no failure."""
    back = call.call_age
    if back >= KEPT_CALLS:
        return None  # it may have left the ring when this one came
    _, kind = run.ring.before(back)
    if not kind & UNPRODUCTIVE:
        return None
    seq, offset, ms, _ = run.ring.call_at(back, seq=call.step.seq, offset=call.offset)
    state = RawErrorState(call.call_key, 2, call.round, run.calls, seq, run.started_ms + ms, offset)
    errors = run.same_error_raw
    if errors is None:
        errors = run.same_error_raw = []
    elif len(errors) >= MAX_RAW_ERRORS:
        errors.remove(min(errors, key=lambda known: known.last_call))
    errors.append(state)
    return state


def _says_something(step: ToolEnd) -> bool:
    """Return whether the error is known: its text, or where only hashes are sent, that there was one."""
    if signature_of(step):
        return True
    return step.result is UNSET and step.result_hash is not None and step.result_bytes != 0
