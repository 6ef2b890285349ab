"""Most of the last steps failed or brought nothing, in whatever words: what no comparison of calls can see."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Final

from loopwarden_detectors.base import EMPTY, KILL, NUDGE, OBSERVE, REFUSED, WENT_WRONG, Call, Finding
from loopwarden_detectors.ladder_state import is_news
from loopwarden_detectors.novelty import after_novelty
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.call_rules import NoProgressConfig
    from loopwarden_models.patterns import Level
    from loopwarden_models.policy import Policy

# A run stands still in one way only: the calls differ, and so do the tools.
LOOP_KEY: Final = stable_key("no_progress")

_MAX_TOOLS: Final = 6


class NoProgress:
    """`k` = unproductive steps among the last `m`, the current one being one of them.

    A call is unproductive if it failed, was refused or answered by a guard; if a declared read brought nothing; or if
    an undeclared tool succeeded in silence and the two calls before brought nothing either. A round is one step, and is
    unproductive if every call of it was. Waits are no steps.

    Five of six steps that could do nothing at all are enough for a nudge (`void_calls`): nobody understood the call, it
    is a shell's null command, or it only echoes. Each new error of real work is a step ahead; these are none.

    Reads that found nothing do not count for the kill: fourteen searches without a hit are how a healthy run makes sure
    that something is nowhere. One tool that walks through such answers is left to `param_walk`.

    Levels: observe 6 of 8, nudge 8 of 9, kill 14 of 16 (`NoProgressConfig`, with sources). Progress inside the window
    lowers the kill, and so does a new answer of a declared read within the last four calls.
    Cost: 0.2 µs for an unproductive call; 3 µs from the first level on.
    """

    name: ClassVar[str] = "no_progress"
    pattern: ClassVar[str] = "no_progress"
    signs: ClassVar[int] = WENT_WRONG | REFUSED | EMPTY

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        steps = run.unproductive
        if not call.is_unproductive or not steps & 1:
            return None
        # A call of this round may still bring something: until it is complete the rounds before are judged. A runtime
        # that announces more calls than it reports is judged one step late.
        is_open = run.round_left > 0
        if is_open:
            steps >>= 1
        config = policy.no_progress
        if not steps & 1 or steps.bit_count() < min(config.observe, config.nudge_void):
            return None
        found = _grade(steps, run.stuck >> is_open, run.void >> is_open, config)
        if found is None:
            return None
        level, count, threshold, window, bad, what = found
        first_step = (bad & (1 << window) - 1).bit_length() - 1
        back = min(_calls_back(run.joined, first_step + is_open), len(run.ring) - 1)
        first_seq, first_offset, first_ms, _ = run.ring.call_at(back, seq=call.step.seq, offset=call.offset)
        level = after_novelty(run, level)
        if not is_news(run, policy, self.name, LOOP_KEY, level, count, first_seq):
            return None
        tools = dict.fromkeys(run.tool_name(number) for number in run.ring.tools()[-back - 1 :])
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=LOOP_KEY,
            count=count,
            threshold=threshold,
            first_seq=first_seq,
            first_ms=run.started_ms + first_ms,
            first_offset=first_offset,
            tools=tuple(tools)[:_MAX_TOOLS],
            veto_after_seq=first_seq,
            note=f"{count} of the last {window} steps {what}",
        )


_IN_VAIN: Final = "failed or brought nothing"
_VOID: Final = "could do nothing: nobody understood the call, or it asks for nothing"


def _grade(
    unproductive: int, stuck: int, void: int, config: NoProgressConfig
) -> tuple[Level, int, int, int, int, str] | None:
    """Return the strongest level that is reached: with count, threshold, window, the steps that count, and why."""
    for level, steps, threshold, window, what in (
        (KILL, stuck, config.kill, config.kill_window, _IN_VAIN),
        (NUDGE, unproductive, config.nudge, config.nudge_window, _IN_VAIN),
        (NUDGE, void, config.nudge_void, config.nudge_void_window, _VOID),
        (OBSERVE, unproductive, config.observe, config.observe_window, _IN_VAIN),
    ):
        count = (steps & (1 << window) - 1).bit_count()
        if count >= threshold:
            return level, count, threshold, window, steps, what
    return None


def _calls_back(joined: int, steps_back: int) -> int:
    """Return how many calls ago the step `steps_back` before the newest began; `joined` as in `RunState`."""
    back = 0
    while True:
        if not joined >> back & 1:
            if not steps_back:
                return back
            steps_back -= 1
        back += 1
