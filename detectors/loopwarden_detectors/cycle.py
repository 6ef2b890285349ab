"""A few calls in turn, lap after lap, each with the answer it had before."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from loopwarden_detectors.base import REPEATED, Call, Finding, grade
from loopwarden_detectors.identity import set_key
from loopwarden_detectors.ladder_state import is_news
from loopwarden_detectors.rings import HALF, MARK, NO_KEY

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy

MIN_PERIOD = 2
MAX_PERIOD = 6


class Cycle:
    """`laps(p)` = how often the last `p` calls came in the same order with the same results, for `p` in 2…6.

    The smallest period that reaches a threshold is reported. The last `p` pairs must not all be equal: that is an
    exact repeat. A cycle of pollers and waits alone is patience and belongs to the rule about polling, and so does
    one undeclared call with waits between. Parallel calls of one round stand in the ring in order of their keys, so
    that their order of arrival neither hides nor makes a cycle.

    The loop's identity is the set of its calls, whatever the lap began with. Laps are counted as far as the ring
    reaches: at least six of the longest cycle, twenty of the shortest.

    Levels: observe 2 laps, nudge 3, kill 5 (`CycleConfig`, with sources).
    Cost: 0.05 µs while nothing repeats, 2 µs in a cycle.
    """

    name: ClassVar[str] = "cycle"
    pattern: ClassVar[str] = "tool_oscillation"
    signs: ClassVar[int] = REPEATED

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:
        """Judge one call. See the class."""
        # Nearly every call ends here. At 1 the call repeats the one before it; in every lap of a cycle there is another
        # one, which is judged. Twice the longest period: calls of one round are sorted in, so that the one that came
        # last need not stand last.
        if not 1 < call.pair_age <= 2 * MAX_PERIOD:
            return None
        marks = run.ring.marks
        newest = marks[-MARK:]
        for period in range(MIN_PERIOD, MAX_PERIOD + 1):
            width = period * MARK
            if marks[-width - MARK : -width] != newest:
                continue
            lap = marks[-width:]
            if lap == newest * period or lap != marks[-2 * width : -width] or _lacks_results(lap):
                continue
            laps = _laps(marks, lap)
            if laps >= policy.cycle.observe_laps and not run.ring.is_patience(period):
                return self._finding(run, call, period, laps, policy)
        return None

    def _finding(self, run: RunState, call: Call, period: int, laps: int, policy: Policy) -> Finding | None:
        config, ring = policy.cycle, run.ring
        level, threshold = grade(laps, config.observe_laps, config.nudge_laps, kill=config.kill_laps)
        calls = ring.call_halves(period)
        # One call with two answers in turn is that call's loop, by whichever rule it is seen.
        loop_key = set_key(calls) if len(calls) > 1 else call.call_key
        # The writes of the first lap were new when they were made; only one in a later lap is progress.
        veto_after_seq = ring.call_at((laps - 1) * period - 1, seq=run.seq, offset=call.offset)[0]
        if not is_news(run, policy, self.name, loop_key, level, laps, veto_after_seq):
            return None
        first_seq, first_offset, first_ms, _ = ring.call_at(laps * period - 1, seq=run.seq, offset=call.offset)
        tools = tuple(dict.fromkeys(run.tool_name(number) for number in ring.tools()[-period:]))
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=loop_key,
            count=laps,
            threshold=threshold,
            first_seq=first_seq,
            first_offset=first_offset,
            first_ms=run.started_ms + first_ms,
            tools=tools,
            veto_after_seq=veto_after_seq,
            note=f"{period} calls in turn ({', '.join(tools)}) came {laps} times with the same answers",
        )


def _laps(marks: bytearray, lap: bytearray) -> int:
    """Return how often `lap` stands at the end of `marks`, at least 2. Cost: O(answer)."""
    width = len(lap)
    laps, at = 2, len(marks) - 3 * width
    while at >= 0 and marks[at : at + width] == lap:
        laps += 1
        at -= width
    return laps


def _lacks_results(lap: bytearray) -> bool:
    return any(lap[at : at + HALF] == NO_KEY for at in range(0, len(lap), HALF))
