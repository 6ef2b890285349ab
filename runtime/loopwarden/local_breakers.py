"""Breakers of this process alone: they work with Kafka down, and know only what one process sees."""

from __future__ import annotations

import threading
from collections import OrderedDict, deque
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from msgspec import Struct, field

from loopwarden.breakers import Breaker
from loopwarden.faults import Counters
from loopwarden.tool_calls import Call
from loopwarden_models.hashes import hash_point

# The window is kept as so many partial sums.
_BUCKETS: Final = 12

# Tools that are counted at a time; the one that was called longest ago leaves.
MAX_TOOLS: Final = 1_000

# Gaps that grow by half each time are back-off (as in the detector's `retry_storm`), and three times make two gaps.
_GROWTH: Final = 1.5
_MIN_TIMES: Final = 3

_JITTER: Final = 0.2


class LocalLimits(Struct, frozen=True):
    """When a tool is refused in this process. The same fields as in `SafetyNet`, where they are explained."""

    window_ms: int
    min_failures: int
    failure_share: float
    open_ms: int
    max_open_ms: int


class _Tool(Struct):
    """Calls of the window in buckets `[number, calls, failures]`, and the breaker once it is open."""

    failed_ms: deque[float]
    buckets: deque[list[int]] = field(default_factory=deque)
    calls: int = 0
    failures: int = 0
    breaker: Breaker | None = None
    openings: int = 0
    probe: Call | None = None
    probe_ms: float = 0.0


class LocalBreakers:
    """Counts the failures of each tool. Thread-safe: one lock, held for a few counts.

    A tool opens at `min_failures` within the window if they are `failure_share` of its calls; growing gaps halve the
    count. It is refused for `open_ms`, twice as long each time it opens anew, then one probe at a time passes: a
    success closes, a failure opens again.
    """

    def __init__(self, limits: LocalLimits, *, salt: str, counters: Counters) -> None:
        """Set up.

        Args:
            limits: When to open, and for how long.
            salt: Of this process, so that not all of a fleet come back together.
            counters: For `local_openings` and `local_probes`.
        """
        self._limits = limits
        self._salt = salt
        self._counters = counters
        self._bucket_ms = limits.window_ms / _BUCKETS
        self._tools: OrderedDict[str, _Tool] = OrderedDict()
        # Only the tools that are open: what a call looks at, without the lock while there are none.
        self._open: dict[str, _Tool] = {}
        self._lock = threading.Lock()

    def refuse(self, call: Call, now_ms: float) -> Breaker | None:
        """Return the breaker that refuses this call, or `None`: it passes, perhaps as the probe.

        Args:
            call: The call, which begins if nothing is returned.
            now_ms: Monotonic milliseconds.

        Cost: 0.1 µs while the tool is closed.
        """
        if not self._open or (tool := self._open.get(call.tool)) is None:
            return None
        with self._lock:
            breaker = tool.breaker
            if breaker is None:
                return None
            # A probe whose end nobody reports must not keep the tool shut.
            is_probed = tool.probe is not None and now_ms - tool.probe_ms < self._limits.window_ms
            if now_ms < breaker.until_ms or is_probed:
                return breaker
            tool.probe, tool.probe_ms = call, now_ms
        self._counters.add("local_probes")
        return None

    def ended(self, call: Call, now_ms: float, *, failed: bool | None) -> None:
        """Count the end of a call; `failed` is `None` if it says nothing about the tool. Cost: about 1 µs."""
        with self._lock:
            tool = self._tools.get(call.tool)
            if tool is None:
                tool = self._tools[call.tool] = _Tool(deque(maxlen=self._limits.min_failures))
                if len(self._tools) > MAX_TOOLS:
                    self._open.pop(self._tools.popitem(last=False)[0], None)
            self._tools.move_to_end(call.tool)
            if tool.breaker is not None:
                self._probed(call, tool, now_ms, failed)
            elif failed is not None:
                self._count(tool, now_ms, failed)
                if failed and self._is_over(tool):
                    self._trip(call.tool, tool, now_ms)

    def _probed(self, call: Call, tool: _Tool, now_ms: float, failed: bool | None) -> None:
        if call is not tool.probe:
            return
        tool.probe = None
        if failed:
            self._trip(call.tool, tool, now_ms)
        elif failed is not None:
            del self._tools[call.tool]
            self._open.pop(call.tool, None)
            tool.breaker = None

    def _count(self, tool: _Tool, now_ms: float, failed: bool) -> None:
        number = int(now_ms / self._bucket_ms)
        while tool.buckets and tool.buckets[0][0] <= number - _BUCKETS:
            _, calls, failures = tool.buckets.popleft()
            tool.calls -= calls
            tool.failures -= failures
        if not tool.buckets or tool.buckets[-1][0] != number:
            tool.buckets.append([number, 0, 0])
        tool.buckets[-1][1] += 1
        tool.buckets[-1][2] += failed
        tool.calls += 1
        tool.failures += failed
        if failed:
            tool.failed_ms.append(now_ms)

    def _is_over(self, tool: _Tool) -> bool:
        failures = tool.failures // 2 if is_backing_off(tool.failed_ms) else tool.failures
        limits = self._limits
        return failures >= limits.min_failures and failures >= limits.failure_share * tool.calls

    def _trip(self, name: str, tool: _Tool, now_ms: float) -> None:
        limits = self._limits
        spread = 1.0 - _JITTER + 2 * _JITTER * hash_point(self._salt, name, tool.openings)
        open_ms = min(limits.open_ms * 2**tool.openings * spread, limits.max_open_ms)
        tool.openings = min(tool.openings + 1, 30)
        salt = f"{self._salt} {name} {tool.openings}"
        tool.breaker = Breaker("open", now_ms + open_ms, int(open_ms), salt=salt)
        self._open[name] = tool
        self._counters.add("local_openings")


def is_backing_off(times_ms: Sequence[float]) -> bool:
    """Return whether the gaps between these times grow, each at least by half."""
    if len(times_ms) < _MIN_TIMES:
        return False
    gaps = [later - sooner for sooner, later in pairwise(times_ms)]
    return all(later >= _GROWTH * sooner for sooner, later in pairwise(gaps)) and gaps[-1] > 0
