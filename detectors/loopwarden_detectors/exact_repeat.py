"""Same call, same result, in a row: the agent asks again what it was just told."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from loopwarden_detectors.base import NUDGE, Call, Finding, grade
from loopwarden_detectors.ladder_state import is_news
from loopwarden_models.effects import POLL, UNKNOWN

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import ExactRepeatConfig, Policy


class ExactRepeatState(Struct, array_like=True, gc=False):
    """The streak: its pair (0 = no result is known), its call, its length, and where it began.

    `round` is the last one that lengthened it; `waited`: a wait came since; `is_bare`: a call of it was answered by
    nobody, not even by a guard.
    """

    pair_key: int = 0
    call_key: int = 0
    count: int = 0
    round: int = 0
    waited: bool = False
    is_bare: bool = False
    first_seq: int = 0
    first_ms: int = 0
    first_offset: int = -1


class ExactRepeat:
    """`n` = length of the current streak of calls with equal arguments and equal results.

    A second call of the same round does not lengthen it; a call that was refused or answered from a cache does,
    because it was tried. A wait between two calls neither lengthens nor breaks it. Pollers and clocks are left to
    their own rules, and so are equal calls of a tool without a declared effect that lie far apart or have waits
    between them: an undeclared poller must not be killed for its patience.

    Calls whose results never come prove nothing: five equal ones in a row may nudge, no more.

    Levels: observe 2, nudge 3, break 5, kill 8 (`ExactRepeatConfig`, with sources).
    Cost: about 0.2 µs; O(44) only for a repeated call after a gap of half a minute.
    """

    name: ClassVar[str] = "exact_repeat"
    pattern: ClassVar[str] = "tool_repetition"

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        state = run.exact_repeat
        if call.is_wait:
            state.waited = True
            return None
        if call.effect == POLL or not call.call_key or not _continues(state, call):
            _begin(run, call)
            return None
        if call.round == state.round:
            return None
        config = policy.exact_repeat
        is_patient = call.effect == UNKNOWN and (state.waited or _is_slow(run, config))
        state.round = call.round
        state.waited = False
        if is_patient:
            return None
        state.count += 1
        state.is_bare = state.is_bare or not _is_evidence(call)
        return self._finding(run, call, state, policy) if state.count >= config.observe else None

    def _finding(self, run: RunState, call: Call, state: ExactRepeatState, policy: Policy) -> Finding | None:
        config = policy.exact_repeat
        count = state.count
        if not state.is_bare:
            level, threshold = grade(count, config.observe, config.nudge, config.break_at, config.kill)
        elif count >= config.nudge_without_result:
            level, threshold = NUDGE, config.nudge_without_result
        else:
            return None
        if not is_news(run, policy, self.name, state.call_key, level, count, state.first_seq):
            return None
        answers = "; its answers are not reported" if state.is_bare else " and the same answer"
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=state.call_key,
            count=count,
            threshold=threshold,
            first_seq=state.first_seq,
            first_ms=state.first_ms,
            first_offset=state.first_offset,
            tools=(call.tool,),
            veto_after_seq=state.first_seq,
            note=f"{call.tool} was called {count} times in a row with the same arguments{answers}",
        )


# The guard's own answers are attempts that lengthen a streak: it refused, or knew the answer. They are no results.
_GUARDED = frozenset({"blocked", "cached"})


def _begin(run: RunState, call: Call) -> None:
    pair, key = (call.pair_key, call.call_key) if call.effect != POLL else (0, 0)
    # A new object costs half of what setting nine fields does.
    run.exact_repeat = ExactRepeatState(
        pair, key, 1, call.round, False, not _is_evidence(call), call.step.seq, run.now_ms, call.offset
    )


def _continues(state: ExactRepeatState, call: Call) -> bool:
    if call.pair_key:
        return call.pair_key == state.pair_key
    return call.call_key == state.call_key and (not state.pair_key or call.outcome in _GUARDED)


def _is_evidence(call: Call) -> bool:
    return call.pair_key != 0 or call.outcome in _GUARDED


def _is_slow(run: RunState, config: ExactRepeatConfig) -> bool:
    """Return whether the call came as late as only polling explains: far apart, and far for this run."""
    gap_ms = run.ring.newest_gap_ms()
    if gap_ms < config.slow_gap_ms:
        return False
    times = run.ring.times()[:-1]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return not gaps or gap_ms >= config.slow_gap_medians * median(gaps)
