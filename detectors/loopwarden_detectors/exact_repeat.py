"""Same call, same result, in a row: the agent asks again what it was just told."""

from __future__ import annotations

from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from loopwarden_detectors.base import NUDGE, REPEATED, STREAK, Call, Finding, grade
from loopwarden_detectors.rings import GUARDED, HALF, NO_KEY, POLLS, WAITS
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.effects import GUARD_ANSWERS, POLL, UNKNOWN

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.call_rules import ExactRepeatConfig
    from loopwarden_models.policy import Policy


class ExactRepeatState(Struct, array_like=True, gc=False):
    """A streak of two or more: the mark of its calls, its length, and where it began.

    `call_key` is its identity; `round` the last one that lengthened it; `waited`: a wait came since; `is_bare`: a call
    of it was answered by nobody, not even by a guard; `is_measured`: its answers move, if only in what is volatile.
    """

    mark: bytes
    call_key: int
    count: int
    round: int
    is_bare: bool
    first_seq: int
    first_ms: int
    first_offset: int
    waited: bool = False
    is_measured: bool = False


class ExactRepeat:
    """`n` = length of the current streak of calls with equal arguments and equal results.

    A second call of the same round does not lengthen it; a call that was refused or answered from a cache does,
    because it was tried. A wait between two calls neither lengthens nor breaks it. Pollers and clocks are left to
    their own rules, and so are equal calls of a tool without a declared effect that lie far apart or have waits
    between them: an undeclared poller must not be killed for its patience.

    Calls whose results never come prove nothing: five equal ones in a row may nudge, no more. Nor do successes of an
    undeclared tool that are equal but for a duration or a time: somebody may be measuring just that.

    Levels: observe 2, nudge 3, break 5, kill 8, 9 where the effect is not declared (`ExactRepeatConfig`, with sources).
    Cost: about 0.2 µs; O(44) only for a repeated call after a gap of half a minute.
    """

    name: ClassVar[str] = "exact_repeat"
    pattern: ClassVar[str] = "tool_repetition"
    signs: ClassVar[int] = REPEATED | STREAK

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        state = run.exact_repeat
        if call.is_wait:
            if state is not None:
                state.waited = True
            return None
        if call.effect == POLL or not call.call_key:
            run.exact_repeat = None
            return None
        config = policy.exact_repeat
        if state is not None and not _continues(state.mark, call):
            state = run.exact_repeat = None
        if state is None:
            state = run.exact_repeat = _begin(run, call, config)
            if state is None:
                return None
        elif call.round == state.round:
            return None
        else:
            is_patient = call.effect == UNKNOWN and (state.waited or is_slow(run, config))
            state.round = call.round
            state.waited = False
            if is_patient:
                return None
            state.count += 1
            state.is_bare = state.is_bare or not _is_evidence(call)
        if call.is_volatile and call.effect == UNKNOWN and call.outcome == "ok":
            state.is_measured = True
        return self._finding(run, call, state, policy) if state.count >= config.observe else None

    def _finding(self, run: RunState, call: Call, state: ExactRepeatState, policy: Policy) -> Finding | None:
        config = policy.exact_repeat
        count = state.count
        if not state.is_bare:
            kill = config.kill if call.effect != UNKNOWN else max(config.kill, config.kill_undeclared)
            level, threshold = grade(count, config.observe, config.nudge, config.break_at, kill)
            if state.is_measured and level > NUDGE:
                level, threshold = NUDGE, config.nudge
        elif count >= config.nudge_without_result:
            level, threshold = NUDGE, config.nudge_without_result
        else:
            return None
        answers = "; its answers are not reported" if state.is_bare else " and the same answer"
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=count,
            threshold=threshold,
            loop_key=state.call_key,
            note=lambda: f"{call.tool} was called {count} times in a row with the same arguments{answers}",
            tool=call.tool,
            effect="" if state.is_bare else call.effect,
        )


def _begin(run: RunState, call: Call, config: ExactRepeatConfig) -> ExactRepeatState | None:
    """Return the streak that begins with the call before this one, waits aside, or `None` if it is another.

    Where the call before was is asked of the ring now that it matters: nearly every call is followed by another one.
    In a round of several different calls none repeats: which came before which is not known.
    """
    ring = run.ring
    waited = False
    for back in range(call.in_round + 1):
        mark, kind = ring.before(back)
        if kind & WAITS:
            waited = True
        elif mark[HALF:] != call.mark[HALF:]:
            return None
    back = call.in_round + 1
    mark, kind = ring.before(back)
    while kind & WAITS:
        waited = True
        back += 1
        mark, kind = ring.before(back)
    if not mark or kind & POLLS or not _continues(mark, call):
        return None
    if call.effect == UNKNOWN and (waited or is_slow(run, config)):
        return None  # patience; the next one is compared with this one
    seq, offset, ms, _ = ring.call_at(back, seq=call.step.seq, offset=call.offset)
    is_bare = not _is_evidence(call) or (mark[:HALF] == NO_KEY and not kind & GUARDED)
    return ExactRepeatState(mark, call.call_key, 2, call.round, is_bare, seq, run.started_ms + ms, offset)


def _continues(mark: bytes, call: Call) -> bool:
    """Return whether the call is that of `mark`, and was answered as it was, or by a guard, or by nobody."""
    if call.has_pair:
        return call.mark == mark
    return call.mark[HALF:] == mark[HALF:] and (mark[:HALF] == NO_KEY or call.outcome in GUARD_ANSWERS)


def _is_evidence(call: Call) -> bool:
    return call.has_pair or call.outcome in GUARD_ANSWERS


def is_slow(run: RunState, config: ExactRepeatConfig) -> bool:
    """Return whether the call came as late as only polling explains: far apart, and far for this run."""
    gap_ms = run.ring.newest_gap_ms()
    if gap_ms < config.slow_gap_ms:
        return False
    times = run.ring.times()[:-1]
    gaps = [later - earlier for earlier, later in pairwise(times)]
    return not gaps or gap_ms >= config.slow_gap_medians * median(gaps)
