"""Same call, changing result, in a row: mostly healthy watching, so it advises and never kills."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from msgspec import Struct

from loopwarden_detectors.base import REPEATED, STREAK, Call, Finding, grade
from loopwarden_detectors.streak_finding import finding_of
from loopwarden_models.effects import CLOCK, POLL

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy


class ChangingRepeatState(Struct, array_like=True, gc=False):
    """A streak of one call, two or more: its length, how many of its results were novel, and where it began.

    `round` is the last one that lengthened it.
    """

    call_key: int
    count: int
    novel: int
    round: int
    first_seq: int
    first_ms: int
    first_offset: int


class ChangingRepeat:
    """`n` = length of the streak of equal calls in which at least half of the results are novel.

    Novel = not among the answers to the last 40 calls. A second call of the same round does not count. Declared
    pollers are left out: they are meant to ask again. A clock's answer is always new, so its numbers are lower.

    Levels: observe 10, nudge 20; for effect `clock` 5 and 10 (`ChangingRepeatConfig`). Never more: the world moves,
    and only budgets end such a run.
    Cost: about 0.1 µs.
    """

    name: ClassVar[str] = "changing_repeat"
    pattern: ClassVar[str] = "tool_repetition"
    signs: ClassVar[int] = REPEATED | STREAK

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        state = run.changing_repeat
        key = call.call_key
        if state is not None and key != state.call_key:
            state = run.changing_repeat = None
        if state is None:
            if call.call_age != 1 or call.in_round or call.effect == POLL:
                return None
            seq, offset, ms, _ = run.ring.call_at(1, seq=call.step.seq, offset=call.offset)
            state = ChangingRepeatState(key, 1, 1, 0, seq, run.started_ms + ms, offset)
            run.changing_repeat = state
        elif call.effect == POLL or call.round == state.round:
            return None
        state.round = call.round
        state.count += 1
        if call.has_pair and not call.pair_age:
            state.novel += 1
        config = policy.changing_repeat
        is_clock = call.effect == CLOCK
        observe, nudge = (config.clock_observe, config.clock_nudge) if is_clock else (config.observe, config.nudge)
        count = state.count
        if count < observe or state.novel * 2 < count:
            return None
        level, threshold = grade(count, observe, nudge)
        return finding_of(
            self,
            run,
            policy,
            state,
            level=level,
            count=count,
            threshold=threshold,
            loop_key=key,
            note=lambda: (
                f"{call.tool} was called {count} times in a row with the same arguments; {state.novel} answers were new"
            ),
            tool=call.tool,
            has_veto=False,
        )
