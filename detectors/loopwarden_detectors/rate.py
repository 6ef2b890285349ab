"""Tool calls of one run per minute."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, ClassVar

from loopwarden_detectors.base import BUSY, Call, Finding, grade
from loopwarden_detectors.ladder_state import is_news
from loopwarden_detectors.rings import WINDOW_MS, count_in_window, new_window
from loopwarden_models.hashes import stable_key

if TYPE_CHECKING:
    from loopwarden_detectors.run_state import RunState
    from loopwarden_models.policy import Policy

# Below thirty calls a minute no number is allowed to decide anything, so nothing is counted: most runs are slow or
# short, and get no window.
MIN_PER_MIN = 30

_LOOP_KEY = stable_key("rate")


class Rate:
    """`n` = tool calls of the run in the last minute of event time, with the most frequent tool named.

    A burst is not a loop, so nothing stronger than a nudge is decided unless an operator sets `kill_per_min`.

    Levels: observe 120, nudge 240, kill only by an operator's number (`RateConfig`).
    Cost: 0.1 µs for a run of less than thirty calls a minute, 0.3 µs above.
    """

    name: ClassVar[str] = "rate"
    pattern: ClassVar[str] = "rate_runaway"
    signs: ClassVar[int] = BUSY

    def observe(self, run: RunState, call: Call, policy: Policy) -> Finding | None:  # noqa: ARG002 - the shape of all
        """Judge one call. See the class."""
        window = run.rate
        if window is None:
            span_ms = run.ring.span_ms(MIN_PER_MIN)
            if span_ms is None or span_ms >= WINDOW_MS:
                return None
            window = run.rate = new_window()
            for ms in run.ring.times():
                count = count_in_window(window, ms)
        else:
            count = count_in_window(window, run.now_ms - run.started_ms)
            if count < MIN_PER_MIN // 2:
                run.rate = None  # half, so that a run at the edge does not begin and end one at every call
                return None
        config = policy.rate
        if count < config.observe_per_min:
            return None
        level, threshold = grade(count, config.observe_per_min, config.nudge_per_min, kill=config.kill_per_min)
        if not is_news(run, policy, self.name, _LOOP_KEY, level, count):
            return None
        tool, share = _most_frequent_tool(run)
        return Finding(
            detector=self.name,
            pattern=self.pattern,
            level=level,
            loop_key=_LOOP_KEY,
            count=count,
            threshold=threshold,
            first_seq=max(0, run.seq - count),
            first_ms=max(run.started_ms, run.now_ms - WINDOW_MS),
            tools=(tool,),
            note=f"{count} tool calls in the last minute, {share} % of the newest by {tool}",
        )


def _most_frequent_tool(run: RunState) -> tuple[str, int]:
    """Return the tool with most of the newest calls (at most 44) and its share in per cent."""
    counts = Counter(run.ring.tools())
    number, calls = max(counts.items(), key=lambda item: (item[1], -item[0]))
    return run.tool_name(number), round(100 * calls / counts.total())
