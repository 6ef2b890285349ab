"""One call fails and is sent again at once, over and over: whatever is down is hit while it is down."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar, Final

from msgspec import Struct

from loopwarden_detectors.base import WATCHED, WATCHES_STORM, WENT_WRONG, Call, Finding, grade
from loopwarden_detectors.causes import cause_of_failure
from loopwarden_detectors.identity import NEGATIVE_ANSWER
from loopwarden_detectors.rings import GUARDED, KEPT_CALLS, POLLS, SILENT, UNDECLARED, UNPRODUCTIVE, WAITS
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.call_rules import MAX_ATTEMPTS
from loopwarden_models.effects import POLL, UNKNOWN

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy

# Calls that storm side by side; the one that failed longest ago leaves. judgement
MAX_STORMS: Final = 2

# What is the tool's fault; invalid arguments are the run's own (Envoy's split of local and remote errors).
_TOOLS_FAULT: Final = frozenset({"error", "timeout"})

# Gaps that grow by half each time are back-off.
_GROWTH: Final = 1.5
_MIN_GAPS: Final = 2

# An odd constant: the loop is not the one of `exact_repeat`, whose counts are others.
_IDENTITY: Final = 0x3C6E_F372_FE94_F82B


class StormState(Struct, array_like=True, gc=False):
    """One call that failed twice or more: when, in milliseconds since the run started, oldest first.

    Only those of the last minute are kept, and of these the newest. `round` is the last one that counted; `first_seq`
    and so on: where the storm began, however long it has lasted; `waited`: a wait came since.
    """

    call_key: int
    round: int
    times: list[int]
    first_seq: int
    first_ms: int
    first_offset: int
    waited: bool = False


class RetryStorm:
    """`n` = failures of one call, `error` or `timeout`, within a minute of event time.

    A new write starts all counts afresh, for edit and test again is no storm; so does a success of a tool without a
    declared effect, which may have been the edit. A success of the call itself ends its own. Growing gaps, each at
    least one and a half times the one before, are back-off and halve the count. A poller, and a tool without a
    declared effect, are counted anew after a wait: that is patience. A round counts once.

    Levels: observe 3, break 5 (`RetryStormConfig`, with sources). The breaker of all runs of a tool is not here.
    Cost: 0.2 µs for a failure, 1 µs for one that is repeated; 0.2 µs for every call in the minute after.
    """

    name: ClassVar[str] = "retry_storm"
    pattern: ClassVar[str] = "retry_storm"
    signs: ClassVar[int] = WENT_WRONG | WATCHED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        storms = run.retry_storm
        if call.outcome not in _TOOLS_FAULT or call.is_wait:
            if storms is not None:
                _calm(run, storms, call, policy.retry_storm.window_ms)
            return None
        config = policy.retry_storm
        now = run.now_ms - run.started_ms
        key = call.call_key
        state = next((known for known in storms or () if known.call_key == key), None)
        if state is None:
            state = _begin(run, call, now - config.window_ms)
            if state is None:
                return None
        elif state.round == call.round:
            return None
        else:
            recent = [then for then in state.times if then > now - config.window_ms][1 - MAX_ATTEMPTS :]
            if not recent or (state.waited and call.effect in (UNKNOWN, POLL)):
                recent = []
                state.first_seq, state.first_ms, state.first_offset = call.step.seq, run.now_ms, call.offset
            state.times = [*recent, now]
        state.round = call.round
        state.waited = False
        count = len(state.times)
        if count > _MIN_GAPS and _is_backing_off(state.times):
            count //= 2
        level, threshold = grade(count, config.observe, config.break_at, config.break_at)
        if not level:
            return None
        loop_key = key ^ _IDENTITY or 1
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=count,
            threshold=threshold,
            loop_key=loop_key,
            note=lambda: f"{call.tool} failed and was called again with the same arguments, {count} times in a minute",
            tool=call.tool,
            cause=cause_of_failure(call),
        )


def _begin(run: RunState, call: Call, oldest_ms: int) -> StormState | None:
    """Return the storm that begins with the call's last occurrence, `None` if that is none.

    It was a failure of another round in the same minute, and nothing came since that starts the count afresh.
    """
    back, ring = call.call_age, run.ring
    if back <= call.in_round or back >= KEPT_CALLS:
        return None
    _, kind = ring.before(back)
    seq, offset, ms, _ = ring.call_at(back, seq=call.step.seq, offset=call.offset)
    if kind & (UNPRODUCTIVE | GUARDED) != UNPRODUCTIVE or ms <= oldest_ms or run.write_call > run.calls - back:
        return None
    between = ring.kinds(back)[:-1]
    if any(kind & UNDECLARED and not kind & WAITS and (kind & SILENT or not kind & UNPRODUCTIVE) for kind in between):
        return None
    if kind & (UNDECLARED | POLLS) and any(kind & WAITS for kind in between):
        return None
    times = [ms, run.now_ms - run.started_ms]
    state = StormState(call.call_key, call.round, times, seq, run.started_ms + ms, offset)
    storms = run.retry_storm
    if storms is None:
        storms = run.retry_storm = []
        run.watched |= WATCHES_STORM
    elif len(storms) >= MAX_STORMS:
        storms.remove(min(storms, key=lambda known: known.times[-1:]))
    storms.append(state)
    return state


def _calm(run: RunState, storms: list[StormState], call: Call, window_ms: int) -> None:
    """Forget what a call that did not fail disproves, and what lies more than a minute back."""
    if call.is_wait:
        for state in storms:
            state.waited = True
    may_be_edit = call.effect == UNKNOWN and not call.is_wait and call.emptiness != NEGATIVE_ANSWER
    if call.is_new_write or (call.outcome == "ok" and may_be_edit):
        alive = []
    else:
        oldest_ms = run.now_ms - run.started_ms - window_ms
        own = call.call_key if call.outcome == "ok" else 0
        alive = [known for known in storms if known.times[-1:] > [oldest_ms] and known.call_key != own]
    if not alive:
        run.retry_storm = None
        run.watched &= ~WATCHES_STORM
    elif len(alive) != len(storms):
        run.retry_storm = alive


def _is_backing_off(times: list[int]) -> bool:
    """Return whether the gaps grow from one to the next as a client grows them that spares what is down."""
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return gaps[0] > 0 and all(later >= _GROWTH * earlier for earlier, later in pairwise(gaps))
